"""Accuracy by bytes on the demo's task, beside peers: python bench/peers.py [--seeds 1 2 3] [--only NAME …]

    FedKSeed            DeComFL's learning rate: the update is the same sum, but for where keys come from
    FeedSign            twice as much: slopes of the demo have a root mean square of about 2, so steps are as long
    FedZO               two learning rates, 15 rounds each: the one with the lowest training loss of the last 8 rounds
    the rest            recipes/demo.toml and recipes/demo-fedavg.toml, and those with a filter

Clients, digits, mini-batches and cohorts are those of recipes/demo.toml; one thread. What is found is written to
docs/figures/accuracy-by-bytes.json after every run, and a second call makes only what is missing.
`tools/accuracy_by_bytes.py` draws it.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table import machine

from fedzero.runs import export, recipe, session
from fedzero.runs.progress import Silent

KEPT = Path(__file__).parents[1] / "docs" / "figures" / "accuracy-by-bytes.json"
RUNS = Path("runs/accuracy-by-bytes")
SEARCH_SEED, SEARCH_ROUNDS, JUDGED_BY = 11, 15, 8
PEER_ROUNDS, DENSE_ROUNDS = 200, 120
"""Of seeded peers and of FedZO; the demo has 400. At a constant rate, as DeComFL's is until round 250."""
SAMPLING = {"directions": 20, "difference": "forward", "distribution": "rademacher", "radius": 1e-3}
"""Those of the demo: 21 loss evaluations a client's turn."""

Table = dict[str, Any]
DEMO, FEDAVG = (
    tomllib.loads((resources.files("fedzero.recipes") / f"{name}.toml").read_text()) for name in ("demo", "demo-fedavg")
)


def like_demo(algorithm: Table) -> Table:
    return {**DEMO, "rounds": PEER_ROUNDS, "algorithm": {**SAMPLING, **algorithm}}


def like_fedavg(*filters: Table) -> Table:
    return {**FEDAVG, "filters": list(filters)}


METHODS: dict[str, Table] = {
    "DeComFL": DEMO,
    "FedAvg": FEDAVG,
    "FedAvg, top 10 %": like_fedavg({"kind": "top-k", "fraction": 0.1}),
    "FedCom, 8 bits": like_fedavg({"kind": "quantise", "bits": 8}),
    "FeedSign": like_demo({"kind": "feedsign", "rate": 8e-3}),
    "FedKSeed": like_demo({"kind": "fedkseed", "local_steps": 1, "pool": 4096, "rate": 4e-3}),
    "FedZO, dense": {**like_demo({"kind": "fedzo", "form": "dense"}), "rounds": DENSE_ROUNDS},
}
RATES: dict[str, tuple[float, ...]] = {"FedZO, dense": (4e-3, 8e-3)}
"""What the search tries; 1.6e-2 was the best of 15 rounds, and diverged later. Other rates are in the recipes."""


def played(table: Table, folder: Path) -> list[export.Row]:
    if not (folder / "model.safetensors").exists():
        session.start(recipe.decode(table), folder, session.Environment(), Silent(), overwrite=True)
    return export.rows(folder)


def searched(name: str) -> dict[str, float]:
    """Training loss of the last rounds, by rate."""
    found = {}
    for rate in RATES[name]:
        table = METHODS[name]
        table = {
            **table,
            "algorithm": {**table["algorithm"], "rate": rate},
            "rounds": SEARCH_ROUNDS,
            "evaluate_every": SEARCH_ROUNDS,
            "seed": SEARCH_SEED,
        }
        rows = played(table, RUNS / f"search {name} {rate:g}")
        losses = [row.train_loss for row in rows if row.train_loss is not None][-JUDGED_BY:]
        found[f"{rate:g}"] = round(float(np.mean(losses)), 4)
        print(name, f"rate {rate:g}", f"training loss {found[f'{rate:g}']}", flush=True)
    return found


def measured(name: str, rate: float | None, seed: int) -> Table:
    table = {**METHODS[name], "seed": seed}
    if rate is not None:
        table["algorithm"] = {**table["algorithm"], "rate": rate}
    rows = played(table, RUNS / f"{name} {seed}")
    kept = [row for row in rows if row.accuracy is not None]
    print(name, f"seed {seed}", f"accuracy {kept[-1].accuracy}", f"{rows[-1].seconds:.0f} s", flush=True)
    return {
        "seed": seed,
        "round": [row.round for row in kept],
        "bytes": [round(row.bytes_up_per_client + row.bytes_down_per_client) for row in kept],
        "queries": [row.queries for row in kept],
        "accuracy": [row.accuracy for row in kept],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    how = parser.parse_args()
    torch.set_num_threads(1)
    kept: Table = json.loads(KEPT.read_text()) if KEPT.exists() else {"methods": {}}
    kept["machine"] = machine()
    for seed in how.seeds:
        for name in how.only:
            entry = kept["methods"].setdefault(name, {"recipe": METHODS[name], "search": None, "runs": []})
            if name in RATES and entry["search"] is None:
                entry["search"] = searched(name)
            rate = None if name not in RATES else float(min(entry["search"], key=entry["search"].get))
            if seed not in [run["seed"] for run in entry["runs"]]:
                entry["runs"].append(measured(name, rate, seed))
            kept["methods"] = {each: kept["methods"][each] for each in METHODS if each in kept["methods"]}
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
