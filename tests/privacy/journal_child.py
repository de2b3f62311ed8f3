"""What the processes of test_journal_of_runs.py do: a private run with a journal, killed at one of its steps.

A step is a write that lasts: of the journal, of the file beside it, of answers and of the ledger. A process is
killed right before or right behind one of them. Imported by children of a fork server that has fedzero loaded already.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedzero.ledger.durable import Durable
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.model import files
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

RECIPE = {
    "name": "counted",
    "rounds": 4,
    "evaluate_every": 4,
    "algorithm": {"kind": "decomfl", "rate": 0.01, "directions": 4},
    "task": {"kind": "quadratic", "dimension": 12, "noise": 0.1},
    "federation": {"clients": 6, "cohort": 3},
    "privacy": {"sigma": 2.0},
    "engine": {"kind": "local", "merge": False},
}


def go(folder: str, journal: str, last: int, steps: str) -> None:
    """last: the step at which the process is killed; −1: none. steps: a file for the number of steps that were made."""
    torch.set_num_threads(1)
    made = _counting(last)
    place = Path(folder)
    if (place / LEDGER).exists():
        session.resume(place, Environment(), Silent())
    else:
        session.start(recipes.decode(RECIPE), place, Environment(journal=Path(journal)), Silent())
    Path(steps).write_text(str(made()))


def _counting(last: int) -> Callable[[], int]:
    made = [0]

    def step() -> None:
        if made[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)
        made[0] += 1

    write, append, transaction = files.write, Ledger.append, Durable._transaction

    def written(*given: Any, **named: Any) -> None:
        step()
        write(*given, **named)
        step()

    def appended(*given: Any, **named: Any) -> None:
        step()
        append(*given, **named)
        step()

    @contextmanager
    def within(self: Durable) -> Iterator[None]:
        with transaction(self):
            yield
            step()
        step()

    files.write, Ledger.append, Durable._transaction = written, appended, within
    return lambda: made[0]
