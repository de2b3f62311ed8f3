"""Products of 16-bit matrices on this CPU: torch's own, and in float32, rounded once.

    PYTHONPATH=src python -m bench.cpu.products

The second is what forward passes do where `fedzero.oracles.products.WITHOUT_INSTRUCTIONS` has the type.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from bench.table import best, show

from fedzero.oracles.products import WITHOUT_INSTRUCTIONS, InFloat32

SHAPES = [(320, 96, 256), (2048, 576, 1536)]
"""rows, inputs, outputs: of a small model, and of SmolLM2-135M"""


def main() -> None:
    warnings.simplefilter("ignore")  # torch says that it has no quick way
    rows = []
    for n, inputs, outputs in SHAPES:
        wide = torch.randn(n, inputs), torch.randn(outputs, inputs)
        float32 = best(lambda wide=wide: F.linear(*wide), 3)
        for dtype in (torch.bfloat16, torch.float16):
            x, w = (each.to(dtype) for each in wide)
            own = best(lambda x=x, w=w: F.linear(x, w), 1)
            with InFloat32(dtype):
                ours = best(lambda x=x, w=w: F.linear(x, w), 3)
            name = f"{n} rows, {inputs} → {outputs}, {str(dtype).removeprefix('torch.')}"
            used = "float32" if dtype in WITHOUT_INSTRUCTIONS else "torch's"
            times = (f"{1e3 * seconds:.2f}" for seconds in (own, ours, float32))
            rows.append((name, *times, f"{own / ours:.0f}", used))
    header = ("ms", "torch's own", "in float32, rounded", "float32 numbers", "ratio", "used here")
    show("Linear layers of 16-bit numbers", rows, header)


if __name__ == "__main__":
    main()
