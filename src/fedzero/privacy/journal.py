"""What several runs on one data set have spent together, each chosen with knowledge of those before it.

Two rules hold for such choices. *Basic composition* adds ε and δ of what was reserved. A *Rényi filter* (Feldman,
Zrnic, arXiv:2008.11193) fixes one order α at the beginning, adds the divergences of that order, and refuses what would
exceed the budget; it is much the better one for several runs with Gaussian noise. Reserve before the first answer
leaves: a round that was begun is spent, whether it ended or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedzero.errors import Invalid
from fedzero.privacy.gaussian import UPWARDS, expected, proper
from fedzero.privacy.renyi import Curve, converted


@dataclass(frozen=True)
class Spent:
    epsilon: float
    delta: float


def basic(reserved: Iterable[Spent]) -> Spent:
    """Everything together is (Σ ε, Σ δ)-private."""
    kept = list(reserved)
    return Spent(math.fsum(each.epsilon for each in kept), math.fsum(each.delta for each in kept))


@dataclass(frozen=True)
class Filter:
    """Everything that it admits is (epsilon, delta)-private together. `order` does not depend on data, nor on
    answers."""

    epsilon: float
    delta: float
    order: float

    def __post_init__(self) -> None:
        expected(self.epsilon, "epsilon")
        proper(self.delta)
        if self.order <= 1 or self.budget <= 0:
            raise Invalid(f"order = {self.order:g} leaves no budget for epsilon = {self.epsilon:g}")

    @property
    def budget(self) -> float:
        """The largest sum of divergences of this order."""
        return self.epsilon - converted(self.order, self.delta)

    def admits(self, spent: Iterable[Curve], further: Curve) -> bool:
        return self._sum([*spent, further]) <= self.budget * (1 + UPWARDS)

    def epsilon_of(self, spent: Iterable[Curve]) -> float:
        """ε of what was spent so far, at this δ."""
        total = self._sum(spent)
        return total + converted(self.order, self.delta) if total else 0.0

    def _sum(self, curves: Iterable[Curve]) -> float:
        return math.fsum(curve(self.order) for curve in curves)
