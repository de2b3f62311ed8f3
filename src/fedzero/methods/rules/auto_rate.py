"""`rate = "auto"`: a rate found from the scalars that are sent anyway.

Some rounds measure along the directions of the previous round again: g before a plain step −η (1/P) Σ g_p z_p, g′ after
it. The step was as long as that of an exact line search if the new slope along it is 0:

    gᵀg′ = 0 in expectation,   c = 2 gᵀg′ / (‖g‖² + ‖g′‖²) ∈ [−1, 1]
    η ← η (1 + c)  if c > 0 (too short),   η / (1 − c)  if c < 0 (too long)

Different mini-batches in the two rounds do not move this zero: with noise n, n′ independent of each other, E gᵀg′ is
the product of the true slopes. When noise dominates, c becomes negative and the rate falls by itself (Pflug's test,
"Non-asymptotic confidence bounds for stochastic approximation algorithms", 1986).

The first η moves the model as far as a probe does, μ per coordinate. Rounds whose step is not measured take `SHARE` of
the measured rate, because the best rate for one step is too long for many steps; and no step is longer than `CLIP`
times the usual length. The rule is our own. It is a function of the scalars so far, by + − × ÷ and √, so every replica
has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedzero.directions.terms import F32, F64
from fedzero.methods.contract import RuleState
from fedzero.methods.rules.contract import At, Rule, RuleTraits, Step
from fedzero.model.schedules import Schedule

Auto = Literal["auto"]
Rate = Schedule | Auto

WARM_UP = 20
"""In so many rounds at the beginning, every second one measures."""
EVERY = 5
"""Later, one round in so many measures."""
SHARE = 0.5
"""The share of the measured rate that is taken in rounds whose steps are not measured."""
CLIP = 2.0
"""Steps are shortened to at most so many times the usual length."""
KEPT = 0.9
"""The share of the earlier mean square of scalars that is kept in each round."""


def measures(round: int) -> bool:
    """True if a round measures along the directions of the previous round."""
    return round % 2 == 1 if round < WARM_UP else round % EVERY == EVERY - 1


def _product(a: Iterable[float], b: Iterable[float]) -> float:
    """aᵀb with one rounding of the sum, so that a library's order of summation does not matter."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class AutoRateState(RuleState):
    """The rate and its measurements after the rounds so far."""

    measured: float = 0.0
    """the best known η, for which c = 0; 0 before the first scalars"""
    square: float = 0.0
    """the usual mean square of a scalar"""
    scalars: tuple[float, ...] = ()
    """g of the last round, if the next one measures"""
    last: int = -1
    """the last round that had an update"""

    def begun(self, g: F32 | F64, reach: float) -> AutoRateState:
        """This state, with a first rate if it has none: a step along g (steps, P) moves a coordinate by `reach`."""
        now = tuple(map(float, g.flat))
        square = _product(now, now) / g.size
        if self.measured or not square:
            return self
        return replace(self, measured=reach * math.sqrt(g.shape[1] / square), square=square)

    def rate(self, round: int, alone: bool = True) -> float:
        """η of a round, before its scalars are known. alone: the next round can measure its step."""
        return self.measured * (1.0 if measures(round + 1) and alone else SHARE)

    def after(
        self, round: int, g: F32 | F64, reach: float, alone: bool = True, before: bool = True
    ) -> tuple[AutoRateState, float]:
        """(the state after a round's scalars (steps, P), η of the round).

        alone: no correction follows the round's step; before: none followed the step of the previous round.
        """
        now, current = tuple(map(float, g.flat)), self.begun(g, reach)
        length, measured = _product(now, now), current.measured
        if measures(round) and before and self.last == round - 1 and len(self.scalars) == len(now):
            both = length + _product(self.scalars, self.scalars)
            c = 2 * _product(self.scalars, now) / both if both else 0.0
            measured = measured * (1 + c) if c > 0 else measured / (1 - c)
        square = KEPT * current.square + (1 - KEPT) * length / len(now)
        kept = now if measures(round + 1) and alone else ()
        after = AutoRateState(measured=measured, square=square, scalars=kept, last=round)
        longest = CLIP * math.sqrt(square)
        found = math.sqrt(length / len(now))
        return after, after.rate(round, alone) * (min(1.0, longest / found) if found else 1.0)


class AutoRate(Rule, tag="auto-rate"):
    """A rate found from the scalars that are sent anyway.

    If a rule before it weights the scalars, the rate is for the weighted ones. The step before a correction is not
    measured, because the model moves twice.
    """

    traits = RuleTraits(
        needs={
            "own": "steps that are the round's own",
            "sum": "plain steps, which it measures",
            "rounds": "a round that can use directions again",
            "state": "a place for what it knows of the rate",
            "unrated": "scalars before a rate is found from them",
        },
        lacks={"unrated": "auto-rate has found the rate of the scalars as they were: put it after that rule"},
    )

    def init(self) -> RuleState:
        return AutoRateState()

    def asked(self, round: int) -> int:
        return round - 1 if measures(round) else round

    def update(self, steps: list[Step], state: AutoRateState, at: At) -> tuple[list[Step], AutoRateState]:
        alone, before = at.alone(at.round), at.alone(at.round - 1)
        after, rate = state.after(at.round, _weighed(steps), at.reach, alone, before)
        return [step._replace(rate=rate) for step in steps], after

    def local(self, steps: list[Step], state: AutoRateState, at: At) -> list[Step]:
        """η of a client's own steps; before the first rate is known, it follows from the client's own first scalars."""
        rate = state.begun(_weighed(steps[:1]), at.reach).rate(at.round, at.alone(at.round))
        return [step._replace(rate=rate) for step in steps]

    def max_update_scale(self, scale: float, state: AutoRateState, at: At) -> float:
        """Infinite before the first scalars; after them the rate at most doubles in a round."""
        return scale * (2 * state.measured or math.inf)


def _weighed(steps: list[Step]) -> F64:
    """Scalars with their weights, (steps, P)."""
    return np.array([step.weighed() for step in steps])
