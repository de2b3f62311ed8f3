"""An engine whose clients answer up to some rounds late, and a schedule that takes what has arrived."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedzero.ledger.store import Ledger
from fedzero.model.updates import Update
from fedzero.protocol.engine import FOREVER, Arrival, Clients, Event, arrivals
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.plan import Plan
from fedzero.recipe.setup import prepare
from fedzero.rounds.schedule import Schedule, StepSoFar
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.runs.recorded import reopen
from fedzero.runs.summary import Summary

OLDEST = 2
"""Replies to the questions of the last three rounds are in a step."""


@dataclass(frozen=True)
class TakesWhatArrived:
    """As many free clients are asked at a step as there are in a cohort; it is made of what comes of itself."""

    plan: Plan
    oldest: int = OLDEST

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        return () if now.step in now.asked.values() else self.free(now)[: self.plan.federation.cohort]

    def free(self, now: StepSoFar) -> tuple[int, ...]:
        """Who can be asked, those first whose turn it would be."""
        N = self.plan.federation.clients
        return tuple(client for i in range(N) if (client := (now.step + i) % N) not in now.asked)

    def made(self, now: StepSoFar) -> bool:
        return False

    def discount(self, age: int) -> float:
        return float((1 + age) ** -0.5)

    def until(self, now: StepSoFar) -> float:
        return FOREVER

    def share(self, replies: int) -> float:
        return 1.0


def lag(asked: int, client: int) -> int:
    """How many rounds after its question a reply arrives."""
    return (asked * asked + client) % (OLDEST + 1)


@dataclass
class Late:
    """Clients who work on what they were sent at once, and whose replies arrive later. away: replies that have left,
    by client and the round of their question; it outlasts the server's process. lost: these never arrive."""

    inner: Clients
    away: dict[tuple[int, int], Arrival] = field(default_factory=dict)
    lost: Collection[tuple[int, int]] = ()
    handed: list[tuple[int, int]] = field(default_factory=list)
    round: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        self.round = asked
        self.inner.send(asked, exchange, messages, which)
        for arrival in arrivals(self.inner):
            self.away.setdefault((arrival.client, asked), arrival)  # what has left is sent again as it is

    def receive(self, seconds: float) -> Sequence[Event]:
        due = [key for key in sorted(self.away) if key not in self.handed and key not in self.lost]
        self.handed += (now := [key for key in due if key[1] + lag(key[1], key[0]) <= self.round])
        return [self.away[key] for key in reversed(now)]

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        self.inner.settle(round, update, closings, diverged)
        for key in self.handed:
            self.away.pop(key, None)
        self.handed = []
        self.round = round + 1


class Stopped(Exception):
    """The process dies."""


def recipe_of(algorithm: Mapping[str, Any], replicas: bool = False, **federation: Any) -> recipes.Recipe:
    return recipes.decode(
        {
            "name": "late",
            "rounds": 12,
            "seed": 3,
            "evaluate_every": 4,
            "algorithm": dict(algorithm),
            "task": {"kind": "quadratic", "dimension": 12, "noise": 0.1},
            "federation": {"clients": 7, "cohort": 3, "bound": 0} | federation,
            "engine": {"kind": "local", "merge": False, "device": "cpu", "replicas": replicas},
        }
    )


def play(
    recipe: recipes.Recipe,
    folder: Path,
    away: dict[tuple[int, int], Arrival],
    watch: Silent | None = None,
    lost: Collection[tuple[int, int]] = (),
    ledger: Ledger | None = None,
    engine: type[Late] = Late,
    schedule: Callable[[Plan], Schedule] = TakesWhatArrived,
) -> Summary:
    """A run of late clients, from its beginning or from where its ledger stands."""
    setup, environment = prepare(recipe, Environment()), Environment(folder=folder)
    with session.opened(setup, environment, Silent(), oldest=OLDEST) as found:
        clients = engine(found.clients, away, lost)
        ledger = ledger or session.create(folder, setup.start)
        opened = session.Opened(found.run, clients, found.past)
        return session.run_to_end(opened, ledger, folder, watch or Silent(), schedule(setup.plan))


def resume(recipe: recipes.Recipe, folder: Path, away: dict[tuple[int, int], Arrival], **options: Any) -> Summary:
    ledger, _ = reopen(folder, Environment(), writable=True)
    return play(recipe, folder, away, ledger=ledger, **options)
