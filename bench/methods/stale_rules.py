"""What the age of reports does to momentum, Adam and averaging: the loss on a quadratic, at the best of some rates.

    python -m bench.methods.stale_rules          what is missing of the table is run, then it is printed

A quadratic of 50 dimensions, 40 clients with optima of their own and noise, 10 at work; DeComFL with 10 directions.
Every run gets 1,000 reports. Steps of 10 reports are synchronous, or buffered with speeds of σ = 1; steps of 2 reports
have replies that are several steps old.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from bench.methods.buffered import ages_of, entries
from bench.table import machine

from fedzero.ledger.records import Evaluation, Round
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

REPORTS = 1000
SCHEDULES: dict[str, tuple[int, dict[str, Any] | None]] = {
    "synchronous": (10, None),
    "K = 10": (10, {"kind": "buffered", "buffer": 10, "oldest": 100}),
    "K = 2": (2, {"kind": "buffered", "buffer": 2, "oldest": 100}),
}
"""Reports of a step, and the schedule."""
RATES = (0.002, 0.004, 0.008, 0.016)
RULES: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {
    "sgd": (RATES, {}),
    "momentum 0.9": (RATES, {"optimizer": {"kind": "momentum", "beta": 0.9}}),
    "momentum 0.5": (RATES, {"optimizer": {"kind": "momentum", "beta": 0.5}}),
    "adam": ((0.01, 0.02, 0.05, 0.1), {"optimizer": {"kind": "adam"}}),
    "average 20": (RATES, {"average": 20}),
}
"""Rates, and keys of the method."""


def run(schedule: str, rule: str, rate: float, seed: int) -> tuple[float, float]:
    """(loss of the last evaluations, mean age of a report)"""
    reports, chosen = SCHEDULES[schedule]
    federation: dict[str, Any] = {"clients": 40, "cohort": 10, "bound": 0}
    steps = REPORTS // reports
    table = {
        "name": "stale",
        "rounds": steps,
        "seed": seed,
        "evaluate_every": steps // 20,
        "algorithm": {"kind": "decomfl", "directions": 10, "distribution": "rademacher", "rate": rate} | RULES[rule][1],
        "task": {"kind": "quadratic", "dimension": 50, "noise": 1.0},
        "federation": federation | ({} if chosen is None else {"schedule": chosen}),
        "clock": {"spread": 1.0, "jitter": 0.3},
        "engine": {"device": "cpu"},
    }
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # nobody needs these ledgers to be durable
    with tempfile.TemporaryDirectory(dir=memory) as place:
        session.start(recipes.decode(table), Path(place) / "run", Environment(), Silent())
        records = [entry.record for entry in entries(Path(place) / "run")]
    losses = [record.metrics.loss for record in records if isinstance(record, Evaluation)]
    return mean(losses[-5:]), mean(ages_of([record for record in records if isinstance(record, Round)]))


def known(path: Path) -> dict[str, tuple[float, float]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["key"]: (entry["loss"], entry["age"]) for entry in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/stale-rules.jsonl"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        for rule, (rates, _) in RULES.items():
            for schedule, rate in ((schedule, rate) for schedule in SCHEDULES for rate in rates):
                key = f"{schedule} / {rule} / {rate:g} / {seed}"
                if key in known(given.out):
                    continue
                loss, age = run(schedule, rule, rate, seed)
                with given.out.open("a") as file:
                    file.write(json.dumps({"key": key, "loss": loss, "age": age}) + "\n")
    show(known(given.out), given.seeds)


def show(found: dict[str, tuple[float, float]], seeds: list[int]) -> None:
    print(f"\n{machine()}\nloss by rate (mean of seeds); mean age")
    for rule, (rates, _) in RULES.items():
        for schedule in SCHEDULES:
            rows = {rate: [found[f"{schedule} / {rule} / {rate:g} / {seed}"] for seed in seeds] for rate in rates}
            losses = ", ".join(f"{rate:g}: {mean(loss for loss, _ in row):.4g}" for rate, row in rows.items())
            print(f"{rule} / {schedule}: {losses}; age {mean(age for row in rows.values() for _, age in row):.1f}")


if __name__ == "__main__":
    main()
