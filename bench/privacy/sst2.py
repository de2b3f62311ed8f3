"""SST-2 with differential privacy of examples, beside the same method without: the recipe `e3-sst2-private`.

    python -m bench.privacy.sst2 norms --data DIR --out OUT      norms of rows' slopes: which clip
    python -m bench.privacy.sst2 tune  --data DIR --out OUT [--only 'private-*']
    python -m bench.privacy.sst2 run   --data DIR --out OUT [--only 'eps2-*,plain-*']

The last 1,500 rows of the training set are held out: `norms` looks at nothing else, `tune` trains on the other rows and
chooses clip, rate and rounds by the accuracy on the held-out ones, at ε = 2, and `run` trains on the other rows, with
what was chosen, and measures on the development set. Trials of `tune` read the rows that `run` protects, and are not
part of ε. `plain` has no [privacy]: as many rows of every client in each step, and a rate and rounds of its own.
`eps-inf` is the setting of ε = 2 with σ = 0.25, a third of its noise: a recipe has to say a σ above 0, and for smaller
ones the accountant takes minutes.

A part that is cut off, after `--seconds` or by a kill, goes on where it stood when the command is repeated with the
same OUT; parts that are done are only read. The table, and OUT/results.json, have what is there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import signal
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from bench.table import machine, show

import fedzero
from fedzero.estimators.spsa import direction_keys, points_of, slopes_by_row
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.report.units import human_bytes

NAME, HELD_OUT, BATCH = "e3-sst2-private", 1500, 512
SEEDS, TUNING_SEED = (1, 2, 3), 100
EPSILONS: Mapping[str, Mapping[str, Any]] = {
    "eps2": {"epsilon": 2.0},
    "eps1": {"epsilon": 1.0},
    "eps0.5": {"epsilon": 0.5},
    "eps-inf": {"sigma": 0.25},
}
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Chosen:
    """clip 0: no privacy."""

    clip: float
    rate: float
    rounds: int

    @property
    def name(self) -> str:
        kind = f"private-c{self.clip:g}" if self.clip else "plain"
        return f"{kind}-r{self.rate:g}-t{self.rounds}"


FIRST = {"private": Chosen(64.0, 3e-3, 200), "plain": Chosen(0.0, 3e-3, 200)}
"""Before `tune` has chosen."""
TRIALS = (
    *(Chosen(clip, 3e-3, 200) for clip in (16.0, 32.0, 64.0, 128.0)),
    *(Chosen(64.0, rate, 200) for rate in (1.5e-3, 5e-3)),
    Chosen(64.0, 3e-3, 120),
    *(Chosen(0.0, rate, rounds) for rate, rounds in product((1.5e-3, 3e-3, 5e-3), (120, 200))),
)


def lines(file: Path) -> list[bytes]:
    with gzip.open(file) as unpacked:
        return unpacked.read().splitlines(keepends=True)


def folders(given: argparse.Namespace) -> dict[str, Path]:
    """Data folders under OUT, by what is tested: "dev", or "held-out" rows; of the training set the other rows are
    trained on. "norms" trains on the held-out rows."""
    train, dev = (lines(given.data / "sst2" / f"{part}.jsonl.gz") for part in ("train", "dev"))
    kept = min(HELD_OUT, len(train) // 2)
    rest, apart = train[:-kept], train[-kept:]
    found = {}
    for name, pair in {"dev": (rest, dev), "held-out": (rest, apart), "norms": (apart, dev)}.items():
        found[name] = given.out / "data" / name
        for part, rows in zip(("train", "dev"), pair, strict=True):
            file = found[name] / "sst2" / f"{part}.jsonl.gz"
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(gzip.compress(b"".join(rows), compresslevel=1, mtime=0))
    return found


def scheduled(rate: float, rounds: int) -> dict[str, Any]:
    """Up over the first tenth, down in a straight line over the last three fifths, to a twentieth."""
    points = [[0, rate / 20], [max(1, rounds // 10), rate], [max(2, 2 * rounds // 5), rate], [rounds, rate / 20]]
    return {"kind": "piecewise", "points": points}


def recipe_of(given: argparse.Namespace, how: Chosen, privacy: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a run. privacy: a budget or a σ."""
    table = recipes.read(recipes.find(NAME))
    for key, value in (given.set | ({} if given.model is None else {"task.model": given.model})).items():
        recipes.put(table, key, value, NAME)
    table["rounds"], table["evaluate_every"] = how.rounds, max(1, how.rounds // 4)
    table["algorithm"]["rate"] = scheduled(how.rate, how.rounds)
    before = table.pop("privacy")
    if not how.clip:
        table["task"]["batch"] = max(1, round(BATCH / table["federation"]["clients"]))
        return table
    kept = {name: value for name, value in before.items() if name not in ("epsilon", "sigma")}
    return table | {"privacy": kept | {"clip": how.clip} | dict(privacy)}


def played(given: argparse.Namespace, part: str, how: Chosen, privacy: Mapping[str, Any], seed: int, data: Path) -> Any:
    """What a part found; from its file, if it is done."""
    file = given.out / f"{part}.json"
    if not file.exists():
        run = fedzero.run(
            recipe_of(given, how, privacy), data=data, out=given.out / "runs" / part, seed=seed,
            progress=not given.quiet,
        )  # fmt: skip
        summary = run.summary
        found = {
            "accuracy": summary.final_accuracy, "loss": summary.final_loss, "epsilon": summary.epsilon,
            "before": float(run.history["accuracy"][0]), "bytes_up": summary.bytes_up_per_client,
            "bytes_down": summary.bytes_down_per_client, "seconds": summary.seconds, "clip": how.clip,
            "rate": how.rate, "rounds": how.rounds, "seed": seed, "ledger_head": summary.ledger_head,
            "machine": machine(),
        }  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1))
    found = json.loads(file.read_text())
    print(f"{part}: {100 * found['accuracy']:.2f} %, loss {found['loss']:.4f}, {found['seconds']:.0f} s", flush=True)
    return found


