"""How long a patch of a language model takes to be applied on a CPU.

    PYTHONPATH=src python -m bench.language.patch --data DIR              rank one, 200 rounds of 32 central pairs
    PYTHONPATH=src python -m bench.language.patch --data DIR gaussian --rounds 10

A run of e3-sst2 with other directions and step (docs/results/rank-one.md), except that the losses clients report are
drawn and no model is evaluated: what a patch costs depends on the number of its terms, not on their values. Then
`fedzero patch apply` in a process of its own, and the same for a patch of one round: to start a process, and to read
and write the model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench.table import show

from fedzero.oracles.contract import Metrics
from fedzero.oracles.language import LanguageObjective
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

DIRECTIONS = 32


def drawn(rounds: int, distribution: str, data: Path, folder: Path) -> Any:
    """A run whose losses are random numbers."""
    random = np.random.default_rng(0)

    def losses(self: Any, base: Any, points: Any, batches: Any, basis: Any = None) -> Any:
        return random.normal(0.5, 0.01, (len(batches), len(points)))

    LanguageObjective.losses = losses  # type: ignore[method-assign]
    LanguageObjective.evaluate = lambda self, params: Metrics(0.5)  # type: ignore[method-assign]
    method = [f'distribution="{distribution}"', f"directions={DIRECTIONS}", "radius=1e-2", 'step="rms"', "rate=3e-3"]
    changes = [
        f"rounds={rounds}",
        f"evaluate_every={rounds}",
        "task.batch=64",
        *(f"algorithm.{each}" for each in method),
    ]
    return session.start(recipes.load("e3-sst2", changes), folder, Environment(data), Silent())


def seconds(*arguments: object) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fedzero", *map(str, arguments)], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("distribution", nargs="?", default="rank1", choices=["rank1", "rademacher", "gaussian"])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--data", type=Path, required=True, help="folder with the datasets")
    given = parser.parse_args()
    times = []
    with tempfile.TemporaryDirectory() as name:
        for rounds in (1, given.rounds):
            run, patch, tuned = (Path(name) / f"{rounds}{suffix}" for suffix in ("", ".patch", "-tuned"))
            made = drawn(rounds, given.distribution, given.data, run)
            seconds("patch", "export", run, "--data", given.data, "--out", patch)
            times.append(seconds("patch", "apply", patch, "--base", "smollm2-135m", "--out", tuned))
        size = patch.stat().st_size
    rows = [
        ("terms", f"{given.rounds * DIRECTIONS:,}", ""),
        ("parameters that are trained", f"{made.parameters:,}", ""),
        ("the patch, bytes", f"{size:,}", ""),
        ("seconds to apply it", f"{times[1]:.1f}", "≤ 60"),
        ("the same of one round", f"{times[0]:.1f}", ""),
    ]
    show(f"A patch of {given.rounds} rounds, {given.distribution}", rows, ("", "", "goal"))


if __name__ == "__main__":
    main()
