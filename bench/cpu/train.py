"""A round of `fedzero.train` beside the packaged MNIST task: the same CNN, the same images, the same clients."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from bench.table import show

import fedzero
from fedzero.directions import Keys
from fedzero.model.params import Params
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.tasks import images
from fedzero.tasks.models import SmallCnn, initialise

CLIENTS, COHORT, ROUNDS, WARM = 20, 10, 25, 5
METHOD = {"kind": "decomfl", "rate": 1e-3, "directions": 10}


class Stopwatch(Silent):
    """Seconds of every round."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._last = 0.0

    def begin(self, *_: Any) -> None:
        self._last = time.perf_counter()

    def round(self, record: Any) -> None:
        now = time.perf_counter()
        self.times.append(now - self._last)
        self._last = now

    def best(self) -> float:
        """The median of the faster half: other work on the machine only ever adds."""
        later = sorted(self.times[WARM:])
        return later[len(later) // 4]


def packaged(folder: Path) -> float:
    table = {
        "name": "mnist",
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "algorithm": METHOD,
        "task": {"kind": "mnist"},
    }
    federation = {"clients": CLIENTS, "cohort": COHORT}
    watch = Stopwatch()
    session.start(recipes.decode(table | {"federation": federation}), folder, Environment(), watch)
    return watch.best()


def own(folder: Path) -> float:
    model, data, watch = SmallCnn(), images.load("mnist", False, None), Stopwatch()
    initialise(Params.of_module(model), Keys.of_seed(0).root)
    device = next(model.parameters()).device
    train = images.tensors(data.train_x, data.train_y, device)
    test = images.tensors(data.test_x, data.test_y, device)
    fedzero.train(
        model,
        train,
        partition="iid",
        count=CLIENTS,
        cohort=COHORT,
        loss=torch.nn.functional.cross_entropy,
        test=test,
        metrics={"accuracy": fedzero.accuracy},
        method=METHOD,
        rounds=ROUNDS,
        evaluate_every=ROUNDS,
        out=folder,
        progress=watch,
    )
    return watch.best()


def main() -> None:
    times: dict[str, list[float]] = {"packaged task": [], "fedzero.train": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(3):  # in turns, because the machine's speed changes
            times["packaged task"].append(packaged(Path(folder, f"packaged-{turn}")))
            times["fedzero.train"].append(own(Path(folder, f"own-{turn}")))
    first = min(times["packaged task"])
    rows = [(name, f"{min(found):.3f}", f"{min(found) / first:.2f}") for name, found in times.items()]
    show(f"A round of MNIST: N {CLIENTS}, m {COHORT}, P 10, batch 32", rows, ("", "s/round", "× packaged"))


if __name__ == "__main__":
    main()
