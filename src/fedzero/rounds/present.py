"""A cohort that depends on who is there: drawn among the clients that are present when a step begins.

    C_r ⊆ present,  |C_r| = min(m, |present|)        with the generator of the round's cohort, over the present, sorted

Who is present is an input of the run. It is on disk before the first instruction leaves, so that a server that was
killed asks the same clients the same question; the record of the round keeps who was asked, and replay reads it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from fedzero.errors import FedzeroError
from fedzero.ledger.answers import Answers, Place
from fedzero.model.decoding import decoded
from fedzero.recipe.plan import Plan
from fedzero.recipe.sampling import COHORT
from fedzero.rounds.schedule import StepSoFar
from fedzero.rounds.tracker import ClientTracker

NEAR = 16
"""A client that has up to so many updates more than the server knows is sent them all the same: its question does not
depend on when it came back."""
_asked = msgspec.msgpack.Decoder(dict[int, int])


@runtime_checkable
class Attended(Protocol):
    """Clients that come and go. An engine whose clients do has these two members beside those of `Clients`."""

    def present(self) -> Collection[int]:
        """The clients that may be asked now; waits until there are enough."""
        ...

    @property
    def standing(self) -> Mapping[int, int]:
        """By client that is here: the round that its model is ready for."""
        ...


class Present:
    """A synchronous schedule over the clients that are present. folder: of the run."""

    oldest = 0

    def __init__(self, plan: Plan, attended: Attended, folder: Path):
        self._plan, self._attended, self._folder = plan, attended, folder

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        if now.asked:
            return ()
        present = sorted(set(self._attended.present()))
        return tuple(sorted(self._kept(now.step) or self._drawn(now.step, present)))

    def _drawn(self, step: int, present: list[int]) -> list[int]:
        most = self._plan.federation.cohort
        if len(present) <= most:
            return present
        chosen = self._plan.keys.generator("cohort", step).choice(len(present), most, replace=False, shuffle=False)
        return [present[i] for i in chosen.tolist()]

    def question(self, step: int, clients: Collection[int], tracker: ClientTracker) -> None:
        """Decide which updates the clients of a step are sent: durable before they are."""
        if (kept := self._kept(step)) is not None:
            tracker.reached(kept)
            return
        ready = {client: self._attended.standing.get(client, 0) for client in clients}
        near = 0 if self._plan.chain.hides_clients else NEAR  # there no record says who has which updates
        tracker.reached({c: round for c, round in ready.items() if round - tracker.known[c] > near})
        asked = {client: int(tracker.known[client]) for client in sorted(clients)}
        with closing(Answers(self._folder)) as answers:
            answers.keep(step, 0, {COHORT: b""}, {COHORT: msgspec.msgpack.encode(asked)})

    def _kept(self, step: int) -> dict[int, int] | None:
        """By client that was asked in a step that was not finished: the round of its model, as the server knew it."""
        with closing(Answers(self._folder)) as answers:
            found = answers.find(Place(step, COHORT))
        if found is None:
            return None
        asked = decoded(_asked.decode, found.answer, f"the cohort of round {step}", FedzeroError)
        places = self._plan.federation.clients
        if not all(0 <= client < places and 0 <= known <= step for client, known in asked.items()):
            raise FedzeroError(f"{self._folder}: what is kept of the cohort of round {step} is damaged: delete it")
        return asked

    def made(self, now: StepSoFar) -> bool:
        return not now.awaited

    def discount(self, age: int) -> float:
        return 1.0

    def until(self, now: StepSoFar) -> float:
        return math.inf

    def share(self, replies: int) -> float:
        return 1.0
