"""The core of thin clients beside PyTorch and the numba kernels, on one thread, in the same run.

    PYTHONPATH=src:. python -m bench.clients.core [repetitions]

40 points of rank one (20 central pairs) of the demo's perceptron on 320 rows, and folds of its 159,010 weights: by
torch and numba, by the core compiled for this machine and for any machine of its kind, and in WebAssembly by node, with
SIMD and without. Processor time, since a shared machine interrupts whoever runs: the ways take turns, and of each the
least of all runs counts. Then sizes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench.table import show

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import Points
from fedzero.oracles.module import ModuleObjective
from fedzero.tasks.models import Perceptron

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "clients" / "core"
sys.path.insert(0, str(CORE))

import native  # noqa: E402

ROWS, DIRECTIONS, ROWS_AT_ONCE, REPEATS = 320, 20, 64, 10
STREAMS = {"rademacher": Domain.RADEMACHER, "rank1": Domain.RANK1}
FOLDS = tuple((name, count) for name in STREAMS for count in (1, 10))
Figures = dict[str, float]


def numbers(*shape: int, scale: float) -> np.ndarray:
    """As core.mjs makes them."""
    return (((37 * np.arange(np.prod(shape))) % 251 - 125) * scale).astype(np.float32).reshape(shape)


def start() -> dict[str, np.ndarray]:
    shapes = {name: tuple(p.shape) for name, p in Perceptron().named_parameters()}
    return {name: numbers(*shape, scale=2.0**-12) for name, shape in shapes.items()}


X, Y = numbers(ROWS, 1, 1, 784, scale=2.0**-7), (np.arange(ROWS) % 10).astype(np.uint8)
KEYS = [1000 + p for p in range(DIRECTIONS) for _ in (0, 1)]
NUMBERS = [1e-3, -1e-3] * DIRECTIONS


def least(work: Callable[[], object]) -> float:
    """Milliseconds of processor time of the quickest of some runs."""
    times = []
    for _ in range(3 + REPEATS):
        began = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - began))
    return min(times[3:])


def of_fedzero() -> Callable[[], Figures]:
    module = Perceptron()
    module.load_state_dict({name: torch.from_numpy(x) for name, x in start().items()})
    params, objective = Params.of_module(module), ModuleObjective(module, [])
    asked = Points("bench", tuple(Terms.of([k], [c], Domain.RANK1) for k, c in zip(KEYS, NUMBERS, strict=True)))
    batch = torch.from_numpy(X), torch.from_numpy(Y).long()
    moved = Params({name: torch.from_numpy(x) for name, x in start().items()})

    def measured() -> Figures:
        found = {"points": least(lambda: objective.losses(params, asked, [batch]))}
        found["loss"] = float(objective.losses(params, asked, [batch])[0, 0])
        for name, count in FOLDS:
            terms = Terms.of(range(1000, 1000 + count), [1e-3] * count, STREAMS[name])
            found[f"{name} {count}"] = least(lambda terms=terms: moved.fold(terms))
        return found

    return measured


def of_native(flags: tuple[str, ...]) -> Callable[[], Figures]:
    core = native.Core(native.build(flags))
    model = native.Model(start())
    layers = [(0, 200, 0, 0), (2, 0, 0, 0), (0, 10, 0, 0)]
    network = native.Networked(core, native.Model(start()), layers, X, Y, ROWS_AT_ONCE)

    def measured() -> Figures:
        found = {"points": least(lambda: network.values(native.RANK_ONE, KEYS, NUMBERS))}
        found["loss"] = float(network.values(native.RANK_ONE, KEYS, NUMBERS)[0])
        for name, count in FOLDS:
            steps = [(list(range(1000, 1000 + count)), [1e-3] * count)]
            stream = int(STREAMS[name])
            work = lambda steps=steps, stream=stream: core.advance(model, stream, steps)  # noqa: E731
            found[f"{name} {count}"] = least(work)
        return found

    return measured


def of_wasm(module: Path) -> Callable[[], Figures]:
    command = ["node", str(HERE / "core.mjs"), str(module), str(ROWS_AT_ONCE), str(REPEATS)]
    return lambda: json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    torch.set_num_threads(1)
    build = Path(tempfile.mkdtemp())
    make = ["make", "-s", "-C", str(CORE), f"BUILD={build}"]
    subprocess.run([*make, "wasm"], check=True)
    ways = {
        "fedzero": of_fedzero(),
        "core, this processor": of_native(("-march=native",)),
        "core, any processor": of_native(()),
        "core, wasm": of_wasm(build / "fedzero_core.wasm"),
        "core, wasm without SIMD": of_wasm(build / "fedzero_core_scalar.wasm"),
    }
    found: dict[str, Figures] = {}
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        for name, measured in ways.items():
            now = measured()
            found[name] = {what: min(value, found.get(name, now)[what]) for what, value in now.items()}
    base = found["fedzero"]
    rows = [
        (n, f"{f['points']:.1f}", f"{base['points'] / f['points']:.2f}", f"{f['loss']:.6f}") for n, f in found.items()
    ]
    show(
        f"{2 * DIRECTIONS} points of rank one, {ROWS} rows, 784-200-10, one thread", rows, ("", "ms", "× torch", "loss")
    )
    rows = []
    for name, figures in found.items():
        cells = []
        for fold, count in FOLDS:
            time = figures[f"{fold} {count}"]
            cells += [f"{159.010 * count / time:,.0f}", f"{base[f'{fold} {count}'] / time:.2f}"]
        rows.append((name, *cells))
    header = [cell for fold, count in FOLDS for cell in (f"{fold}, {count}", "× numba")]
    show("Folds of 159,010 weights, million numbers · terms a second, by number of terms", rows, ("", *header))
    print(subprocess.run([*make, "sizes"], check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
