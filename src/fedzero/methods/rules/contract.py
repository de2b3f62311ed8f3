"""What a rule is: what becomes of a round's scalars on their way into the model. Rules form a chain (chain.py).

    update(steps, state, at) → steps, state     everybody, when the round's mean scalars are known
    local(steps, state, at) → steps             a client, for its own steps before that
    asked(round) → round                        the round whose directions are used, where it is not the round itself

A rule sees steps as keys, scalars and numbers, never a tensor: so a thousand rounds stay one pass over memory, which
the last rule of a chain, a `KernelRule`, writes down as lines of one program. A rule is a function of the scalars so
far, by operations that have the same bits on every machine.

What may stand beside a rule follows from its traits: what it *needs* may not be *lacking* from a rule before it, from
the kernel rule, or from the method.
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
from fedzero.model.value import TaggedConfig

Fact = Literal["own", "sum", "rounds", "state", "step", "factors", "deviation", "unrated", "fresh"]
"""What a rule may need, and a neighbour may lack.

own: all steps before it are along directions of the round. sum: the model moves by the sum of the steps, as they are.
rounds: every round has directions of its own. state: the method keeps the states of rules. step: the method leaves the
step to the kernel rule. factors: directions are products a bᵀ. deviation: a step has two directions or more.
unrated: the rate does not follow from the scalars yet. fresh: nobody reuses factors yet.
"""


@dataclass(frozen=True)
class RuleTraits:
    """needs: a fact, and the noun that says what for. lacks: a fact, and the clause that says why and what to do."""

    needs: Mapping[Fact, str] = field(default_factory=dict)
    lacks: Mapping[Fact, str] = field(default_factory=dict)


class Answered(NamedTuple):
    """The scalars of a step that answer the question of one round, along its directions: so many, with their weight."""

    round: int
    size: int
    weight: float = 1.0


class Step(NamedTuple):
    """weight · (1/P) Σ_p g_p z_p, to be taken with a rate η.

    parts: of a step made of the replies of several rounds, which of its scalars answer which; then it is the sum of
    parts, weight · w_a · (1/P_a) Σ_p g_p z_p each. Empty: all are of the round of the step.
    own: false for a step that is ready: Σ_p g_p z_p, added as it is, of keys that a stream of higher rank has expanded.
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
        """The scalars by the round that they answer, and their weight."""
        if not self.parts:
            return [(self.scalars, self.weight)]
        weights = (self.weight * part.weight for part in self.parts)
        return list(zip(_split(self.scalars, self.parts), weights, strict=True))

    def change(self) -> Terms:
        """What a plain step adds to the model."""
        if self.own:
            return self.sum(-self.rate)
        assert not isinstance(self.stream, LowRank)
        return Terms(np.asarray(self.keys, np.uint64), self.scalars, self.stream)

    def weighed(self) -> F64:
        """The scalars with their weight, (P,)."""
        return self.scalars.astype(np.float64) * self.weight

    @staticmethod
    def ready(terms: Terms, rounding: int) -> Step:
        """A sum of terms, added as it is."""
        return Step(terms.keys, terms.coefficients, terms.stream, rounding, 0.0, own=False)


class At(NamedTuple):
    """Where a run stands. reach: how far a probe moves a coordinate, root mean square. alone(round): no rule adds a
    correction after the round's own step. terms_of(rounds): keys of the terms of all steps of a round whose replies
    answer the questions of these rounds."""

    round: int
    keys: Keys
    local_steps: int
    directions: int
    reach: float
    alone: Callable[[int], bool]
    terms_of: Callable[[Sequence[int]], U64]


class Rule(TaggedConfig):
    """A rule that changes nothing; derive from it and override what yours does. Fields are the keys of its table in
    `[[algorithm.rules]]`."""

    @property
    def name(self) -> str:
        """The tag, by which recipes choose the rule."""
        return str(self.__struct_config__.tag)

    @property
    def traits(self) -> RuleTraits:
        """What it needs, and what its neighbours cannot have."""
        return RuleTraits()

    def init(self) -> RuleState:
        """The state before round 0; a frozen dataclass of plain values (see `RuleState`)."""
        return NOTHING

    def update(self, steps: list[Step], state: Any, at: At) -> tuple[list[Step], Any]:
        """What becomes of the steps of a round, and of the state; once for every round that has an update."""
        return steps, state

    def local(self, steps: list[Step], state: Any, at: At) -> list[Step]:
        """What becomes of a client's own steps so far, of which the last is about to be taken. The state stays."""
        return steps

    def asked(self, round: int) -> int:
        """The round whose directions a round uses."""
        return round

    def factors(self, round: int) -> int:
        """The round whose right factors directions of a round have."""
        return round

    def corrects(self, round: int) -> bool:
        """Whether it may add a step that is not the round's own."""
        return False

    def max_update_scale(self, scale: float, state: Any, at: At) -> float:
        """How much scalars can weigh in the model, at most, if they weigh `scale` before this rule."""
        return scale


class Line(NamedTuple):
    """A line of a program: what is summed, the key of its rounding, and the kernel's numbers."""

    terms: Terms
    rounding: int
    hypers: tuple[float, ...]


class KernelRule(Rule):
    """The last rule of a chain: what a step does with the sum that the others made of it."""

    kernel: ClassVar[Kernel]

    @property
    def is_plain(self) -> bool:
        """Whether the model moves by the sum of the steps, and nothing is remembered."""
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
    """Sums of terms as one sum."""
    if len(parts) == 1:
        return parts[0]
    return Terms(
        np.concatenate([t.keys for t in parts]), np.concatenate([t.coefficients for t in parts]), parts[0].stream
    )
