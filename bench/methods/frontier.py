"""Methods of the family beside DeComFL on the packaged MNIST: python -m bench.methods.frontier [NAME …] [--rounds N] …

    for every method: the step size with the lowest loss on held-out rows of the training set (a grid of ratios of 2,
    widened until the best lies inside), then ordinary runs with three other seeds, on all training rows, and their
    accuracy and loss on the test set: mean, and from the lowest to the highest

All have the same rounds, clients, mini-batches and number of directions, and but for `feedsign-1` the same queries;
bytes are those of whole messages, a client's turn, up and down. One thread.

`--model sst2 --data DIR` is SmolLM2-135M on SST-2, as recipe e3-sst2 has it, with directions of rank one (HiSo, which
needs dense ones: ±1), judged by 1,000 held-out sentences, one seed and `--tuning-rounds`; for a GPU. `--rate` takes a
step size that was found before in the place of the search.
"""

from __future__ import annotations

import argparse
import gzip
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from bench.table import show
from msgspec import to_builtins
from torch import nn

import fedzero
from fedzero.model.params import Params
from fedzero.oracles.module import ModuleObjective
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.runs.summary import Summary
from fedzero.tasks import images
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero.tasks.models import initialise
from fedzero.tasks.partition import Iid, split

HELD_OUT = 800
"""Rows of the 4,000 that tuning is judged by."""
WIDEST = 12
"""Step sizes tried for a method, at most."""
TUNED_WITH, SEEDS = (11, 12), (1, 2, 3)
SST2_TITLE = "SmolLM2-135M, 8 clients, 2 a round, batch 128, μ 3e-3, rank one"

SENTENCES = 1000
"""Rows of SST-2's training set that tuning is judged by."""

Kind = Literal["linear", "mlp"]


class Rows(Task, tag="frontier-rows"):
    """Digits of 14 × 14 pixels: a linear model of 1,970 weights, or a perceptron 196–32–10 of 6,634."""

    model: Kind = "linear"
    batch: int = 32
    tuning: bool = False
    """Train on all but the held-out rows, and evaluate on those; else all of them, and the test set."""

    def build(self, clients: int, context: BuildContext) -> Problem:
        data = images.load_subset()
        x, y = images.tensors(data.train_x, data.train_y, context.device)
        test = images.tensors(data.test_x, data.test_y, context.device)
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
        x, y = small(x[order]), y[order]
        pairs = (small(test[0]), test[1])
        if self.tuning:
            x, y, pairs = x[HELD_OUT:], y[HELD_OUT:], (x[:HELD_OUT], y[:HELD_OUT])
        wide = nn.Sequential(nn.Linear(196, 32), nn.ReLU(), nn.Linear(32, 10))
        module = nn.Linear(196, 10) if self.model == "linear" else wide
        params = Params.of_module(module)
        initialise(params, context.keys.root)
        parts = split(Iid(), y.numpy(), clients, context.keys)
        shards = images.LabelledShards(x, y, parts, self.batch)
        return Problem(params, ModuleObjective(module, [pairs], together=True), shards)


def small(x: torch.Tensor) -> torch.Tensor:
    """(n, 196)"""
    return nn.functional.avg_pool2d(x, 2).flatten(1)


Recipe = dict[str, Any]


def constant(rate: float, rounds: int) -> Any:
    return rate


