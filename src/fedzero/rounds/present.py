"""A cohort that depends on who is there: drawn among the clients that are present when a step begins.

    C_r ⊆ present,  |C_r| = min(m, |present|)        with the generator of the round's cohort, over the present, sorted

Who is present is an input of the run. The record of the round keeps who was asked, and replay reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from fedzero.recipe.plan import Plan
from fedzero.rounds.schedule import StepSoFar


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
    """A synchronous schedule over the clients that are present."""

    oldest = 0

    def __init__(self, plan: Plan, attended: Attended):
        self._plan, self._attended = plan, attended

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        return () if now.asked else self._drawn(now.step, sorted(set(self._attended.present())))

    def _drawn(self, step: int, present: list[int]) -> tuple[int, ...]:
        most = self._plan.federation.cohort
        if len(present) <= most:
            return tuple(present)
        chosen = self._plan.keys.generator("cohort", step).choice(len(present), most, replace=False, shuffle=False)
        return tuple(present[i] for i in sorted(chosen.tolist()))

    def ready(self, clients: Collection[int]) -> dict[int, int]:
        """By client: the round from which on it lacks the updates."""
        standing = self._attended.standing
        return {client: standing[client] for client in clients if client in standing}

    def made(self, now: StepSoFar) -> bool:
        return not now.awaited

    def discount(self, age: int) -> float:
        return 1.0
