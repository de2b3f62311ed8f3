"""Learning rates as functions of the round.

Server, clients and replay all evaluate them, so they use + − × ÷ and √ only: IEEE operations give every machine the
same bits, a library's cosine would not. A schedule has a length of its own and does not know that of the run, so a run
that is extended goes on as a longer one would.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from msgspec import Meta

from fedzero.errors import Invalid
from fedzero.model.numbers import Natural, NonNegative, Positive, PositiveInt
from fedzero.model.value import Checked, quoted


class Piecewise(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="piecewise"):
    """Straight lines through `points`, pairs (round, rate) in order; constant before the first and after the last."""

    points: Annotated[tuple[tuple[Natural, NonNegative], ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        rounds = [round for round, _ in self.points]
        if any(later <= earlier for earlier, later in pairwise(rounds)):
            raise Invalid(f"points = {quoted(self.points)} must have increasing rounds")

    def at(self, round: int) -> float:
        if round <= self.points[0][0]:
            return self.points[0][1]
        for (left, start), (right, end) in pairwise(self.points):
            if round <= right:
                return start + (end - start) * ((round - left) / (right - left))
        return self.points[-1][1]


class Steps(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="steps"):
    """`start`, multiplied by `factor` at each round in `at_rounds`."""

    start: Positive
    factor: Positive
    at_rounds: tuple[Natural, ...]

    def at(self, round: int) -> float:
        rate = self.start
        for milestone in self.at_rounds:
            if round >= milestone:
                rate *= self.factor
        return rate


class InverseSqrt(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="inverse-sqrt"):
    """start / √(round + 1)."""

    start: Positive

    def at(self, round: int) -> float:
        return self.start / math.sqrt(round + 1)


def _halvings(count: int = 53) -> tuple[tuple[float, float], ...]:
    """(cos, sin) of π/4, π/8, …: C′ = √((1 + C)/2), S′ = S/(2C′), from C = 0, S = 1."""
    cosine, sine, found = 0.0, 1.0, []
    for _ in range(count):
        cosine = math.sqrt((1.0 + cosine) / 2.0)
        sine = sine / (2.0 * cosine)
        found.append((cosine, sine))
    return tuple(found)


_HALVINGS = _halvings()


def half_cosine(part: int, whole: int) -> float:
    """(1 + cos(π · part/whole))/2 = cos²(π/2 · part/whole), from 1 at 0 to 0 at `whole` and after it.

    The angle is the sum of π/4, π/8, … over the binary digits of part/whole, 53 at most: one rotation for each digit
    that is 1, so no error grows with the round.
    """
    if part >= whole:
        return 0.0
    c, s = 1.0, 0.0
    for cosine, sine in _HALVINGS:
        part *= 2
        if part >= whole:
            part -= whole
            c, s = c * cosine - s * sine, s * cosine + c * sine
        if not part:
            break
    return c * c


class Cosine(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="cosine"):
    """end + (start − end)(1 + cos(π · round/rounds))/2; `end` from round `rounds` on."""

    start: Positive
    rounds: PositiveInt
    end: NonNegative = 0.0

    def at(self, round: int) -> float:
        return self.end + (self.start - self.end) * half_cosine(round, self.rounds)


class Exponential(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="exponential"):
    """start · factor^⌊round/every⌋, and no less than `end`."""

    start: Positive
    factor: Annotated[float, Meta(gt=0, le=1)]
    every: PositiveInt = 1
    end: NonNegative = 0.0

    def at(self, round: int) -> float:
        power, square, left = 1.0, self.factor, round // self.every
        while left:
            if left % 2:
                power *= square
            square, left = square * square, left // 2
        return max(self.end, self.start * power)


class OneCycle(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="one-cycle"):
    """From `start` to `peak` in `rise` rounds, then to `end` at round `rounds`, both along half a cosine."""

    start: NonNegative
    peak: Positive
    rise: PositiveInt
    rounds: PositiveInt
    end: NonNegative = 0.0

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if self.rise >= self.rounds:
            raise Invalid(f"rise = {self.rise} must be less than rounds = {self.rounds}")

    def at(self, round: int) -> float:
        if round < self.rise:
            return self.peak + (self.start - self.peak) * half_cosine(round, self.rise)
        return self.end + (self.peak - self.end) * half_cosine(round - self.rise, self.rounds - self.rise)


_Unwarmed = Positive | Piecewise | Steps | InverseSqrt | Cosine | Exponential | OneCycle


class Warmup(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="warmup"):
    """A straight line up to the first rate of `then`, which begins with its round 0 at round `rounds`."""

    rounds: PositiveInt
    then: _Unwarmed

    def at(self, round: int) -> float:
        if round >= self.rounds:
            return rate_at(self.then, round - self.rounds)
        return rate_at(self.then, 0) * ((round + 1) / (self.rounds + 1))


SCHEDULES = (Piecewise, Steps, InverseSqrt, Cosine, Exponential, OneCycle, Warmup)
Schedule = _Unwarmed | Warmup


def rate_at(schedule: Schedule, round: int) -> float:
    return schedule if isinstance(schedule, float) else schedule.at(round)


def reaches_zero(schedule: Schedule) -> bool:
    """Whether the rate is 0 in some round."""
    match schedule:
        case Piecewise():
            return not all(rate for _, rate in schedule.points)
        case OneCycle():
            return not (schedule.start and schedule.end)
        case Cosine() | Exponential():  # in the end the power is rounded to 0
            return not schedule.end
        case Warmup():
            return reaches_zero(schedule.then)
    return False


class Count(Checked, frozen=True, forbid_unknown_fields=True):
    """A number of directions that grows: `start`, then each `then` pair (round, count) from its round on."""

    start: PositiveInt
    then: tuple[tuple[Natural, PositiveInt], ...] = ()

    def at(self, round: int) -> int:
        count = self.start
        for milestone, value in self.then:
            if round >= milestone:
                count = value
        return count


Counts = PositiveInt | Count


def fewest(counts: Counts) -> int:
    return counts if isinstance(counts, int) else min([counts.start, *(count for _, count in counts.then)])


def most(counts: Counts) -> int:
    return counts if isinstance(counts, int) else max([counts.start, *(count for _, count in counts.then)])


def count_at(counts: Counts, round: int) -> int:
    return counts if isinstance(counts, int) else counts.at(round)
