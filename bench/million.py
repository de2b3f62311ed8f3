"""A million clients: replies a second and resident memory of a run whose function costs next to nothing.

python bench/million.py [--clients N] [--cohort M] [--rounds R] [--out FOLDER]     default 1,000,000, 1,000, 3,000

DeComFL with P = 10 on a quadratic of 10 parameters. A client that was away is sent every update since its last turn, of
N/m = 1,000 rounds on average: the figure to look at is that of the last rounds, when the lags have grown to that.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from table import show

from fedzero.ledger.records import Round
from fedzero.runs import recipe as recipes
from fedzero.runs import session
from fedzero.runs.progress import Silent

PARTS = 6


class Pace(Silent):
    """When each part of the rounds was done, and how much memory the process had by then."""

    def __init__(self, rounds: int):
        self.every = max(1, rounds // PARTS)
        self.seen: list[tuple[int, float, float]] = []
        self.sent = 0

    def round(self, record: Round) -> None:
        self.sent += record.bytes_down
        if record.round == 0 or (record.round + 1) % self.every == 0:
            self.seen.append((record.round + 1, time.perf_counter(), resident()))


def resident() -> float:
    """MB of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def recipe_of(clients: int, cohort: int, rounds: int) -> recipes.Recipe:
    return recipes.decode(
        {
            "name": "million",
            "rounds": rounds,
            "evaluate_every": rounds,
            "algorithm": {"kind": "decomfl", "rate": 0.001, "directions": 10, "distribution": "rademacher"},
            "task": {"kind": "quadratic", "dimension": 10},
            "federation": {"clients": clients, "cohort": cohort},
        }
    )


def measure(clients: int, cohort: int, rounds: int, folder: Path) -> None:
    pace, began = Pace(rounds), time.perf_counter()
    session.start(recipe_of(clients, cohort, rounds), folder / "run", session.Environment(), pace)
    whole = time.perf_counter() - began
    first = pace.seen[0]
    rows = [("start, first round", "", f"{first[1] - began:.2f} s", f"{first[2]:,.0f} MB")]
    for before, after in zip(pace.seen, pace.seen[1:], strict=False):
        played, took = after[0] - before[0], after[1] - before[1]
        rate = f"{played * cohort / took:,.0f}"
        rows.append(
            (
                f"rounds {before[0]:,} to {after[0]:,}",
                rate,
                f"{took / played * 1e3:.1f} ms a round",
                f"{after[2]:,.0f} MB",
            )
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    rows.append(("all", f"{rounds * cohort / whole:,.0f}", f"{whole:.1f} s", f"{peak:,.0f} MB at most"))
    show(f"{clients:,} clients, cohorts of {cohort:,}", rows, ("", "replies a second", "time", "resident"))
    size, sent = (folder / "run" / session.LEDGER).stat().st_size / rounds, pace.sent / rounds / cohort
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