def falling(rate: float, rounds: int) -> Any:
    """Constant for half of the rounds, then down to a tenth."""
    return {"kind": "piecewise", "points": [[0, rate], [rounds // 2, rate], [rounds, rate / 10]]}


ONCE = -1
"""Stands for half of the rounds."""
METHODS: dict[str, tuple[Recipe, float, Callable[[float, int], Any]]] = {
    "decomfl": ({"kind": "decomfl"}, 3.2e-2, constant),
    "decomfl, falling": ({"kind": "decomfl"}, 3.2e-2, falling),
    "fedkseed": ({"kind": "fedkseed", "local_steps": 1, "pool": 1024}, 3.2e-2, constant),
    "fedkseed-pro": ({"kind": "fedkseed-pro", "local_steps": 1, "pool": 1024}, 3.2e-2, constant),
    "feedsign": ({"kind": "feedsign"}, 3.2e-2, constant),
    "feedsign-1": ({"kind": "feedsign", "directions": 1}, 8e-3, constant),
    "hiso": ({"kind": "hiso"}, 3.2e-2, constant),
    "normalised": ({"kind": "decomfl", "step": "normalised"}, 3.2e-2, constant),
    "rms": ({"kind": "decomfl", "step": "rms"}, 1.6e-2, constant),
    "rms, falling": ({"kind": "decomfl", "step": "rms"}, 1.6e-2, falling),
    "average": ({"kind": "decomfl", "average": 20}, 3.2e-2, constant),
    "average, falling": ({"kind": "decomfl", "average": 20}, 3.2e-2, falling),
    "rms, average": ({"kind": "decomfl", "step": "rms", "average": 20}, 1.6e-2, constant),
    "average once": ({"kind": "decomfl", "average": ONCE, "average_from": ONCE}, 3.2e-2, constant),
    "average once, falling": ({"kind": "decomfl", "average": ONCE, "average_from": ONCE}, 3.2e-2, falling),
    "rms, average once": ({"kind": "decomfl", "step": "rms", "average": ONCE, "average_from": ONCE}, 1.6e-2, constant),
}
"""The table of a method, the step size that the search begins with, and the schedule."""
SST2: dict[str, tuple[Recipe, float, Callable[[float, int], Any]]] = {
    "decomfl": ({"kind": "decomfl"}, 4e-3, constant),
    "fedkseed": ({"kind": "fedkseed", "local_steps": 1, "pool": 4096}, 4e-3, constant),
    "fedkseed-pro": ({"kind": "fedkseed-pro", "local_steps": 1, "pool": 4096}, 4e-3, constant),
    "feedsign": ({"kind": "feedsign"}, 2e-3, constant),
    "hiso": ({"kind": "hiso", "distribution": "rademacher"}, 1e-3, constant),
    "lozo": ({"kind": "decomfl", "hold": 50}, 4e-3, constant),
    "normalised": ({"kind": "decomfl", "step": "normalised"}, 2e-3, constant),
    "rms": ({"kind": "decomfl", "step": "rms"}, 1e-3, constant),
    "average once": ({"kind": "decomfl", "average": ONCE, "average_from": ONCE}, 4e-3, constant),
}


def methods(how: argparse.Namespace) -> dict[str, tuple[Recipe, float, Callable[[float, int], Any]]]:
    return SST2 if how.model == "sst2" else METHODS


def sentences(data: Path, tuning: bool) -> Path:
    """The folder of SST-2's rows; for tuning one whose test set was drawn out of the training set."""
    if not tuning:
        return data
    made = Path(tempfile.gettempdir()) / "fedzero-frontier-held-out"
    if not (made / "sst2").exists():
        lines = gzip.decompress((data / "sst2" / "train.jsonl.gz").read_bytes()).splitlines(keepends=True)
        order = np.random.default_rng(0).permutation(len(lines))
        folder = Path(tempfile.mkdtemp(dir=made.parent))
        for name, part in (("train", order[SENTENCES:]), ("dev", order[:SENTENCES])):
            (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[i] for i in part), 1))
        made.mkdir(exist_ok=True)
        try:
            folder.rename(made / "sst2")  # at once, as other processes may look for it
        except OSError:  # one of them was first
            shutil.rmtree(folder)
    return made


def played_on_sst2(name: str, rate: float, seed: int, tuning: bool, how: argparse.Namespace) -> Summary:
    given, _, schedule = SST2[name]
    rounds = how.tuning_rounds if tuning else how.rounds
    table = {key: rounds // 2 if value == ONCE else value for key, value in given.items()}
    base: Any = to_builtins(recipes.load("e3-sst2"))
    sampling = {"directions": how.directions, "difference": "central", "distribution": "rank1", "radius": 3e-3}
    recipe = recipes.decode(
        base
        | {"rounds": rounds, "evaluate_every": rounds, "seed": seed}
        | {"algorithm": sampling | table | {"rate": schedule(rate, rounds)}}
        | {"filters": [] if given["kind"] == "feedsign" else base["filters"]}
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(sentences(how.data, tuning))
        return session.start(recipe, Path(folder) / "run", environment, Silent())


def played(name: str, rate: float, seed: int, tuning: bool, how: argparse.Namespace) -> Summary:
    if how.model == "sst2":
        return played_on_sst2(name, rate, seed, tuning, how)
    given, _, schedule = METHODS[name]
    table = {key: how.rounds // 2 if value == ONCE else value for key, value in given.items()}
    sampling = {"directions": how.directions, "difference": "central", "distribution": "rademacher", "radius": 1e-3}
    recipe = recipes.decode(
        {
            "name": "frontier",
            "rounds": how.rounds,
            "evaluate_every": how.rounds,
            "seed": seed,
            "algorithm": sampling | table | {"rate": schedule(rate, how.rounds)},
            "task": {"kind": "frontier-rows", "model": how.model, "tuning": tuning},
            "federation": {"clients": 10, "cohort": 5},
            "engine": {"kind": "local", "device": "cpu"},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        return session.start(recipe, Path(folder) / "run", Environment(), Silent())


def tuned(name: str, how: argparse.Namespace) -> tuple[float, int]:
    """(the step size with the lowest mean loss on held-out rows, how many were tried)."""
    losses: dict[int, float] = {}
    first, seeds = methods(how)[name][1], TUNED_WITH[:1] if how.model == "sst2" else TUNED_WITH

    def loss(power: int) -> float:
        if power not in losses:
            done = [played(name, first * 2.0**power, seed, True, how) for seed in seeds]
            found = [math.inf if run.final_loss is None else run.final_loss for run in done]
            losses[power] = sum(found) / len(found)
            if how.verbose:
                print(name, f"{first * 2.0**power:.3g}", f"held-out loss {losses[power]:.4f}", flush=True)
        return losses[power]

    best = 0
    while len(losses) < WIDEST:
        better = min((best - 1, best, best + 1), key=loss)
        if better == best:
            break
        best = better
    return first * 2.0**best, len(losses)


def row(name: str, how: argparse.Namespace) -> tuple[str, ...]:
    rate, tried = (how.rate, 0) if how.rate is not None else tuned(name, how)
    runs = [played(name, rate, seed, False, how) for seed in how.seeds]
    turns = how.rounds * (2 if how.model == "sst2" else 5)

    def of(values: Sequence[float | None], scale: float, digits: int) -> str:
        known = [math.nan if value is None else value * scale for value in values]
        return f"{np.mean(known):.{digits}f} ({min(known):.{digits}f}–{max(known):.{digits}f})"

    if how.verbose:
        print(name, *(f"{run.final_accuracy:.4f} {run.final_loss:.4f}" for run in runs), sep=" | ", flush=True)
    return (
        name,
        f"{rate:.3g} of {tried}" if tried else f"{rate:.3g}, given",
        of([run.final_accuracy for run in runs], 100, 1),
        of([run.final_loss for run in runs], 1, 3),
        f"{runs[0].queries / turns:g}",
        f"{np.mean([run.bytes_up_per_turn for run in runs]):.0f}",
        f"{np.mean([run.bytes_down_per_turn for run in runs]):.0f}",
        f"{np.mean([run.seconds for run in runs]):.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(METHODS)}; SST-2: of {', '.join(SST2)}; none: all"
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--tuning-rounds", type=int, default=60, help="of the search on SST-2")
    parser.add_argument("--rate", type=float, help="step size of all methods named, instead of a search")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of the runs after the search")
    parser.add_argument("--data", type=Path, help="folder with the datasets, for SST-2")
    parser.add_argument("--directions", type=int, default=10)
    parser.add_argument("--model", choices=["linear", "mlp", "sst2"], default="linear")
    parser.add_argument("--verbose", action="store_true", help="print losses and rows as they come")
    how = parser.parse_args()
    if how.model == "sst2" and how.data is None:
        parser.error("--model sst2 needs --data, the folder that has sst2/train.jsonl.gz")
    if strange := sorted(set(how.names) - methods(how).keys()):
        parser.error(f"{strange[0]}: with --model {how.model} there are {', '.join(methods(how))}")
    torch.set_num_threads(1)
    fedzero.register(Rows)
    rows = []
    for name in how.names or methods(how):
        rows.append(row(name, how))
        if how.verbose:
            print(*rows[-1], sep=" | ", flush=True)
    sampling = f"P = {how.directions}, central"
    what = "MNIST (4,000 rows of 14 × 14), 10 clients, 5 a round, batch 32, μ 1e-3, ±1"
    title = f"{SST2_TITLE if how.model == 'sst2' else what}, {how.model}, {how.rounds} rounds, {sampling}"
    show(title, rows, ("method", "step size", "test accuracy %", "test loss", "queries", "B up", "B down", "s a run"))


if __name__ == "__main__":
    main()
