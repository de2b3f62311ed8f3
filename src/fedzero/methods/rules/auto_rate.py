"""`rate = "auto"`: a rate found from the scalars that are on the wire anyway.

In some rounds the directions of the round before are measured again: g before a plain step −η (1/P) Σ g_p z_p, g′ after
it. The step was as long as an exact line search would make it where the new slope along it is 0:

    gᵀg′ = 0 in expectation,   c = 2 gᵀg′ / (‖g‖² + ‖g′‖²) ∈ [−1, 1]
    η ← η (1 + c)  if c > 0 (too short),   η / (1 − c)  if c < 0 (too long)

Mini-batches that differ between the two rounds leave the zero where it is: with noise n, n′ independent of each other,
E gᵀg′ is the product of the true slopes. When noise takes over, c turns negative and the rate falls by itself (Pflug's
test, "Non-asymptotic confidence bounds for stochastic approximation algorithms", 1986).

The first η moves the model as far as a probe does, μ a coordinate. Other rounds take `SHARE` of the measured rate,
since a rate that is best for one step is too long for many, and no step is longer than `CLIP` times the usual length.
The rule is ours. All of it is a function of the scalars so far, by + − × ÷ and √: every replica has the same bits.
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
"""Rounds in which every second one measures."""
EVERY = 5
"""Of the rounds after those, one in so many measures."""
SHARE = 0.5
"""Of the measured rate, taken in rounds whose steps are not measured."""
CLIP = 2.0
"""A step longer than so many times the usual is shortened to that."""
KEPT = 0.9
"""Of the mean square of earlier scalars, in each round."""


def measures(round: int) -> bool:
    """True if a round measures along the directions of the round before."""
    return round % 2 == 1 if round < WARM_UP else round % EVERY == EVERY - 1


def _product(a: Iterable[float], b: Iterable[float]) -> float:
    """aᵀb, the sum rounded once, so that no library's order of summation shows."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class AutoRateState(RuleState):
    """What is known of the rate after the rounds so far."""

    measured: float = 0.0
    """η that makes c = 0, as far as known; 0 before the first scalars"""
    square: float = 0.0
    """the usual mean square of a scalar"""
    scalars: tuple[float, ...] = ()
    """g of the last round, if the next one measures"""
    last: int = -1
    """the last round that had an update"""

    def begun(self, g: F32 | F64, reach: float) -> AutoRateState:
        """With the first rate, if there is none yet: a step along g (steps, P) moves a coordinate by `reach`."""
        now = tuple(map(float, g.flat))
        square = _product(now, now) / g.size
        if self.measured or not square:
            return self
        return replace(self, measured=reach * math.sqrt(g.shape[1] / square), square=square)

    def rate(self, round: int, alone: bool = True) -> float:
        """η of a round, before its scalars are known; not `alone`: the next round will not measure it."""
        return self.measured * (1.0 if measures(round + 1) and alone else SHARE)

    def after(
        self, round: int, g: F32 | F64, reach: float, alone: bool = True, before: bool = True
    ) -> tuple[AutoRateState, float]:
        """(what is known after a round's scalars (steps, P), η of the round).

        alone: the model is not corrected after the round's step; before: nor was it after that of the round before.
        """
        now, pace = tuple(map(float, g.flat)), self.begun(g, reach)
        length, measured = _product(now, now), pace.measured
        if measures(round) and before and self.last == round - 1 and len(self.scalars) == len(now):
            both = length + _product(self.scalars, self.scalars)
            c = 2 * _product(self.scalars, now) / both if both else 0.0
            measured = measured * (1 + c) if c > 0 else measured / (1 - c)
        square = KEPT * pace.square + (1 - KEPT) * length / len(now)
        kept = now if measures(round + 1) and alone else ()
        after = AutoRateState(measured=measured, square=square, scalars=kept, last=round)
        longest = CLIP * math.sqrt(square)
        found = math.sqrt(length / len(now))
        return after, after.rate(round, alone) * (min(1.0, longest / found) if found else 1.0)


class AutoRate(Rule, tag="auto-rate"):
    """A rate found from the scalars that are on the wire anyway. It is that of the weighted scalars, where they are
    weighted; the step before a correction is not measured, since the model moved twice."""

    @property
    def traits(self) -> RuleTraits:
        return RuleTraits(
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
        """η of a client's own steps, which come before anybody knows the round's scalars, by its own first ones."""
        rate = state.begun(_weighed(steps[:1]), at.reach).rate(at.round, at.alone(at.round))
        return [step._replace(rate=rate) for step in steps]

    def max_update_scale(self, scale: float, state: AutoRateState, at: At) -> float:
        """Before the first scalars nothing is known of it; after them it doubles in a round at most."""
        return scale * (2 * state.measured or math.inf)


def _weighed(steps: list[Step]) -> F64:
    """Scalars with their weights, (steps, P)."""
    return np.array([step.weighed() for step in steps])
