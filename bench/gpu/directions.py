"""How fast the Triton kernels are, next to what PyTorch needs for comparable work in the same run.

    PYTHONPATH=src python -m bench.gpu.directions [parameters, default 1300000000] [list: only a model of many tensors]

Every figure is the median of single calls timed with CUDA events, after a call to warm up.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import sys
from collections.abc import Callable

import numpy as np
import torch
import triton
from bench.table import seconds

from fedzero.directions import gpu
from fedzero.directions.spec import Domain
from fedzero.directions.terms import Piece, Program, Rule, Terms
from fedzero.model.params import columns_of

TYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
STREAMS = {"rademacher": Domain.RADEMACHER, "gaussian": Domain.GAUSSIAN}
ADAM = (1e-3, 0.9, 0.1, 0.999, 0.001, 1e-8)


def milliseconds(call: Callable[[], object], repeats: int = 15) -> float:
    call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def wall(call: Callable[[], object], repeats: int = 10) -> float:
    """Milliseconds on the clock, launches included."""
    return 1e3 * statistics.median(seconds(call, repeats, 1, torch.cuda.synchronize))


def fold_of(stream: Domain, terms: int, rule: Rule = Rule.SGD) -> Program:
    """One step of `terms` terms."""
    coefficients = np.full(terms, 1e-3, np.float32)
    return Program.of([Terms.of(range(1, terms + 1), coefficients, stream)], [7], rule, [ADAM])


def row(name: str, ms: float, gigabytes: float, beside: str = "", other: float = 0.0, wanted: str = "") -> None:
    speed = f"{gigabytes / ms:7.2f}" if gigabytes else " " * 7
    ratio = f"{other:9.3f} {other / ms:7.2f}" if other else " " * 17
    print(f"{name:34} {ms:9.3f} {speed}  {beside:26} {ratio}  {wanted}", flush=True)


def one_tensor(label: str, n: int) -> None:
    """Folds, views and sums over one tensor of n parameters."""
    dtype = TYPES[label]
    size, gb = dtype.itemsize, n * dtype.itemsize / 1e9
    x = torch.empty(n, dtype=dtype, device="cuda").normal_(std=0.02)
    z = torch.empty_like(x)
    add = milliseconds(lambda: x.add_(1.0))
    copy = milliseconds(lambda: z.copy_(x))
    row(f"{label} torch x.add_(1.0)", add, 2 * gb)
    row(f"{label} torch z.copy_(x)", copy, 2 * gb)
    normal = milliseconds(lambda: (z.normal_(), x.add_(z, alpha=1e-3)))
    randn = milliseconds(lambda: x.add_(torch.randn_like(x), alpha=1e-3))
    sign, bell = (fold_of(stream, 1) for stream in STREAMS.values())

    ms = milliseconds(lambda: gpu.advance(x, (), sign, 0))
    row(f"{label} fold 1 rademacher", ms, 2 * gb, "x.add_(1.0)", add, ">= 0.85")
    ms = milliseconds(lambda: gpu.advance(x, (), bell, 0))
    row(f"{label} fold 1 gaussian", ms, 2 * gb, "z.normal_(); x.add_(z)", normal, ">= 1.6" if size == 2 else "")
    row(f"{label} fold 1 gaussian", ms, 2 * gb, "x.add_(randn_like(x))", randn, ">= 1.6" if size == 2 else "")
    for (name, stream), limit in zip(STREAMS.items(), (60, 280), strict=True):
        program = fold_of(stream, 100)
        ms = milliseconds(lambda program=program: gpu.advance(x, (), program, 0), 5)  # type: ignore[misc]
        row(f"{label} fold 100 {name}", ms, 0, wanted=f"<= {limit} ms" if size == 2 else "")
    for name, stream in STREAMS.items():
        terms = Terms.of([1], [1e-3], stream)
        ms = milliseconds(lambda terms=terms: gpu.perturb(x, z, terms, 0))  # type: ignore[misc]
        row(f"{label} view 1 {name}", ms, 2 * gb, "z.copy_(x)", copy)
    ms = milliseconds(lambda: gpu.checksum(x))
    row(f"{label} checksum", ms, gb, "x.sum()", milliseconds(lambda: x.sum()))
    slots = tuple(torch.zeros(n, device="cuda") for _ in range(2))
    for name, stream in STREAMS.items():
        for rule in (Rule.MOMENTUM, Rule.ADAM):
            program, used = fold_of(stream, 1, rule), slots[: rule.slots]
            ms = milliseconds(lambda program=program, used=used: gpu.advance(x, used, program, 0), 5)  # type: ignore[misc]
            bytes_moved = 2 * gb + 8e-9 * n * rule.slots
            row(f"{label} {rule.name} 1 {name}", ms, bytes_moved, "add_, per byte", add * bytes_moved / (2 * gb))


def others(n: int) -> None:
    """Directions alone, rounding, and the norm of a direction."""
    z, y = torch.empty(n, device="cuda"), torch.empty(n, dtype=torch.bfloat16, device="cuda")
    normal, fill = milliseconds(z.normal_), milliseconds(lambda: z.fill_(1.0))
    ms = milliseconds(lambda: gpu.generate(z, Domain.GAUSSIAN, 1, 0))
    row("f32 generate gaussian", ms, 4e-9 * n, "z.normal_()", normal)
    ms = milliseconds(lambda: gpu.generate(z, Domain.RADEMACHER, 1, 0))
    row("f32 generate rademacher", ms, 4e-9 * n, "z.fill_(1.0)", fill)
    ms = milliseconds(lambda: gpu.round_into(y, z, 1, 0))
    row("f32 -> bf16 round_into", ms, 6e-9 * n, "y.copy_(z)", milliseconds(lambda: y.copy_(z)))
    row("squares", milliseconds(lambda: gpu.squares(1, 0, n, z.device)), 0)


def model() -> list[tuple[int, ...]]:
    """Shapes like OPT-1.3B's: 24 layers of 16 tensors and two embeddings, 1.3e9 parameters."""
    square, wide, tall = (2048, 2048), (8192, 2048), (2048, 8192)
    return [square, square, square, square, wide, tall, *[(2048,)] * 9, (8192,)] * 24 + [(50272, 2048), (2050, 2048)]


