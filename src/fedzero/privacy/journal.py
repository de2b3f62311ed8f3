"""What several runs on one data set have spent together, each chosen with knowledge of those before it.

Two rules hold for such choices. *Basic composition* adds ε and δ of what was reserved. A *Rényi filter* (Feldman,
Zrnic, arXiv:2008.11193) fixes one order α at the beginning, adds the divergences of that order, and refuses what would
exceed the budget; it is much the better one for several runs with Gaussian noise. Reserve before the first answer
leaves: a round that was begun is spent, whether it ended or not.

Who chooses the order chooses what fits, so a filter may have further orders A, also fixed at the beginning, among which
δ is divided: Σ δ_α ≤ δ. It admits what the budget of one of them has room for. Let M be all that is admitted, M_α the
same until the budget of α is exceeded, and S_α those outcomes of S at whose end α is the first order with room: there M
and M_α are the same, so

    P(M(x) ∈ S) = Σ_α P(M_α(x) ∈ S_α) ≤ Σ_α (exp(ε) P(M_α(x′) ∈ S_α) + δ_α) ≤ exp(ε) P(M(x′) ∈ S) + δ
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

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
    """Everything that it admits is (epsilon, delta)-private together. `order` and `others` do not depend on data, nor
    on answers; with others, half of δ is for the order, and they share the other half."""

    epsilon: float
    delta: float
    order: float
    others: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        expected(self.epsilon, "epsilon")
        proper(self.delta)
        if min(self._added) <= 1 or min(self._added.values()) >= self.epsilon:
            raise Invalid(f"order = {self.order:g} leaves no budget for epsilon = {self.epsilon:g}")

    @cached_property
    def _added(self) -> dict[float, float]:
        """By order, what turns a sum of divergences into ε."""
        others = set(self.others) - {self.order}
        parts = dict.fromkeys(others, self.delta / (2 * len(others))) if others else {}
        parts[self.order] = self.delta / 2 if others else self.delta
        return {order: converted(order, delta) if order > 1 else math.inf for order, delta in parts.items()}

    def admits(self, spent: Iterable[Curve], further: Curve) -> bool:
        curves = [*spent, further]
        return any(
            _sum(curves, order) <= (self.epsilon - added) * (1 + UPWARDS)
            for order, added in self._added.items()
            if added < self.epsilon
        )

    def epsilon_of(self, spent: Iterable[Curve]) -> float:
        """ε of what was spent so far, at this δ."""
        curves = list(spent)
        found = min(_sum(curves, order) + added for order, added in self._added.items())
        return found if any(curve(self.order) for curve in curves) else 0.0


def _sum(curves: Sequence[Curve], order: float) -> float:
    return math.fsum(curve(order) for curve in curves)
