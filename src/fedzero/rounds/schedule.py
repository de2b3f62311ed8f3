"""A schedule decides when a step is made, and which clients are asked at it. Nothing else differs between servers that
wait for all replies and servers that do not.

A *question* is the instruction of one step to one client; it is open until the client's turn ends with a reply that
counts or with a refusal. A client has at most one open question, and may be asked again from the step after its turn
on. A schedule's decisions may depend on who answered when: the ledger records the outcome, and replay never asks a
schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedzero.errors import FedzeroError
from fedzero.methods.shared.groups import why_one_round
from fedzero.recipe.plan import Plan


@dataclass(frozen=True)
class StepSoFar:
    """A step in progress. asked: by client, the step of its question, if the question is open or ended in this step;
    awaited: the part of `asked` with open questions; replies: clients whose replies count so far. time, began: now, and
    when the step began, in seconds; since: by client with an open question, when it was asked."""

    step: int
    asked: Mapping[int, int] = field(default_factory=dict)
    awaited: Mapping[int, int] = field(default_factory=dict)
    replies: Collection[int] = ()
    time: float = 0.0
    began: float = 0.0
    since: Mapping[int, float] = field(default_factory=dict)


class Schedule(Protocol):
    """oldest: a step may contain replies to questions of up to so many steps before; 0: only to its own."""

    @property
    def oldest(self) -> int: ...

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        """The clients to ask now, each as often as it is drawn, and none of `now.asked`; called when a step begins, and
        after every arrival."""
        ...

    def made(self, now: StepSoFar) -> bool:
        """Whether the step is made of the replies that have come. It is also made when no more replies can come."""
        ...

    def discount(self, age: int) -> float:
        """The weight of a reply to a question of `age` steps before; 1 for a fresh one."""
        ...

    def until(self, now: StepSoFar) -> float:
        """The time at which `made` or `ask` may change although nothing arrives; `inf`: never."""
        ...

    def share(self, replies: int) -> float:
        """The factor of a step of so many replies: below 1 if it is divided by more of them than came."""
        ...


@dataclass(frozen=True)
class Synchronous:
    """A cohort is drawn for every step; the step is made when every client of it has answered or can no longer answer.

    cohort: by step; a private draw is durable before it is returned.
    """

    cohort: Callable[[int], tuple[int, ...]]
    oldest: int = 0

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        return () if now.asked else self.cohort(now.step)

    def made(self, now: StepSoFar) -> bool:
        return not now.awaited

    def discount(self, age: int) -> float:
        return 1.0

    def until(self, now: StepSoFar) -> float:
        return math.inf

    def share(self, replies: int) -> float:
        return 1.0


def check_several_steps(plan: Plan, server_model: bool, metered: bool) -> None:
    """Refuse a run whose steps cannot be made of replies to questions of several steps; this follows from traits."""
    federation, chain = plan.federation, plan.chain
    comparing = [link.name for link in chain.server_links if link.traits.comparable_only]
    comparing += [] if chain.combiner is None else [chain.combiner.name]
    refusals = (
        (bool(why := why_one_round(plan.traits, len(plan.cost(0).replies))), why),
        (chain.feedback, "a filter with feedback = true keeps a memory, which follows the last round that counted"),
        (bool(comparing), f"the filter {''.join(comparing[:1])!r} compares numbers of one round's directions"),
        (federation.sync, "federation.sync = true brings clients to the next step, while others still answer this one"),
        (federation.replacement, "federation.replacement = true asks a client twice at one step"),
        (not server_model, "a server without a model tells a model that differs by the replies of one round"),
        (chain.gathering is not None, "a gathering makes one sum of the replies to one question"),
        (metered, "queries of black boxes are logged and paid for by round"),
    )
    for holds, why in refusals:
        if holds:
            raise FedzeroError(f"steps of several rounds do not work with {plan.algorithm.name} here: {why}")
