"""What a journal of budgets is opened with, and processes that spend; imported by children of the fork server, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from fedzero.errors import Sendable
from fedzero.model import files
from fedzero.runs.spending.budget import Budget
from fedzero.runs.spending.charges import Charge, Policy

CHARGE = Charge(recipe="ab", unit="example", delta=1e-5, sigma=1.0, q=(0.01, 1.0))
POLICY = Policy(epsilon=2.0, delta=1e-6, unit="example")


def opened(keep: Path, data: bytes = b"data", name: str = "run", policy: Policy = POLICY) -> Budget:
    return Budget(keep, policy, data, name)


def spend(journal: Budget, rounds: int, charge: Charge = CHARGE, first: int = 0) -> None:
    for round in range(first, first + rounds):
        journal.reserve(charge, round, b"question %d" % round)


def die_before_the_file(keep: str) -> None:
    """Two rounds, and one whose entry is written, but not the file beside it."""
    journal = opened(Path(keep))
    spend(journal, 2)
    files.write = lambda *_, **__: os._exit(9)  # type: ignore[assignment]
    spend(journal, 1, first=2)


def spend_all(keep: str, name: str, told: Any) -> None:
    """Rounds of a run of that name until one is refused; how many were not."""
    journal, done = opened(Path(keep), name=name), 0
    try:
        for round in range(60):
            journal.reserve(msgspec.structs.replace(CHARGE, sigma=1.5, q=(0.1, 1.0)), round, b"q")
            done += 1
    except Sendable:
        pass
    told.send(done)