def tune(given: argparse.Namespace) -> None:
    """Trials at ε = 2 and without privacy; OUT/chosen.json has the best of each kind by held-out accuracy."""
    data, found = folders(given)["held-out"], {}
    for how in given.trials:
        if wanted(given, how.name):
            found[how] = played(given, f"tune/{how.name}", how, EPSILONS["eps2"], TUNING_SEED, data)
    chosen = {}
    for kind in FIRST:
        mine = {how: one for how, one in found.items() if bool(how.clip) == (kind == "private")}
        if mine:
            best = max(mine, key=lambda how: (mine[how]["accuracy"], -mine[how]["loss"]))
            chosen[kind] = {"clip": best.clip, "rate": best.rate, "rounds": best.rounds}
    file = given.out / "chosen.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(before | chosen, indent=1))
    rows = [
        (f"{how.clip:g}" if how.clip else "plain", f"{how.rate:g}", str(how.rounds), f"{100 * one['accuracy']:.2f} %",
         f"{one['loss']:.4f}", f"{one['seconds']:.0f} s")
        for how, one in found.items()
    ]  # fmt: skip
    show("Held-out rows", rows, ("clip", "rate", "rounds", "accuracy", "loss", "time"))
    print(f"chosen: {json.dumps(chosen)}")


def run(given: argparse.Namespace) -> None:
    file = given.out / "chosen.json"
    chosen = FIRST | {k: Chosen(**how) for k, how in (json.loads(file.read_text()) if file.exists() else {}).items()}
    data = folders(given)["dev"]
    for seed, (title, privacy) in product(given.seeds, [*EPSILONS.items(), ("plain", {})]):
        if wanted(given, f"{title}-{seed}"):
            played(given, f"{title}-{seed}", chosen["private" if privacy else "plain"], privacy, seed, data)


def wanted(given: argparse.Namespace, part: str) -> bool:
    return any(fnmatchcase(part, pattern) for pattern in given.only.split(","))


