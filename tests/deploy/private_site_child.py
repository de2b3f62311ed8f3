"""What the processes of test_private_sites_killed.py do: a server and its sites in one process, killed at one of their
moments, or resumed.

Imported by children of a fork server that has fedzero loaded already.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.journal import Journal
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Exchange, Phase, decode_order
from fedzero.ledger.answers import Answers
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.sampling import PrivateBatches
from fedzero.runs.progress import Silent
from fedzero.runs.spending.budget import Budget
from fedzero.testing.engines import LocalSites

ROUND = 1
"""The round in which processes are killed."""
NAMES = ["north", "south", "west", "east", "centre"]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Heard(LocalSites):
    """Writes down, outside the folders, every answer that leaves a site about a round: a JSON array a line."""

    file = Path()

    def ask(self, orders: Any, *rest: Any) -> Any:
        for site, answer in super().ask(orders, *rest):
            order = decode_order(orders[site])
            if isinstance(order, Exchange | Phase):
                with self.file.open("a") as file:
                    file.write(json.dumps([site, order.round, orders[site].hex(), answer.hex()]) + "\n")
            yield site, answer


def go(recipe: str, folder: str, moment: str = "", plant: bool = False) -> None:
    """moment: where the process is killed, a key of MOMENTS; empty: nowhere. plant: coins are thrown again."""
    torch.set_num_threads(1)
    place = Path(folder)
    if plant:
        PrivateBatches.begin = _thrown_again
    MOMENTS[moment]()
    link = Heard(place / "sites", NAMES)
    link.file = place / "heard"
    made = None if (place / "run" / LEDGER).exists() else recipes.load(recipe)
    run_at_sites(made, place / "run", Environment(), Silent(), Service(link, lambda: NAMES))


def _thrown_again(self: Any, round: int, clients: Any) -> None:
    """A bug: the coins of a round are in memory alone."""
    self._round = round
    self._roots = {client: os.urandom(32) for client in clients}


def _killed(kind: type[Any], name: str, mine: Callable[..., bool], after: bool = True) -> Callable[[], None]:
    """At a call of a method that is `mine`."""

    def light() -> None:
        real = getattr(kind, name)

        def killing(self: Any, *given: Any, **named: Any) -> Any:
            if not after and mine(self, *given):
                die()
            found = real(self, *given, **named)
            if after and mine(self, *given):
                die()
            return found

        setattr(kind, name, killing)

    return light


def _reserved(self: Any, charge: Any, round: int, *rest: Any) -> bool:
    return round == ROUND


def _thrown(self: Any, round: int, *rest: Any) -> bool:
    return round == ROUND


def _answers(self: Any, answers: Any, *rest: Any) -> bool:
    return any(place.round == ROUND for place, _ in answers)


def _phase(self: Any, round: int, exchange: int, asked: Any, answers: Any, *rest: Any) -> bool:
    return round == ROUND and all(-(1 << 30) < client < 0 for client in answers)


def _record(self: Any, records: Any, *rest: Any) -> bool:
    return any(isinstance(record, Round) and record.round == ROUND for record in records)


MOMENTS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "reserved": _killed(Budget, "reserve", _reserved),
    "coins": _killed(PrivateBatches, "begin", _thrown),
    "before answers": _killed(Journal, "record", _answers, after=False),
    "answers": _killed(Journal, "record", _answers),
    "before phase": _killed(Answers, "keep", _phase, after=False),
    "phase": _killed(Answers, "keep", _phase),
    "before record": _killed(Ledger, "append", _record, after=False),
    "record": _killed(Ledger, "append", _record),
}
