"""Learning rates as functions of the round.

Server, clients and replay all evaluate them, so they use + − × ÷ and √ only: IEEE operations give every machine the
same bits, a library's cosine would not.
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


Schedule = Positive | Piecewise | Steps | InverseSqrt


def rate_at(schedule: Schedule, round: int) -> float:
    return schedule if isinstance(schedule, float) else schedule.at(round)


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