def compared(given: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Means over seeds; the difference from `plain` is in points, with its standard error, on seeds that both have."""
    found = {file.stem: json.loads(file.read_text()) for file in given.out.glob("*-[0-9]*.json")}
    (given.out / "results.json").write_text(json.dumps(found, indent=1, sort_keys=True))
    for title in (*EPSILONS, "plain"):
        mine = {one["seed"]: one for name, one in found.items() if name.rpartition("-")[0] == title}
        if not mine:
            continue
        moved = [
            100 * (one["accuracy"] - found[f"plain-{seed}"]["accuracy"])
            for seed, one in mine.items() if f"plain-{seed}" in found
        ]  # fmt: skip
        error = f" ± {statistics.stdev(moved) / math.sqrt(len(moved)):.2f}" if len(moved) > 1 else ""
        every, mean = list(mine.values()), statistics.fmean
        yield (
            title, ", ".join(f"{100 * one['accuracy']:.1f}" for one in every),
            f"{100 * mean(one['accuracy'] for one in every):.2f} %",
            f"{mean(moved):+.2f}{error}" if moved else "", f"{mean(one['loss'] for one in every):.4f}",
            "" if every[0]["epsilon"] is None else f"{every[0]['epsilon']:.3g}",
            *(human_bytes(mean(one[way] for one in every)) for way in ("bytes_up", "bytes_down")),
        )  # fmt: skip


def norms(given: argparse.Namespace) -> None:
    """‖v_i‖ of held-out rows at the base model, all P slopes of a row together."""
    table = recipe_of(given, FIRST["private"], EPSILONS["eps-inf"])
    data = folders(given)["norms"]
    table["task"].pop("training", None)
    table["federation"] |= {"clients": 1, "cohort": 1}
    recipe = recipes.decode(table)
    setup = prepare(recipe, Environment(data))
    params, shards, method = setup.problem.params, setup.problem.shards, recipe.algorithm
    keys = direction_keys(setup.keys, 0, 0, method.directions)
    how = method.radius, method.difference
    points, scales = points_of(params, keys, *how, method.distribution, method.rank)
    places, found = np.arange(min(given.rows, shards.held(0))), []
    for some in np.array_split(places, max(1, len(places) // 128)):
        losses = setup.problem.objective.row_losses(params, points, shards.taken(0, some))
        found.append(np.linalg.norm(slopes_by_row(losses, scales, *how), axis=1))
    lengths = np.concatenate(found)
    rows = [(f"{q:.0%} of rows at most", f"{value:.1f}") for q, value in
            zip(QUANTILES, np.quantile(lengths, QUANTILES), strict=True)]  # fmt: skip
    show(f"Norms of the slopes of {len(lengths):,} held-out rows, P = {method.directions}", rows, ("", "norm"))
    (given.out / "norms.json").write_text(json.dumps(lengths.round(3).tolist()))


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("norms", "tune", "run"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="a folder, a name or a GGUF file; default: the recipe's")
    parser.add_argument("--only", default="*", help="parts: patterns, commas between them")
    parser.add_argument("--seeds", type=lambda text: [int(x) for x in text.split(",")], default=list(SEEDS))
    parser.add_argument("--rows", type=int, default=HELD_OUT, help="that `norms` looks at")
    parser.add_argument("--trials", type=json.loads, help='of `tune`: [{"clip": 64, "rate": 3e-3, "rounds": 200}, …]')
    parser.add_argument("--seconds", type=float, default=500, help="stop after so many, to be repeated")
    parser.add_argument("--set", type=json.loads, default={}, help='a table: {"task.length": 48}')
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args(argv)
    given.trials = TRIALS if given.trials is None else [Chosen(**how) for how in given.trials]
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def main(argv: Sequence[str] | None = None) -> None:
    given = parsed(argv)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, given.seconds)
    try:
        {"norms": norms, "tune": tune, "run": run}[given.what](given)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    rows = list(compared(given))
    if given.what == "run" and rows:
        header = ("", "seeds, %", "mean", "beside plain", "loss", "ε", "up, a client", "down, a client")
        show("SST-2, development set", rows, header)


if __name__ == "__main__":
    main()
