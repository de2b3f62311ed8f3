"""What a round's scalars weigh in its step, beside η, and the mean of past iterates as one step more.

    plain        x ← x − (η/P) Σ_p g_p z_p
    normalised   x ← x − (η/(P s)) Σ_p g_p z_p,        s² = Σ_p (g_p − mean g)² / (P − 1)
    rms          x ← x − (η/√P) Σ_p (g_p/r) z_p,       r² = (1/P) Σ_p g_p²

*normalised* is FZOO ("Fast zeroth-order optimizer"): d_p = f(x + μz_p) − f(x), s the deviation of the d_p over the
directions of a step, and no 1/μ. With slopes g = d/μ the radius cancels. Where differences have a common part (forward
ones do: ½ μ tr H), s does not see it.
*rms* states a step by its length: coordinates of z have variance one, so that a step moves a weight by η, root mean
square, whatever the slopes are.

Both are functions of the round's mean scalars, by + − × ÷ and √, and sums that are rounded once: every replica has the
same bits. Scalars that are all zero (or, for s, all equal) make no step.

`average = n`: after every n rounds the model becomes the mean of its last n iterates. With Δ_1 … Δ_n the changes of the
window,

    mean(x_1 … x_n) = x_n − Σ_i ((i−1)/n) Δ_i

which is a sum of the window's own terms with other coefficients: one step more, folded by everybody. The coefficients
of the window are carried in the state until then. A window whose last round has no update is not averaged. While the
model still moves in one direction, a mean takes it back by half a window; `average_from = r` leaves out the rounds
before r, so that `average_from` = `average` = half of the rounds is the mean of the second half, taken once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedzero.directions.terms import F32
from fedzero.methods.contract import Carry, Numbers
from fedzero.model.updates import pack, unpack

Step = Literal["plain", "normalised", "rms"]

STEEPEST = 2.0**24
"""|mean|/s of float32 numbers that are not all equal is below this times √P: neighbours differ by 2⁻²⁴ or more."""


def factor(step: Step, g: F32) -> float:
    """What the scalars of a step (P,) are multiplied with, before (η/P) Σ."""
    if step == "plain":
        return 1.0
    values = [float(value) for value in g]
    if step == "rms":
        square = math.fsum(value * value for value in values)
        return len(values) / math.sqrt(square) if square else 0.0
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) * (value - mean) for value in values) / (len(values) - 1)
    return 1 / math.sqrt(square) if square else 0.0


def factors(step: Step, parts: Sequence[F32]) -> list[float]:
    """The same for every part (P_a,) of a step whose estimate is the sum of parts along directions of their own. Parts
    are independent, so their squares add up: s² = Σ_a s_a², r² = Σ_a r_a² with √P_a in the place of √P."""
    own = [factor(step, g) for g in parts]
    if step == "plain" or len(parts) == 1:
        return own
    sizes = [math.sqrt(g.size) if step == "rms" else 1.0 for g in parts]
    square = math.fsum((size / each) ** 2 for size, each in zip(sizes, own, strict=True) if each)
    return [size / math.sqrt(square) if square else 0.0 for size in sizes]


def longest(step: Step, directions: int) -> float:
    """Σ_p |factor · g_p| / P at most, whatever g is, for steps that do not grow with it."""
    return math.sqrt(directions) * (STEEPEST if step == "normalised" else 1.0)


@dataclass(frozen=True)
class Window(Carry):
    """Coefficients of the window's rounds so far, float32, by round; of a step made of the replies of several rounds,
    these behind them."""

    coefficients: Mapping[int, bytes | tuple[Any, ...]] = field(default_factory=dict)

    def with_numbers(self, numbers: Numbers) -> Carry:
        return Carry.with_numbers(self, numbers) if numbers else Window()  # 0: it is empty there

    def after(self, round: int, coefficients: F32, length: int, first: int = 0, asked: Sequence[int] = ()) -> Window:
        """With a round's; windows are counted from round `first`. The first round of each is left out: Δ_1 is in all of
        its iterates."""
        start = round - (round - first) % length
        kept = {r: c for r, c in self.coefficients.items() if start <= r < start + length}
        packed = pack(coefficients) if set(asked) <= {round} else (pack(coefficients), *asked)
        return Window(kept | ({round: packed} if round > start else {}))

    def asked(self, round: int) -> Sequence[int]:
        """The rounds along whose directions a round went."""
        found = self.coefficients[round]
        return (round,) if isinstance(found, bytes) else found[1:]

    def correction(self, length: int, first: int = 0) -> dict[int, F32]:
        """By round, the coefficients that take x_n to the mean."""
        return {
            round: (
                unpack(found if isinstance(found, bytes) else found[0]).astype(np.float64)
                * (-((round - first) % length) / length)
            ).astype(np.float32)
            for round, found in sorted(self.coefficients.items())
        }
