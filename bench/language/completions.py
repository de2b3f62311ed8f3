"""MultiRC's right answers as responses: scalars of federated clients against gradients in one place.

    python -m bench.language.completions --data DIR --out OUT [--model FOLDER] [--only all-1,lora-*] [--seconds 500]
    python -m bench.language.completions --data DIR --out OUT --tune 3e-4,1e-3,3e-3 --only all-1    a few rounds each

Three seeds, all weights and LoRA, by the recipe `multirc-completion`; and beside each run Adam in float32 on as many
examples, drawn from the same clients. A part that is cut off, after `--seconds` or by a kill, goes on where it stood
when the command is repeated with the same OUT; parts that are done are only read. The table has what is there.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from bench.table import show

import fedzero
from fedzero.oracles.responses import ResponseObjective, Responses
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.schema import written
from fedzero.recipe.setup import prepare
from fedzero.report.units import human_bytes

SEEDS, NAME = (1, 2, 3), "multirc-completion"
TRAINS: Mapping[str, Mapping[str, Any]] = {"all": {"kind": "full"}, "lora": {"kind": "lora", "rank": 8, "alpha": 16}}
RATES = {"all": 1e-3, "lora": 1e-2}
"""Of scalars with a root mean square of one."""
ADAM = {"all": 1e-5, "lora": 3e-4}
TUNED = 60
"""Rounds of a rate that is tried."""
Measured = Mapping[str, float]


def settings(given: argparse.Namespace, train: str, rounds: int, rate: float) -> dict[str, Any]:
    points = [[0, rate / 3], [max(1, rounds // 10), rate], [rounds // 2, rate], [rounds, rate / 10]]
    found: dict[str, Any] = {
        "task.train": dict(TRAINS[train]), "task.batch": 16, "task.length": 384, "rounds": rounds,
        "evaluate_every": max(1, rounds // 4), "algorithm.rate": {"kind": "piecewise", "points": points},
    }  # fmt: skip
    return found | ({} if given.model is None else {"task.model": given.model}) | dict(given.set)


def scalars(given: argparse.Namespace, part: str, rounds: int, rate: float) -> fedzero.Run:
    train, seed = part.split("-")[:2]
    return fedzero.run(
        NAME, set=settings(given, train, rounds, rate), data=given.data, out=given.out / part, seed=int(seed),
        progress=not given.quiet,
    )  # fmt: skip


def measured(run: fedzero.Run) -> dict[str, Measured]:
    """Before and after, and bytes of a client."""
    history = run.history
    names = ("loss", "perplexity", "exact_match", "token_f1")
    return {
        "before": {name: float(history[name][0]) for name in names},
        "after": {name: float(history[name][-1]) for name in names},
        "spent": {"bytes": run.bytes_per_client, "seconds": run.summary.seconds},
    }


def gradients(given: argparse.Namespace, part: str) -> dict[str, Measured]:
    """Adam on as many examples, in float32. Evaluated at the end alone: the runs have the start."""
    train, seed, _ = part.split("-")
    changes = settings(given, train, given.rounds, RATES[train]) | {"task.dtype": "float32", "seed": int(seed)}
    recipe = recipes.load(NAME, [f"{key}={written(value)}" for key, value in changes.items()])
    setup, began = prepare(recipe, Environment(given.data)), time.perf_counter()
    objective, shards, params = setup.problem.objective, setup.problem.shards, setup.problem.params
    assert isinstance(objective, ResponseObjective)
    tensors = list(params.tensors.values())
    optimizer = torch.optim.Adam(tensors, lr=ADAM[train])
    clients, cohort = recipe.federation.clients, recipe.federation.cohort
    for round in range(recipe.rounds):
        for group in optimizer.param_groups:
            group["lr"] = ADAM[train] * (1 - round / recipe.rounds)
        asked = setup.keys.generator("adam", round).choice(clients, cohort, replace=False)
        batch = Responses.joined([shards.batch(setup.keys, round, 0, int(client)) for client in asked])
        _, gradient = objective.gradient(params, batch)
        gradient *= min(1.0, 1.0 / max(1e-12, float(gradient.norm())))
        for tensor, piece in zip(tensors, params.split(gradient), strict=True):
            tensor.grad = piece.view(tensor.shape).to(tensor.dtype)
        optimizer.step()
        params.changed()
    metrics = objective.evaluate(params)
    sent = 2 * 4 * params.size * recipe.rounds * cohort / clients  # models both ways, as FedAvg
    return {
        "after": {"loss": metrics.loss, **metrics.others},
        "spent": {"bytes": sent, "seconds": time.perf_counter() - began},
    }


def played(given: argparse.Namespace, part: str) -> dict[str, Measured]:
    """What a part found; from its file, if it is done."""
    file = given.out / f"{part}.json"
    if not file.exists():
        adam = part.endswith("-adam")
        found = gradients(given, part) if adam else measured(scalars(given, part, given.rounds, given.rate_of(part)))
        file.write_text(json.dumps(found, indent=1))
    read: dict[str, Measured] = json.loads(file.read_text())
    return read


def tuned(given: argparse.Namespace, parts: Sequence[str]) -> None:
    rows = []
    for part in parts:
        for rate in given.tune:
            given_out, given.out = given.out, given.out / f"tune-{rate:g}"
            found = measured(scalars(given, part, TUNED, rate))
            given.out = given_out
            numbers = (f"{found[at][name]:.3f}" for name in ("loss", "token_f1") for at in ("before", "after"))
            rows.append((part, f"{rate:g}", *numbers, f"{found['spent']['seconds']:.0f} s"))
            print(rows[-1], flush=True)
    header = ("part", "rate", "loss before", "after", "F1 before", "after", "time")
    show(f"Rates, {TUNED} rounds", rows, header)


def compared(found: Mapping[str, Mapping[str, Measured]]) -> Iterator[tuple[str, ...]]:
    """Means over seeds of what is there, with standard errors of differences from the start."""
    for train in TRAINS:
        for way in ("", "-adam"):
            mine = [s for s in SEEDS if f"{train}-{s}{way}" in found and f"{train}-{s}" in found]
            if not mine:
                continue
            before = [found[f"{train}-{s}"]["before"] for s in mine]
            after = [found[f"{train}-{s}{way}"]["after"] for s in mine]
            cells = []
            for name in ("loss", "token_f1"):
                moved = [b[name] - a[name] for a, b in zip(before, after, strict=True)]
                error = statistics.stdev(moved) / math.sqrt(len(moved)) if len(moved) > 1 else math.nan
                means = (statistics.fmean(m[name] for m in of) for of in (before, after))
                cells += [*(f"{mean:.3f}" for mean in means), f"{statistics.fmean(moved):+.3f} ± {error:.3f}"]
            exact = statistics.fmean(a["exact_match"] for a in after)
            sent = statistics.fmean(found[f"{train}-{s}{way}"]["spent"]["bytes"] for s in mine)
            title = f"{train}, {'Adam' if way else 'scalars'}"
            yield title, str(len(mine)), *cells, f"{100 * exact:.1f} %", human_bytes(sent)


def shares(found: Mapping[str, Mapping[str, Measured]]) -> Iterator[str]:
    """Of the gain by gradients, what scalars reach."""
    for train in TRAINS:
        both = [s for s in SEEDS if {f"{train}-{s}", f"{train}-{s}-adam"} <= found.keys()]
        for name in ("loss", "token_f1") if both else ():
            gains = [
                statistics.fmean(found[f"{train}-{s}{way}"]["after"][name] - found[f"{train}-{s}"]["before"][name]
                                 for s in both)
                for way in ("", "-adam")
            ]  # fmt: skip
            if gains[1]:
                yield f"{train}, {name}: {gains[0] / gains[1]:.0%} of the gain of gradients on as many examples"


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="a folder, a name or a GGUF file; default: the recipe's")
    parser.add_argument("--only", default="*", help="parts: patterns, commas between them")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--rate", type=float, help="in the place of the default of the weights that are trained")
    parser.add_argument("--seconds", type=float, default=500, help="stop after so many, to be repeated")
    parser.add_argument("--tune", type=lambda text: [float(x) for x in text.split(",")])
    parser.add_argument("--set", type=json.loads, default={}, help='a table: {"task.batch": 8}')
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args(argv)
    given.rate_of = lambda part: given.rate or RATES[part.split("-")[0]]
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def main(argv: Sequence[str] | None = None) -> None:
    given = parsed(argv)
    every = [f"{train}-{seed}{way}" for seed in SEEDS for train in TRAINS for way in ("", "-adam")]
    parts = [part for part in every if any(fnmatchcase(part, pattern) for pattern in given.only.split(","))]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, given.seconds)
    found: dict[str, Mapping[str, Measured]] = {}
    try:
        if given.tune:
            tuned(given, [part for part in parts if not part.endswith("-adam")])
            return
        for part in parts:
            found[part] = played(given, part)
            print(f"{part}: {json.dumps(found[part]['after'])}", flush=True)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    done = {part: json.loads((given.out / f"{part}.json").read_text()) for part in every
            if (given.out / f"{part}.json").exists()}  # fmt: skip
    if given.tune or not done:
        return
    header = ("", "seeds", "loss before", "after", "difference", "F1 before", "after", "difference", "exact", "bytes")
    show(f"MultiRC's right answers, {given.rounds} rounds", list(compared(done)), header)
    print(*shares(done), sep="\n")


if __name__ == "__main__":
    main()
