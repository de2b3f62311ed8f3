"""A million clients: replies a second and resident memory of a run whose function costs next to nothing.

python -m bench.scale.million [--clients N] [--cohort M] [--rounds R] [--out FOLDER]     default 1,000,000, 1,000, 3,000

DeComFL with P = 10 on a quadratic of 10 parameters. A client that was away is sent every update since its last turn, of
N/m = 1,000 rounds on average: the figure to look at is that of the last rounds, when the lags have grown to that.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bench.recipe import quadratic
from bench.table import show

from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Round
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

PARTS = 6


class Marks(Silent):
    """When each part of the rounds was done, and how much memory the process had by then."""

    def __init__(self, rounds: int):
        self.every = max(1, rounds // PARTS)
        self.seen: list[tuple[int, float, float, float]] = []
        self.sent = 0

    def round(self, record: Round) -> None:
        self.sent += record.bytes_down
        if record.round == 0 or (record.round + 1) % self.every == 0:
            self.seen.append((record.round + 1, time.perf_counter(), time.process_time(), resident()))


def resident() -> float:
    """MB of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure(clients: int, cohort: int, rounds: int, folder: Path) -> None:
    noted, began, ticks = Marks(rounds), time.perf_counter(), time.process_time()
    session.start(quadratic("million", rounds, clients, cohort, directions=10), folder / "run", Environment(), noted)
    marks = [(0, began, ticks, 0.0), *noted.seen]
    rows = []
    for before, after in pairwise(marks):
        played, took, used = (after[i] - before[i] for i in range(3))
        name = f"rounds {before[0]:,} to {after[0]:,}" if before[0] else "start, first round"
        rates = (f"{played * cohort / used:,.0f}", f"{played * cohort / took:,.0f}") if before[0] else ("", "")
        rows.append((name, *rates, f"{took / played * 1e3:,.1f} ms", f"{after[3]:,.0f} MB"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    rows.append(("at most", "", "", "", f"{peak:,.0f} MB"))
    header = ("", "replies/s of processor", "replies/s of wall", "wall a round", "resident")
    show(f"{clients:,} clients, cohorts of {cohort:,}", rows, header)
    size, sent = (folder / "run" / LEDGER).stat().st_size / rounds, noted.sent / rounds / cohort
    print(f"ledger {size:,.0f} bytes a round; sent to a client in a turn {sent:,.0f} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--cohort", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.out) as out:
        measure(given.clients, given.cohort, given.rounds, Path(out))
