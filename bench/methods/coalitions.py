"""What rules withstand when the attackers know the rule and everybody's numbers: MNIST, accuracy after training.

    python -m bench.methods.coalitions                   what is missing of the table is run, then the table is printed
    python -m bench.methods.coalitions --cohort 10       half of the clients in a round, drawn at random
    python -m bench.methods.coalitions --batch 200       all of its samples: less noise in every client's numbers

Task, method, rate and rounds of `bench/methods/robustness.py`: the packaged digits, 14 × 14, a linear model of 1,970
parameters; DeComFL. 0, 4 or 8 of 20 clients attack (`engine.attack = adaptive`). Rules that have to be told how many
attack are told the truth, and without attackers the same as with 4. Every run is kept as a line of --out as soon as it
is done.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from bench.methods.robustness import BATCH, CLIENTS, SEEDS, known, trained
from bench.table import machine

SHARES = {"none": 0.0, "20 %": 0.2, "40 %": 0.4}
RULES = ("mean", "bound 1.5", "krum", "multi-krum", "median", "trimmed-mean", "nnm + median")


def rule(name: str, share: float) -> tuple[float, list[dict[str, Any]]]:
    """`federation.bound`, and the filters, of a rule that is told which share of the clients attacks."""
    if name in ("mean", "bound 1.5"):
        return (1.5 if name == "bound 1.5" else 0.0), []
    links: list[dict[str, Any]] = [{"kind": kind} for kind in name.split(" + ")]
    for link in links:
        if link["kind"] != "median":
            link["fraction"] = share or SHARES["20 %"]
    return 0.0, links


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    parser.add_argument("--shares", nargs="*", default=list(SHARES), choices=SHARES)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--cohort", type=int, default=CLIENTS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--out", type=Path, default=Path("runs/coalitions.jsonl"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.parent.mkdir(parents=True, exist_ok=True)

    def key(share: str, name: str, seed: int) -> str:
        return f"{share} / {name} / cohort {given.cohort} / batch {given.batch} / {seed}"

    wanted = [(share, name, seed) for seed in given.seeds for share in given.shares for name in given.rules]
    for number, (share, name, seed) in enumerate(wanted, 1):
        if key(share, name, seed) in known(given.out):
            continue
        began, fraction = time.perf_counter(), SHARES[share]
        attack = {"kind": "adaptive", "fraction": fraction} if fraction else None
        found, _ = trained("decomfl", attack, rule(name, fraction), seed, "iid", given.cohort, given.batch)
        seconds = time.perf_counter() - began
        with given.out.open("a") as file:
            file.write(json.dumps({"key": key(share, name, seed), "accuracy": found, "seconds": seconds}) + "\n")
        print(f"{number}/{len(wanted)} {key(share, name, seed)}: {found:.1%}, {seconds:.1f} s", flush=True)
    results = known(given.out)
    print(
        f"\nDeComFL, cohort {given.cohort} of {CLIENTS}, batch {given.batch}, accuracy in %: mean (lowest – highest) of"
    )
    print(f"{len(given.seeds)} seeds · {machine()} · {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| | " + " | ".join(given.shares) + " |\n|---" + "|---" * len(given.shares) + "|")
    for name in given.rules:
        of = [[100 * results[key(share, name, seed)] for seed in given.seeds] for share in given.shares]
        print(f"| {name} | " + " | ".join(f"{mean(c):.1f} ({min(c):.1f} – {max(c):.1f})" for c in of) + " |")


if __name__ == "__main__":
    main()
