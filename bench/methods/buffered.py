"""Simulated time to an accuracy: buffered steps, synchronous rounds, and synchronous rounds with over-selection.

    python -m bench.methods.buffered --rates                 the best rate of each schedule, with seed 1
    python -m bench.methods.buffered                         what is missing of the table is run, then it is printed
    python -m bench.methods.buffered --rules                 momentum, Adam and averaging, synchronous and buffered

MNIST, 60,000 digits pooled to 14 × 14, a linear model of 1,970 parameters, 100 clients with two labels each, 10 at
work; DeComFL with 20 directions. Speeds are lognormal (σ) or those of the trace of phones; turns of a client vary by a
lognormal factor of σ = 0.3. Every run is kept as a line of --out as soon as it is done.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from bench.table import machine

import fedzero
from fedzero.api.train import criterion_of, deal
from fedzero.directions import Keys
from fedzero.engines.simulated_time import times_of
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.ledger.records import Evaluation, Round, time_of
from fedzero.ledger.store import Ledger
from fedzero.model.checkpoint import load_model
from fedzero.model.params import Params
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.tasks import images
from fedzero.tasks.models import initialise
from fedzero.tasks.own import LocalTask
from fedzero.tasks.partition import Shards
from fedzero.tasks.samples import samples

CLIENTS, AT_WORK, STEPS, EVERY = 100, 10, 130, 5
SCHEDULES: dict[str, dict[str, Any] | None] = {
    "synchronous": None,
    "over-selection": {"kind": "synchronous", "extra": 3, "deadline": 5.0},
    "buffered, K = 5": {"kind": "buffered", "buffer": 5, "at_work": AT_WORK, "oldest": 50},
    "buffered, K = 10": {"kind": "buffered", "buffer": 10, "at_work": AT_WORK, "oldest": 50},
}
CLOCKS: dict[str, dict[str, Any]] = {
    "σ 0.5": {"spread": 0.5, "jitter": 0.3},
    "σ 1": {"spread": 1.0, "jitter": 0.3},
    "σ 1.5": {"spread": 1.5, "jitter": 0.3},
    "phones": {"trace": "phones", "jitter": 0.3},
}
RATES = (0.01, 0.03, 0.1)
BEST = dict.fromkeys(SCHEDULES, 0.03)
"""Found by --rates. EVERY: steps of 10 reports between two evaluations; steps of 5 are twice as many."""
RULES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum 0.9": {"optimizer": {"kind": "momentum", "beta": 0.9}},
    "momentum 0.5": {"optimizer": {"kind": "momentum", "beta": 0.5}},
    "adam": {"optimizer": {"kind": "adam"}},
    "average": {"average": 50, "average_from": 200},
}
RULE_RATES = {"momentum 0.9": 0.1, "momentum 0.5": 0.5, "adam": 0.05}
"""Times the rate of sgd."""


@dataclass(frozen=True)
class Found:
    """times: simulated seconds of evaluations; accuracies: of them; slowest: accuracy on the data of the slowest tenth
    of the clients; everybody: on those of all; age: mean age of a report in steps; oldest: the largest."""

    times: list[float]
    accuracies: list[float]
    slowest: float
    everybody: float
    age: float
    oldest: int
    refused: int
    seconds: float

    def until(self, goal: float) -> float | None:
        """Simulated seconds until the mean of three successive evaluations has reached the goal."""
        for first in range(len(self.accuracies) - 2):
            if mean(self.accuracies[first : first + 3]) >= goal:
                return self.times[first + 2]
        return None


@cache
def digits(folder: Path) -> tuple[Any, Any]:
    data = images.load("mnist", True, folder)
    pairs = ((data.train_x, data.train_y), (data.test_x, data.test_y))
    small = [images.tensors(x, y, torch.device("cpu")) for x, y in pairs]
    return tuple((torch.nn.functional.avg_pool2d(x, 2).flatten(1), y) for x, y in small)  # type: ignore[return-value]


def run(schedule: str, clock: str, seed: int, rate: float, rule: str, steps: int, data: Path) -> Found:
    model = torch.nn.Linear(196, 10)
    initialise(Params.of_module(model), Keys.of_seed(seed).root)
    train, test = digits(data)
    parts = deal(train, Shards(), CLIENTS, None, seed)
    criterion = criterion_of(torch.nn.functional.cross_entropy, None, {"accuracy": fedzero.accuracy})
    federation: dict[str, Any] = {"clients": CLIENTS, "cohort": AT_WORK, "bound": 0}
    if (chosen := SCHEDULES[schedule]) is not None:
        federation["schedule"] = chosen
    algorithm = {"kind": "decomfl", "directions": 20, "distribution": "rademacher", "rate": rate} | RULES[rule]
    table = {
        "name": "buffered",
        "rounds": steps,
        "seed": seed,
        "evaluate_every": EVERY * AT_WORK // reports(schedule),
        "algorithm": algorithm,
        "task": {"kind": "own", "name": "digits", "batch": 64},
        "federation": federation,
        "clock": CLOCKS[clock],
        "engine": {"device": "cpu"},
    }
    recipe, began = recipes.decode(table), time.perf_counter()
    environment = Environment(functions={"digits": LocalTask(model, criterion, parts, [samples(test)])})
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # nobody needs these ledgers to be durable
    with tempfile.TemporaryDirectory(dir=memory) as place:
        session.start(recipe, Path(place) / "run", environment, Silent())
        records = [entry.record for entry in entries(Path(place) / "run")]
        found = load_model(Path(place) / "run" / MODEL)
    assert recipe.clock
    speeds = times_of(recipe.clock, Keys.of_seed(seed), CLIENTS).seconds
    right = [accuracy_of(found, part) for part in parts]
    slow = np.argsort(speeds)[-CLIENTS // 10 :].tolist()
    rounds = [record for record in records if isinstance(record, Round)]
    evaluations = [record for record in records if isinstance(record, Evaluation)]
    ages = list(ages_of(rounds))
    return Found(
        times=[0.0 if not e.round else time_of(rounds[e.round - 1]) or 0.0 for e in evaluations],
        accuracies=[e.metrics.accuracy or 0.0 for e in evaluations],
        slowest=mean(right[client] for client in slow),
        everybody=mean(right),
        age=mean(ages),
        oldest=max(ages),
        refused=sum(len(record.refused) for record in rounds),
        seconds=time.perf_counter() - began,
    )


def entries(folder: Path) -> list[Any]:
    ledger = Ledger.open(folder / LEDGER)
    try:
        return list(ledger.entries())
    finally:
        ledger.close()


def ages_of(rounds: list[Round]) -> Iterator[int]:
    """The age of every report that counted: from who was asked when."""
    asked: dict[int, int] = {}
    for record in rounds:
        asked |= dict.fromkeys(record.asked if isinstance(record.asked, tuple) else record.cohort, record.round)
        out = dict(record.refused)
        for client in record.cohort:
            if client not in out:
                yield record.round - asked[client]


def accuracy_of(tensors: dict[str, Any], part: Any) -> float:
    x, y = part.batch(np.arange(len(part)), torch.device("cpu"))
    guessed = (x @ tensors["weight"].T + tensors["bias"]).argmax(1)
    return float((guessed == y).float().mean())


def reports(schedule: str) -> int:
    """The reports of a step: all runs get the same number of them."""
    return int((SCHEDULES[schedule] or {}).get("buffer", AT_WORK))


def known(path: Path) -> dict[str, Found]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry.pop("key"): Found(**entry) for entry in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with mnist/")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--schedules", nargs="*", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--clocks", nargs="*", default=list(CLOCKS), choices=CLOCKS)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--goal", type=float, default=0.75)
    parser.add_argument("--out", type=Path, default=Path("runs/buffered.jsonl"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = [(s, c, seed, BEST[s], "sgd") for seed in given.seeds for c in given.clocks for s in given.schedules]
    if given.rates:
        wanted = [(s, "σ 1", 1, rate, "sgd") for rate in RATES for s in given.schedules]
    if given.rules:
        named = [(s, rule) for rule in RULES for s in ("synchronous", "buffered, K = 10")]
        wanted = [(s, "σ 1", seed, BEST[s] * RULE_RATES.get(r, 1.0), r) for seed in given.seeds for s, r in named]
    for schedule, clock, seed, rate, rule in wanted:
        key = f"{schedule} / {clock} / {seed} / {rate:g} / {rule} / {given.steps}"
        if key in known(given.out):
            continue
        found = run(schedule, clock, seed, rate, rule, given.steps * AT_WORK // reports(schedule), given.data)
        with given.out.open("a") as file:
            file.write(json.dumps({"key": key} | asdict(found)) + "\n")
        print(f"{key}: {mean(found.accuracies[-3:]):.3f} in {found.times[-1]:.0f}", flush=True)
    show(known(given.out), wanted, given.steps, given.goal)


def show(found: dict[str, Found], wanted: list[Any], steps: int, goal: float) -> None:
    print(f"\n{machine()}")
    print(f"schedule / clock / rate / rule: accuracy, slowest tenth, all clients' data, time to {goal:.0%}, mean age")
    groups = list(dict.fromkeys((s, c, rate, rule) for s, c, _, rate, rule in wanted))
    for s, c, rate, rule in groups:
        seeds = [seed for a, b, seed, r, k in wanted if (a, b, r, k) == (s, c, rate, rule)]
        runs = [found[f"{s} / {c} / {seed} / {rate:g} / {rule} / {steps}"] for seed in seeds]
        times = [run.until(goal) for run in runs]
        reached = [t for t in times if t is not None]
        accuracy, slowest = mean(mean(r.accuracies[-5:]) for r in runs), mean(r.slowest for r in runs)
        reach = f"{mean(reached) if reached else float('nan'):.1f} ({len(reached)} of {len(runs)})"
        age, oldest = mean(r.age for r in runs), max(r.oldest for r in runs)
        print(
            f"{s} / {c} / {rate:g} / {rule}: {accuracy:.3f}, {slowest:.3f}, {mean(r.everybody for r in runs):.3f}, "
            f"{reach}, {age:.2f} (at most {oldest}), all {mean(r.times[-1] for r in runs):.0f}, "
            f"refused {mean(r.refused for r in runs):.0f}, {mean(r.seconds for r in runs):.0f} s"
        )


if __name__ == "__main__":
    main()