def many_tensors() -> None:
    """A model in one list, as `Params` folds it; wall time, launches included."""
    tensors = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for shape in model()]
    total = sum(t.numel() for t in tensors)
    flat = [t.view(-1) for t in tensors]
    many = gpu.listing([Piece(x, x, (), i, columns_of(t)) for i, (x, t) in enumerate(zip(flat, tensors, strict=True))])
    each = wall(lambda: torch._foreach_add_(tensors, 1.0))
    print(f"\n{len(tensors)} tensors of {total / 1e9:.2f}e9 bf16 parameters in all (wall time)")
    for name, stream in {**STREAMS, "rank1": Domain.RANK1}.items():
        one, hundred = fold_of(stream, 1), fold_of(stream, 100)
        ms = wall(lambda program=one: gpu.advance_all(many, program))  # type: ignore[misc]
        row(f"bf16 fold 1 {name}", ms, 4e-9 * total, "torch._foreach_add_", each, ">= 0.8")
        ms = wall(lambda program=hundred: gpu.advance_all(many, program), 5)  # type: ignore[misc]
        row(f"bf16 fold 100 {name}", ms, 0, wanted="<= 12 ms" if stream is Domain.RANK1 else "")
        steps = [Terms.of(range(10 * s, 10 * s + 10), [1e-4] * 10, stream) for s in range(1000)]
        rounds = Program.of(steps, list(range(1000)))
        ms = wall(lambda program=rounds: gpu.advance_all(many, program), 1)  # type: ignore[misc]
        row(f"bf16 1,000 steps of 10 {name}", ms, 0, wanted="<= 1500 ms" if stream is Domain.RANK1 else "")


def main() -> None:
    n = int(float(sys.argv[1])) if sys.argv[1:2] not in ([], ["list"]) else 1_300_000_000
    print(
        f"{datetime.date.today()}  {torch.cuda.get_device_name()}  torch {torch.__version__}  "
        f"triton {triton.__version__}  Python {platform.python_version()}  {n / 1e9:.2f}e9 parameters, one tensor\n"
    )
    print(f"{'':34} {'ms':>9} {'TB/s':>7}  {'beside':26} {'ms':>9} {'faster':>7}  wanted")
    if "list" not in sys.argv:
        for label in TYPES:
            one_tensor(label, n)
            torch.cuda.empty_cache()
        others(n)
        torch.cuda.empty_cache()
    many_tensors()


if __name__ == "__main__":
    main()
