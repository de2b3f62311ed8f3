"""`[federation] schedule`: when the server makes a step, and of which replies.

    synchronous   a cohort is asked at every step, and the step waits for it; with `extra` clients more than it needs
    buffered      m clients are at work at any time; a step is made of the next K reports, whatever their age τ,
                  each with the weight w(τ); w(0) = 1

Values only; `rounds` has what they do.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from fedzero.model.numbers import Natural, NonNegative, Positive, PositiveInt
from fedzero.model.value import TaggedConfig

LEAST_COMPARED = 3
"""Replies of which a median says something; `federation.bound` needs as many."""
OLDEST = 20
"""Steps after which a reply is too old, of a recipe that does not say."""


class Power(TaggedConfig, tag="power"):
    """w(τ) = (1 + τ)^−exponent."""

    exponent: NonNegative = 0.5
    """0: all ages count alike."""

    def weight(self, age: int) -> float:
        return float((1 + age) ** -self.exponent)


class Halving(TaggedConfig, tag="halving"):
    """w(τ) = 2^(−τ / steps)."""

    steps: Positive = 4.0
    """The age at which a reply counts half."""

    def weight(self, age: int) -> float:
        return float(2.0 ** (-age / self.steps))


class SynchronousConfig(TaggedConfig, tag="synchronous"):
    """A step waits for its cohort."""

    extra: Natural = 0
    """Clients that are asked beside the cohort; the first `federation.cohort` replies make the step."""
    deadline: Positive | UnsetType = UNSET
    """Seconds after which the step is made of the replies that are there, if there is one."""

    @property
    def plain(self) -> bool:
        """Whether this is what a federation without the key does."""
        return not self.extra and isinstance(self.deadline, UnsetType)


class BufferedConfig(TaggedConfig, tag="buffered"):
    """A step is made of the next reports, to whichever question of the last steps; nobody waits for the slowest."""

    buffer: PositiveInt
    """K, reports of a step."""
    at_work: PositiveInt | UnsetType = UNSET
    """m, clients at work at a time; default: federation.cohort."""
    oldest: Annotated[int, Meta(ge=1, le=10_000)] = OLDEST
    """Steps after which a report is too old, and its client is refused."""
    weight: Power | Halving = Power()
    """w(τ), the weight of a report of the age τ, in steps."""
    longest: Positive | UnsetType = UNSET
    """Seconds after which a step is made of at least `least` reports; their sum is divided by K all the same."""
    least: PositiveInt | UnsetType = UNSET
    """Reports of a step after `longest` seconds; default: 3, or K where it is less."""
    lease: Positive | UnsetType = UNSET
    """Seconds that a client keeps its place; then another client is asked. A report that comes later still counts."""

    @property
    def fewest(self) -> int:
        """The fewest reports of a step."""
        if isinstance(self.longest, UnsetType):
            return self.buffer
        return min(self.buffer, LEAST_COMPARED) if isinstance(self.least, UnsetType) else self.least


ScheduleConfig = SynchronousConfig | BufferedConfig
