"""Rényi divergences of mechanisms, for what has no closed form and for what has to add up across runs.

A curve α ↦ D(α), α > 1, bounds the divergence of order α between the outputs for neighbouring data. Curves of releases
that are chosen one after the other add up. A mechanism with D(α) ≤ r for one α is (ε, δ)-private with

    ε = r + ln(1 − 1/α) − ln(α δ)/(α − 1)                (Canonne, Kamath, Steinke, arXiv:2004.00010, proposition 12)

so every α gives a bound, and the smallest is taken. These bounds hold without the extra `privacy`; for the subsampled
Gaussian the figures of `accounting` are smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedzero.errors import Invalid
from fedzero.privacy.gaussian import expected, proper

Curve = Callable[[float], float]

WHOLE = (*range(2, 129), *range(130, 257, 2), *range(260, 1025, 20))
"""Orders for what is subsampled: the formula is for whole ones."""
REAL = tuple(1 + 10 ** (i / 60) for i in range(-180, 301))
"""Orders from 1.001 to 100,001 in steps of 4 % of α − 1; ε between two of them is not 0.1 % better."""


def epsilon_of(curve: Curve, delta: float, orders: Sequence[float] = REAL) -> float:
    """The smallest ε over the given orders."""
    return max(0.0, min(curve(order) + converted(order, delta) for order in orders))


def converted(order: float, delta: float) -> float:
    """What is added to a divergence of this order."""
    return math.log1p(-1 / order) - math.log(order * proper(delta)) / (order - 1)


def best_order(curve: Curve, delta: float, orders: Sequence[float] = REAL) -> float:
    """The order that gives the smallest ε."""
    return min(orders, key=lambda order: curve(order) + converted(order, delta))


def gaussian(sigma: float) -> Curve:
    """One step with noise multiplier σ: D(α) = α/(2σ²), zero-concentrated differential privacy with ρ = 1/(2σ²)."""
    expected(sigma, "sigma")
    return lambda order: order / (2 * sigma**2)


def subsampled(curve: Curve, q: float, steps: int) -> Curve:
    """Steps of a mechanism that adds symmetric noise to a sum, each unit present with probability q. Whole orders for q
    < 1.

    curve: of one step with every unit; a unit is added or removed. With P for the output without a unit, P′ with it,
    and M = (1 − q) P + q P′, the binomial theorem gives

        exp((α − 1) D(M ‖ P)) = Σ_k C(α, k) (1 − q)^(α−k) q^k exp((k − 1) D_k(P′ ‖ P)),   D_k ≤ curve(k)

    and D(P ‖ M) ≤ D(M ‖ P), since z ↦ v − z exchanges P and P′ if the unit is worth v (Mironov, Talwar, Zhang,
    arXiv:1908.10530, theorem 5: Gaussian noise; the same holds on the integers, where v is whole).
    """
    if not 0 < q <= 1:
        raise Invalid(f"q = {q} is not valid: above 0, at most 1")

    def found(order: float) -> float:
        if q == 1:
            return steps * curve(order)
        whole = _whole(order)
        parts = [_part(whole, k, q) + (k - 1) * curve(k) if k > 1 else _part(whole, k, q) for k in range(whole + 1)]
        return steps * _log_sum(parts) / (whole - 1)

    return found


def _whole(order: float) -> int:
    if order != int(order):
        raise Invalid(f"no divergence of order {order}: whole ones only")
    return int(order)


def _log_sum(parts: list[float]) -> float:
    """ln Σ exp(part)."""
    most = max(parts)
    return most + math.log(math.fsum(math.exp(part - most) for part in parts))


def _part(order: int, k: int, q: float) -> float:
    """The logarithm of a binomial probability."""
    choose = math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
    return choose + k * math.log(q) + (order - k) * math.log1p(-q)


def sum_of_discrete_gaussians(variance: float, parties: int, count: int, allowance: float, steps: int = 1) -> Curve:
    """Steps that publish an integer vector of `count` numbers plus the noise of so many *honest* parties, each a
    discrete Gaussian of this variance a number; one unit changes the vector by a squared norm of at most `allowance`.

    A sum of discrete Gaussians is not one, but nearly (Kairouz, Liu, Steinke, arXiv:2102.06387, proposition 14). With
    d = count, Δ² = allowance/(parties · variance), Δ₁ = min(√d, √allowance) Δ since the vector is whole, and

        τ = 10 Σ_{k=1}^{parties−1} exp(−2π² variance k/(k + 1))
        D(α) ≤ min(α Δ²/2 + τ d,   α (Δ² + 2 τ Δ₁ + τ² d)/2,   α (Δ + τ √d)²/2)

    Further noise changes nothing: whoever has the sum can add it. A unit that is replaced: four times the allowance.
    """
    if not (variance >= 0.25 and parties >= 1 and count >= 1 and allowance > 0):
        raise Invalid("noise of several parties needs a standard deviation of at least 1/2 each, and one honest party")
    rate = 2 * math.pi**2 * variance
    tau = 10 * math.fsum(math.exp(-rate * k / (k + 1)) for k in range(1, parties))
    shift = math.sqrt(allowance / (parties * variance))
    absolute = min(math.sqrt(count), math.sqrt(allowance)) * shift
    by_order = min(shift**2 + 2 * tau * absolute + tau**2 * count, (shift + tau * math.sqrt(count)) ** 2)

    def curve(order: float) -> float:
        return steps * min(order * shift**2 / 2 + tau * count, order * by_order / 2)

    return curve
