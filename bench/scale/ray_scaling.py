"""A round on 1, 2, 4, … workers of a Ray of this machine's own, beside the local engine in the same run.

    python -m bench.scale.ray_scaling [--workers 1,2,4,8,16] [--slices 1,3] [--rounds 20] [--repeats 3] [--only MLP]

E1's round is as in bench/cpu/e1_round.py (CNN of 28,938 weights, MNIST, DeComFL with P 10, batch 32), with its cohort
of 10 and with one of 80, of which 16 workers get equal slices; the MLP has a million weights, P 5, batch 16, a cohort
of 80.
Workers have one thread each. The local engine is measured with one thread, by which `efficiency` goes (speed-up over
it, divided by the number of workers), and with one for every core. All ways take turns, `repeats` times; medians of all
rounds but the first few of a run. Needs the library and Ray, nothing of the command line.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bench.table import show
from torch import nn

import fedzero
from fedzero.engines.ray import Ray
from fedzero.engines.ray.on_ray import keeping
from fedzero.runs.progress import Silent

WARM = 3
"""First rounds of a run, which are not counted."""
CLIENTS = 160

Problem = Callable[[Any, int, Path, Silent], object]
"""(engine, rounds, folder, watch): a whole run"""


class Clock(Silent):
    """Seconds of every round, without those of evaluations."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def phase(self, what: str) -> None:
        self._last = time.perf_counter()

    def evaluation(self, record: Any) -> None:
        self._last = time.perf_counter()

    def round(self, record: Any) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


def e1(cohort: int) -> Problem:
    def run(engine: Any, rounds: int, folder: Path, watch: Silent) -> object:
        table = {
            "name": "e1-round",
            "rounds": rounds,
            "evaluate_every": rounds,
            "algorithm": {"kind": "decomfl", "rate": 1e-3, "directions": 10},
            "task": {"kind": "mnist"},
            "federation": {"clients": max(100, cohort), "cohort": cohort},
            "engine": {"device": "cpu"},
        }
        return fedzero.run(table, engine=engine, out=folder, progress=watch)

    return run


def mlp(cohort: int = 80, samples: int = 16) -> Problem:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((CLIENTS, samples, 784)).astype(np.float32)
    y = generator.integers(0, 10, (CLIENTS, samples))
    data = list(zip(x, y, strict=True))

    def run(engine: Any, rounds: int, folder: Path, watch: Silent) -> object:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 200), nn.ReLU(), nn.Linear(200, 10))
        return fedzero.train(
            model,
            data,
            loss=nn.functional.cross_entropy,
            method={"kind": "decomfl", "rate": 1e-3, "directions": 5},
            rounds=rounds,
            cohort=cohort,
            batch=samples,
            test=data[0],
            evaluate_every=rounds,
            engine=engine,
            out=folder,
            progress=watch,
        )

    return run


def measured(problem: Problem, ways: dict[str, tuple[Any, int]], rounds: int, repeats: int) -> dict[str, float]:
    """Seconds of a round, by way: (engine, threads of this process)."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, (engine, threads) in ways.items():
            clock = Clock()
            torch.set_num_threads(threads)
            with tempfile.TemporaryDirectory() as folder:
                problem(engine, WARM + rounds, Path(folder) / "run", clock)
            found[way] += clock.seconds[WARM:]
    return {way: median(seconds) for way, seconds in found.items()}


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", default=",".join(str(w) for w in (1, 2, 4, 8, 16) if w <= cores))
    parser.add_argument("--slices", default="1", help="of a cohort for each worker, one number or several")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="problems with this in their names")
    options = parser.parse_args()
    counts = [int(count) for count in options.workers.split(",")]
    ways: dict[str, tuple[Any, int]] = {"local, 1 thread": ("local", 1), f"local, {cores} threads": ("local", cores)}
    for share in map(int, options.slices.split(",")):
        more = f", {share} slices each" if share > 1 else ""
        engines = [{"kind": "ray", "workers": w, "slices": share} for w in counts]
        ways |= {f"ray, {w} worker{'s' * (w > 1)}{more}": (e, cores) for w, e in zip(counts, engines, strict=True)}
    problems = {
        "E1's round, cohort of 10": e1(10),
        "E1's round, cohort of 80": e1(80),
        "MLP, 987,210 weights, cohort of 80": mlp(),
    }
    with keeping(Ray(workers=max(counts), device="cpu")):
        for name, problem in [each for each in problems.items() if options.only in each[0]]:
            times = measured(problem, ways, options.rounds, options.repeats)
            one, many = list(times.values())[:2]
            rows = []
            used = (1, cores, *counts * len(options.slices.split(",")))
            for (way, seconds), w in zip(times.items(), used, strict=True):
                figures = f"{1e3 * seconds:.1f}", f"{one / seconds:.2f}", f"{one / seconds / w:.2f}"
                rows.append((way, *figures, f"{seconds / many:.2f}"))
            show(name, rows, ("", "ms/round", "speed-up", "efficiency", f"× local, {cores} threads"))


if __name__ == "__main__":
    main()
