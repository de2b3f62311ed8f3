"""The weight of a round's scalars in its step, in addition to η.

    plain        x ← x − (η/P) Σ_p g_p z_p
    normalised   x ← x − (η/(P s)) Σ_p g_p z_p,        s² = Σ_p (g_p − mean g)² / (P − 1)
    rms          x ← x − (η/√P) Σ_p (g_p/r) z_p,       r² = (1/P) Σ_p g_p²

*normalised* is FZOO ("Fast zeroth-order optimizer"): d_p = f(x + μz_p) − f(x), s the deviation of the d_p over the
directions of a step, without 1/μ. With slopes g = d/μ the radius cancels. A common part of all differences (forward
differences have ½ μ tr H) does not change s.
*rms* sets the length of a step: coordinates of z have variance one, so a step moves a weight by η, root mean square,
whatever the slopes are.

Both are functions of the round's mean scalars, by + − × ÷ and √, and sums that are rounded once, so every replica has
the same bits. Scalars that are all zero (or, for s, all equal) make no step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from fedzero.directions.terms import F32
from fedzero.methods.contract import MAX_ABS_COORDINATE
from fedzero.methods.rules.contract import At, Fact, Rule, RuleTraits, Step

Weights = Literal["plain", "normalised", "rms"]

STEEPEST = 2.0**24
"""|mean|/s of float32 numbers that are not all equal is below this times √P: neighbours differ by 2⁻²⁴ or more."""


def factor(step: Weights, g: F32) -> float:
    """The factor by which the scalars of a step (P,) are multiplied, before (η/P) Σ."""
    if step == "plain":
        return 1.0
    values = [float(value) for value in g]
    if step == "rms":
        square = math.fsum(value * value for value in values)
        return len(values) / math.sqrt(square) if square else 0.0
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) * (value - mean) for value in values) / (len(values) - 1)
    return 1 / math.sqrt(square) if square else 0.0


def factors(step: Weights, parts: Sequence[F32]) -> list[float]:
    """The factors of the parts (P_a,) of a step whose estimate is the sum of parts along different directions. Parts
    are independent, so their squares add up: s² = Σ_a s_a², r² = Σ_a r_a² with √P_a in place of √P."""
    own = [factor(step, g) for g in parts]
    if step == "plain" or len(parts) == 1:
        return own
    sizes = [math.sqrt(g.size) if step == "rms" else 1.0 for g in parts]
    square = math.fsum((size / each) ** 2 for size, each in zip(sizes, own, strict=True) if each)
    return [size / math.sqrt(square) if square else 0.0 for size in sizes]


def longest(step: Weights, directions: int) -> float:
    """A bound on Σ_p |factor · g_p| / P for any g, for steps that do not grow with g."""
    return math.sqrt(directions) * (STEEPEST if step == "normalised" else 1.0)


class Weighting(Rule, tag="weighting"):
    """Divides scalars by their deviation, or such that a step moves a weight by η."""

    step: Literal["normalised", "rms"]
    """by their deviation over the directions (normalised), or by their root mean square (rms)"""

    @property
    def traits(self) -> RuleTraits:
        needs: dict[Fact, str] = {
            "own": "scalars that are the round's own",
            "unrated": "scalars before a rate is found from them",
        }
        if self.step == "normalised":
            needs["deviation"] = "a deviation over directions"
        return RuleTraits(needs)

    def update(self, steps: list[Step], state: Any, at: At) -> tuple[list[Step], Any]:
        return self.local(steps, state, at), state

    def local(self, steps: list[Step], state: Any, at: At) -> list[Step]:
        return [self._weighted(step) for step in steps]

    def _weighted(self, step: Step) -> Step:
        found = factors(self.step, [row for row, _ in step.rows()])
        if not step.parts:
            return step._replace(weight=step.weight * found[0])
        parts = zip(step.parts, found, strict=True)
        return step._replace(parts=tuple(part._replace(weight=part.weight * each) for part, each in parts))

    def max_update_scale(self, scale: float, state: Any, at: At) -> float:
        return MAX_ABS_COORDINATE * scale * at.local_steps * longest(self.step, at.directions)
