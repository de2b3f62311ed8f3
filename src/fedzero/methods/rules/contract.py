"""The contract of rules. A rule changes a round's scalars on their way into the model; rules form a chain (chain.py).

    update(steps, state, at) → steps, state     everybody, when the round's mean scalars are known
    local(steps, state, at) → steps             a client, for its own steps before that
    asked(round) → round                        the round whose directions are used, if it is not the round itself

A rule sees steps as keys, scalars and numbers, never a tensor. A thousand rounds therefore remain one pass over memory,
which the last rule of a chain, a `KernelRule`, writes as lines of one program. A rule is a function of the scalars so
far, by operations that have the same bits on every machine.

A rule's traits decide with which rules and methods it can be combined: a fact that it *needs* must not be *lacking* in
a rule before it, in the kernel rule, or in the method.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from fedzero.directions import Keys, LowRank, Stream, Terms
from fedzero.directions import Rule as Kernel
from fedzero.directions.terms import F32, F64, U64
from fedzero.methods.contract import NOTHING
from fedzero.methods.contract import RuleState as RuleState
from fedzero.model.value import Named

Fact = Literal["own", "sum", "rounds", "state", "step", "factors", "deviation", "unrated", "fresh"]
"""A fact that a rule may need, and that another rule or the method may lack.

own: all steps so far are along directions of the round. sum: the model moves by the unchanged sum of the steps.
rounds: every round has its own directions. state: the method keeps the states of rules. step: the method leaves the
step to the kernel rule. factors: directions are products a bᵀ. deviation: a step has two directions or more.
unrated: no rule has found a rate from the scalars yet. fresh: no other rule reuses factors.
"""


@dataclass(frozen=True)
class RuleTraits:
    """needs: by fact, a noun phrase for the message, which says what is needed. lacks: by fact, a clause for the
    message, which says why it is lacking and what to do."""

    needs: Mapping[Fact, str] = field(default_factory=dict)
    lacks: Mapping[Fact, str] = field(default_factory=dict)


class Answered(NamedTuple):
    """The part of a step's scalars that answers the question of one round: their number and weight."""

    round: int
    size: int
    weight: float = 1.0


class Step(NamedTuple):
    """weight · (1/P) Σ_p g_p z_p, to be taken with a rate η.

    parts: for a step made of the replies of several rounds, which of its scalars answer which round; the step is then
    the sum of its parts, weight · w_a · (1/P_a) Σ_p g_p z_p each. Empty: all scalars answer the round of the step.
    own: false for a step that is ready: Σ_p g_p z_p, added unchanged; its keys are expanded from higher ranks already.
    """

    keys: Sequence[int] | U64
    scalars: F32
    stream: Stream
    rounding: int
    rate: float
    weight: float = 1.0
    own: bool = True
    parts: tuple[Answered, ...] = ()

    def sum(self, eta: float = 1.0) -> Terms:
        """η · weight · (1/P) Σ_p g_p z_p"""
        if not self.parts:
            return average(self.keys, self.scalars, eta * self.weight, self.stream)
        pieces = zip(_split(self.keys, self.parts), self.rows(), strict=True)
        return joined([average(keys, row, eta * weight, self.stream) for keys, (row, weight) in pieces])

    def rows(self) -> list[tuple[F32, float]]:
        """The scalars of each part, and their weight."""
        if not self.parts:
            return [(self.scalars, self.weight)]
        weights = (self.weight * part.weight for part in self.parts)
        return list(zip(_split(self.scalars, self.parts), weights, strict=True))

    def change(self) -> Terms:
        """The change of the model by a plain step."""
        if self.own:
            return self.sum(-self.rate)
        assert not isinstance(self.stream, LowRank)
        return Terms(np.asarray(self.keys, np.uint64), self.scalars, self.stream)

    def weighed(self) -> F64:
        """The scalars with their weight, (P,)."""
        return self.scalars.astype(np.float64) * self.weight

    @staticmethod
    def ready(terms: Terms, rounding: int) -> Step:
        """A step that adds a sum of terms unchanged."""
        return Step(terms.keys, terms.coefficients, terms.stream, rounding, 0.0, own=False)


class At(NamedTuple):
    """The round at which a rule is applied. reach: the root mean square move of a coordinate by a probe. alone(round):
    no rule adds a correction after the round's own step. terms_of(rounds): keys of the terms of all steps of a round
    whose replies answer the questions of these rounds."""

    round: int
    keys: Keys
    local_steps: int
    directions: int
    reach: float
    alone: Callable[[int], bool]
    terms_of: Callable[[Sequence[int]], U64]


class Rule(Named):
    """A rule that changes nothing; derive your rule from it and override members. Fields are the keys of its table in
    `[[algorithm.rules]]`."""

    @property
    def traits(self) -> RuleTraits:
        """The facts that it needs, and the facts that it takes from other rules."""
        return RuleTraits()

    def init(self) -> RuleState:
        """The state before round 0; a frozen dataclass of plain values (see `RuleState`)."""
        return NOTHING

    def update(self, steps: list[Step], state: Any, at: At) -> tuple[list[Step], Any]:
        """The changed steps of a round, and the state after it; called once for every round that has an update."""
        return steps, state

    def local(self, steps: list[Step], state: Any, at: At) -> list[Step]:
        """The changed local steps of a client so far; the last one is about to be taken. The state does not change."""
        return steps

    def asked(self, round: int) -> int:
        """The round whose directions a round uses."""
        return round

    def factors(self, round: int) -> int:
        """The round whose right factors a round's directions use."""
        return round

    def corrects(self, round: int) -> bool:
        """Whether it may add a step that is not the round's own."""
        return False

    def max_update_scale(self, scale: float, state: Any, at: At) -> float:
        """The largest factor from scalars to the model, if it is `scale` without this rule."""
        return scale


class Line(NamedTuple):
    """A line of a program: the terms to sum, the key of the rounding, and the kernel's numbers."""

    terms: Terms
    rounding: int
    hypers: tuple[float, ...]


class KernelRule(Rule):
    """The last rule of a chain: it turns the sum into a step of the model."""

    kernel: ClassVar[Kernel]

    @property
    def is_plain(self) -> bool:
        """Whether the model moves by the sum of the steps, without a state."""
        return self.kernel is Kernel.SGD

    def hypers(self, rate: float, step: int) -> tuple[float, ...]:
        """The kernel's numbers in step `step` = 0, 1, …"""
        raise NotImplementedError

    def lines(self, steps: Sequence[Step], taken: int) -> list[Line]:
        """A line for each step, after `taken` earlier ones. Kernels take the gradient and multiply by −η themselves."""
        return [Line(s.sum(), s.rounding, self.hypers(s.rate, taken + i)) for i, s in enumerate(steps)]


V = TypeVar("V", bound=Sequence[Any] | F32 | U64)


def _split(values: V, parts: Sequence[Answered]) -> list[V]:
    ends = list(itertools.accumulate(part.size for part in parts))
    return [values[end - part.size : end] for part, end in zip(parts, ends, strict=True)]  # type: ignore[misc]


def average(keys: Sequence[int] | U64, g: F32, factor: float, stream: Stream) -> Terms:
    """factor · (1/P) Σ_p g_p z_p"""
    return Terms.of(keys, (factor / len(keys) * g.astype(np.float64)).astype(np.float32), stream)


def joined(parts: Sequence[Terms]) -> Terms:
    """Several sums of terms as one sum."""
    if len(parts) == 1:
        return parts[0]
    return Terms(
        np.concatenate([t.keys for t in parts]), np.concatenate([t.coefficients for t in parts]), parts[0].stream
    )
