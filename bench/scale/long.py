"""A million rounds: a ledger of that length, then seconds and memory of the commands that read it.

python -m bench.scale.long make FOLDER [--rounds R]    write the ledger of an unfinished run: 100 parameters, 10 clients
python -m bench.scale.long measure FOLDER [COMMAND …]  resume, watch, report, replay, verify: each in its own process

`make` writes through the ledger's own `append`, thousands of rounds in a transaction: a session that syncs the disk
after every round would take hours. Updates are folded into a replica as they are written, so that digests are those of
the models; their scalars are drawn, not measured, since no command that reads a ledger evaluates a loss.

`resume` goes on until one round was made and ends there. The first resume of a ledger that `make` wrote has no
checkpoint and folds everything; with --rounds N it goes on for N rounds and leaves one.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from bench.recipe import quadratic
from bench.table import show

from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Evaluation, Record, Round, sha256_of
from fedzero.ledger.store import Ledger
from fedzero.model.updates import Seeded, encode_update, pack
from fedzero.oracles import Metrics
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.plan import cohort_of
from fedzero.recipe.setup import Setup, prepare
from fedzero.runs import session
from fedzero.runs.progress import Silent

EVERY, BLOCK, SPARE = 1000, 250, 50_000
"""Rounds between evaluations, rounds folded at once, and rounds that are left to be played."""


def recipe_of(rounds: int) -> recipes.Recipe:
    return quadratic("long", rounds, clients=10, cohort=2, directions=2, dimension=100, evaluate_every=EVERY)


def make(folder: Path, rounds: int) -> None:
    setup = prepare(recipe_of(rounds + SPARE), Environment())
    ledger, replica = session.create(folder, setup.start), setup.replica()
    scalars = np.random.default_rng(1).standard_normal((rounds, 2)).astype(np.float32)
    records: list[Record] = [evaluated(setup, replica, 0)]
    for first in range(0, rounds, BLOCK):
        updates = [Seeded(round, pack(scalars[round])) for round in range(first, min(first + BLOCK, rounds))]
        for update in updates:
            cohort = cohort_of(setup.keys, update.round, setup.recipe.federation)
            records.append(Round(update.round, cohort, encode_update(update), False, 66, 130, 6, 0.5))
        replica.follow(updates)
        if (first + BLOCK) % EVERY == 0:
            records.append(evaluated(setup, replica, first + BLOCK))
            ledger.append(records, float(first))
            records = []
    ledger.append(records, float(rounds))
    ledger.close()


def evaluated(setup: Setup, replica: session.Replica, after: int) -> Evaluation:
    model, metrics = replica.identity, Metrics(setup.problem.measure(replica.state.params, after).loss)
    return Evaluation(after, model.digest, metrics, sha256_of(model))


class Stopped(Exception):
    """Enough was seen."""


class Stopping(Silent):
    """Looks on until so many rounds were made."""

    def __init__(self, rounds: int):
        self.left = rounds

    def round(self, record: Round) -> None:
        self.left -= 1
        if not self.left:
            raise Stopped


def resume(folder: Path, rounds: int) -> None:
    try:
        session.resume(folder, Environment(), Stopping(rounds))
    except Stopped:
        return


def measure(folder: Path, commands: list[str]) -> None:
    out = folder.parent / "long.out"
    cli = [sys.executable, "-m", "fedzero"]
    whole = {
        "resume": [sys.executable, "-m", "bench.scale.long", "resume", str(folder)],
        "watch": [*cli, "watch", str(folder), "--once"],
        "report": [*cli, "report", str(folder), "--out", str(out)],
        "replay": [*cli, "replay", str(folder), "--out", str(out)],
        "verify": [*cli, "verify", str(folder)],
    }
    rows = []
    for name in commands or list(whole):
        began = time.perf_counter()
        process = subprocess.Popen(whole[name], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        took = time.perf_counter() - began
        assert status == 0, (name, status)
        cpu = used.ru_utime + used.ru_stime
        rows.append((name, f"{took:.1f} s", f"{cpu:.1f} s", f"{used.ru_maxrss / 1e3:,.0f} MB"))
    out.unlink(missing_ok=True)
    ledger = Ledger.open(folder / LEDGER)
    size = (folder / LEDGER).stat().st_size / 1e6
    show(f"{ledger.done:,} rounds, {size:,.0f} MB", rows, ("", "wall", "processor", "resident at most"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("make", "measure", "resume"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("commands", nargs="*")
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    if given.what == "make":
        make(given.folder, given.rounds or 1_000_000)
    elif given.what == "resume":
        resume(given.folder, given.rounds or 1)
    else:
        measure(given.folder, given.commands)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{given.what}: {peak:,.0f} MB resident at most", file=sys.stderr)
