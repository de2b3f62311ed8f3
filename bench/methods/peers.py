"""Accuracy by bytes on the task of recipe demo-cnn.

    python -m bench.methods.peers [--seeds 1 2 3] [--only NAME …] [--jobs N]

    FeedSign, FedKSeed, FedZO    learning rates in ratios of 2, until the best lies inside: the one with the lowest
                                 training loss of the last 20 rounds of a run with another seed
    the rest                     recipes/demo-cnn.toml; FedAvg with 0.1, and with a filter

Rates are constant to round 250 and fall to a twentieth at round 400, as that of the recipe; FedKSeed's is constant, as
the method adds up scalars of different rounds. Clients, digits, mini-batches and cohorts are those of
recipes/demo-cnn.toml; one thread a process. What is found is written to docs/figures/accuracy-by-bytes.json after every
run, and a second call makes only what is missing. `tools/accuracy_by_bytes.py` draws it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.table import machine

from fedzero.recipe import recipe
from fedzero.recipe.environment import Environment
from fedzero.results import export
from fedzero.runs import session
from fedzero.runs.progress import Silent

KEPT = Path(__file__).parents[2] / "docs" / "figures" / "accuracy-by-bytes.json"
RUNS = Path("runs/accuracy-by-bytes")
SEARCH_SEED, JUDGED_BY = 11, 20
SAMPLING = {"directions": 20, "difference": "forward", "distribution": "rademacher", "radius": 1e-3}
"""Those of the recipe: 21 loss evaluations a client's turn."""

Table = dict[str, Any]
DEMO: Table = tomllib.loads((resources.files("fedzero.recipes") / "demo-cnn.toml").read_text())
FEDAVG = {**DEMO, "rounds": 80, "evaluate_every": 2, "algorithm": {"kind": "fedavg", "rate": 0.1}}


def like_demo(algorithm: Table) -> Table:
    return {**DEMO, "algorithm": {**SAMPLING, **algorithm}}


def like_fedavg(*filters: Table) -> Table:
    return {**FEDAVG, "filters": list(filters)}


METHODS: dict[str, Table] = {
    "DeComFL": DEMO,
    "FedAvg": FEDAVG,
    "FedAvg, top 10 %": like_fedavg({"kind": "top-k", "fraction": 0.1}),
    "FedCom, 8 bits": like_fedavg({"kind": "quantise", "bits": 8}),
    "FeedSign": like_demo({"kind": "feedsign"}),
    "FedKSeed": like_demo({"kind": "fedkseed", "local_steps": 1, "pool": 4096}),
    "FedZO, dense": like_demo({"kind": "fedzo", "form": "dense"}),
}
RATES: dict[str, tuple[float, ...]] = {
    "FeedSign": (8e-3, 1.6e-2, 3.2e-2),
    "FedKSeed": (1e-3, 2e-3, 4e-3),
    "FedZO, dense": (4e-3, 8e-3, 1.6e-2),
}
"""What the search tries. DeComFL's 4e-3, which has momentum, is in the recipe."""


def at(name: str, rate: float | None) -> Table:
    """The recipe of a method, with a rate that the search tries or has chosen."""
    table = METHODS[name]
    if rate is None:
        return table
    falling = {"kind": "piecewise", "points": [[0, rate], [250, rate], [table["rounds"], rate / 20]]}
    constant = table["algorithm"]["kind"] == "fedkseed"
    return {**table, "algorithm": {**table["algorithm"], "rate": rate if constant else falling}}


def played(table: Table, folder: Path) -> list[export.Row]:
    torch.set_num_threads(1)
    if not (folder / "model.safetensors").exists():
        session.start(recipe.decode(table), folder, Environment(), Silent(), overwrite=True)
    return export.rows(folder)


def searched(name: str, rate: float) -> float:
    """Training loss of the last rounds at a rate."""
    table = {**at(name, rate), "evaluate_every": METHODS[name]["rounds"], "seed": SEARCH_SEED}
    rows = played(table, RUNS / f"search {name} {rate:g}")
    losses = [row.train_loss for row in rows if row.train_loss is not None][-JUDGED_BY:]
    return round(float(np.mean(losses)), 4)


def measured(name: str, rate: float | None, seed: int) -> Table:
    folder = f"{name} {seed}" if rate is None else f"{name} {rate:g} {seed}"
    rows = played({**at(name, rate), "seed": seed}, RUNS / folder)
    kept = [row for row in rows if row.accuracy is not None]
    return {
        "seed": seed,
        "rate": rate,
        "round": [row.round for row in kept],
        "bytes": [round(row.bytes_up_per_client + row.bytes_down_per_client) for row in kept],
        "queries": [row.queries for row in kept],
        "accuracy": [row.accuracy for row in kept],
    }


def spread(pool: ProcessPoolExecutor, work: Any, calls: list[tuple[Any, ...]]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(arguments, what came out), as they come."""
    asked = {pool.submit(work, *call): call for call in calls}
    for done in as_completed(asked):
        yield asked[done], done.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    how = parser.parse_args()
    kept: Table = json.loads(KEPT.read_text()) if KEPT.exists() else {"methods": {}}
    kept["machine"] = machine()
    entries = kept["methods"]
    for name in how.only:
        entries.setdefault(name, {"recipe": METHODS[name], "search": {} if name in RATES else None, "runs": []})
    kept["methods"] = {name: entries[name] for name in METHODS if name in entries}

    def best(name: str) -> float | None:
        return float(min(entries[name]["search"], key=entries[name]["search"].get)) if name in RATES else None

    with ProcessPoolExecutor(how.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        rates = [(n, rate) for n in how.only for rate in RATES.get(n, ()) if f"{rate:g}" not in entries[n]["search"]]
        for (name, rate), loss in spread(pool, searched, rates):
            entries[name]["search"][f"{rate:g}"] = loss
            print(name, f"rate {rate:g}", f"training loss {loss}", flush=True)
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        for name in how.only:
            entries[name]["runs"] = [run for run in entries[name]["runs"] if run["rate"] == best(name)]
        there = {(name, run["seed"]) for name in how.only for run in entries[name]["runs"]}
        runs = [(n, best(n), seed) for seed in how.seeds for n in how.only if (n, seed) not in there]
        for (name, _, seed), run in spread(pool, measured, runs):
            entries[name]["runs"] = sorted([*entries[name]["runs"], run], key=lambda each: each["seed"])
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
            print(name, f"seed {seed}", f"accuracy {run['accuracy'][-1]}", flush=True)


if __name__ == "__main__":
    main()
