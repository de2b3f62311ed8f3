"""What rules withstand: MNIST, a fifth of the clients attack, accuracy after training beside that without attackers.

    python -m bench.methods.robustness                 what is missing of the table is run, then the table is printed
    python -m bench.methods.robustness --method fedavg

The packaged digits, 14 × 14, a linear model of 1,970 parameters; 20 clients, all of them in every round, 4 of them
attack. Every run is kept as a line of --out as soon as it is done.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from bench.table import machine

import fedzero
from fedzero.api.train import criterion_of, deal
from fedzero.directions import Keys
from fedzero.model.params import Params
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.tasks import images
from fedzero.tasks.models import initialise
from fedzero.tasks.own import LocalTask
from fedzero.tasks.partition import Dirichlet
from fedzero.tasks.samples import samples

CLIENTS, BATCH, SEEDS = 20, 16, (1, 2, 3)
METHODS: dict[str, tuple[int, dict[str, Any]]] = {
    "decomfl": (
        200,
        {
            "kind": "decomfl",
            "directions": 20,
            "distribution": "rademacher",
            "rate": {"kind": "piecewise", "points": [[0, 6e-2], [120, 6e-2], [200, 3e-3]]},
            "optimizer": {"kind": "momentum", "beta": 0.9},
        },
    ),
    "fedavg": (60, {"kind": "fedavg", "rate": 0.3}),
}
"""Rounds, and the method."""
ATTACKS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "sign-flip": {"kind": "sign-flip"},
    "sign-flip ×10": {"kind": "sign-flip", "factor": 10.0},
    "scaling ×100": {"kind": "scaling", "factor": 100.0},
    "constant": {"kind": "constant", "value": 100.0},
    "little-is-enough": {"kind": "little-is-enough", "z": 1.5},
    "label-flip": {"kind": "label-flip"},
}
TRIMMED = {"kind": "trimmed-mean", "fraction": 0.2}
RULES: dict[str, tuple[float, list[dict[str, Any]]]] = {
    "mean": (0.0, []),
    "bound 1.5": (1.5, []),
    "bound 2": (2.0, []),
    "bound 3": (3.0, []),
    "median": (0.0, [{"kind": "median"}]),
    "trimmed-mean": (0.0, [TRIMMED]),
    "krum": (0.0, [{"kind": "krum"}]),
    "multi-krum": (0.0, [{"kind": "multi-krum"}]),
    "nnm + trimmed": (0.0, [{"kind": "nnm"}, TRIMMED]),
}
"""`federation.bound`, and the filters."""


def digits() -> tuple[Any, Any]:
    """Training and test digits, pooled to 14 × 14."""
    data = images.load("mnist", False, None)
    pairs = ((data.train_x, data.train_y), (data.test_x, data.test_y))
    small = [images.tensors(x, y, torch.device("cpu")) for x, y in pairs]
    return tuple((torch.nn.functional.avg_pool2d(x, 2).flatten(1), y) for x, y in small)  # type: ignore[return-value]


def accuracy(method: str, attack: str, rule: str, seed: int, partition: str) -> tuple[float, int]:
    return trained(method, ATTACKS[attack], RULES[rule], seed, partition)


def trained(
    method: str,
    attack: dict[str, Any] | None,
    rule: tuple[float, list[dict[str, Any]]],
    seed: int,
    partition: str = "iid",
    cohort: int = CLIENTS,
    batch: int = BATCH,
) -> tuple[float, int]:
    """(accuracy on the test digits, replies that were shortened)"""
    (rounds, algorithm), (bound, filters) = METHODS[method], rule
    model = torch.nn.Linear(196, 10)
    initialise(Params.of_module(model), Keys.of_seed(seed).root)
    train, test = digits()
    how = "iid" if partition == "iid" else Dirichlet(float(partition))
    criterion = criterion_of(torch.nn.functional.cross_entropy, None, {"accuracy": fedzero.accuracy})
    material = LocalTask(model, criterion, deal(train, how, CLIENTS, None, seed), [samples(test)])
    table = {
        "name": "robustness",
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": rounds,
        "algorithm": algorithm,
        "task": {"kind": "own", "name": "digits", "batch": batch},
        "filters": filters,
        "federation": {"clients": CLIENTS, "cohort": cohort, "bound": bound},
        "engine": {"device": "cpu"} | ({} if attack is None else {"attack": attack}),
    }
    environment = Environment(functions={"digits": material})
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # nobody needs these ledgers to be durable
    with tempfile.TemporaryDirectory(dir=memory) as folder, np.errstate(all="ignore"):
        found = session.start(recipes.decode(table), Path(folder) / "run", environment, Silent())
    return found.final_accuracy or 0.0, found.bounded


def known(path: Path) -> dict[str, float]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["key"]: entry["accuracy"] for entry in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=METHODS, default="decomfl")
    parser.add_argument("--partition", default="iid", help='"iid", or α of a Dirichlet distribution over labels')
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=Path("runs/robustness.jsonl"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = [(a, r, s) for s in given.seeds for a in given.attacks for r in given.rules]
    for number, (attack, rule, seed) in enumerate(wanted, 1):
        key = f"{given.method} {given.partition} / {attack} / {rule} / {seed}"
        if key in known(given.out):
            continue
        began = time.perf_counter()
        found, shortened = accuracy(given.method, attack, rule, seed, given.partition)
        entry = {"key": key, "accuracy": found, "shortened": shortened, "seconds": time.perf_counter() - began}
        with given.out.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(f"{number}/{len(wanted)} {key}: {found:.1%}, {shortened} shortened, {entry['seconds']:.1f} s", flush=True)
    results = known(given.out)
    print(f"\n{given.method}, {given.partition}, mean accuracy of {len(given.seeds)} seeds · {machine()}\n")
    print("| | " + " | ".join(given.attacks) + " |\n|---" + "|---" * len(given.attacks) + "|")
    for rule in given.rules:
        cells = [
            mean(results[f"{given.method} {given.partition} / {a} / {rule} / {s}"] for s in given.seeds)
            for a in given.attacks
        ]
        print(f"| {rule} | " + " | ".join(f"{100 * cell:.1f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
