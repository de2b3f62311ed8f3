"""ε of the Gaussian mechanism without subsampling, in closed form.

T releases f(x) + N(0, σ²Δ²) with ‖f(x) − f(x′)‖₂ ≤ Δ, chosen one after the other, tell as much as one with
μ = √T/σ: they are μ-Gaussian differentially private. It is (ε, δ)-private exactly for

    δ = Φ(μ/2 − ε/μ) − exp(ε) Φ(−μ/2 − ε/μ)                                     (Balle, Wang, arXiv:1805.06530)

A unit is added or removed (Δ = C, the clip) or replaced by another (Δ = 2C, so μ is twice as large).

With a = ε/μ + μ/2 and b = ε/μ − μ/2, exp(ε) φ(a) = φ(b), so δ = Φ(−b) − φ(b) M(a) with Mills' ratio M(a) = Φ(−a)/φ(a):
nothing overflows. ε and σ are rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fedzero.errors import Invalid

STEEP = 8.0
"""From here on Mills' ratio is a continued fraction; below, erfc and exp have all their digits."""
UPWARDS = 1e-9
"""Relative: more than all errors of rounding in a result."""


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest δ for this ε."""
    if mu == 0:
        return 0.0
    a, b = epsilon / mu + mu / 2, epsilon / mu - mu / 2
    density = math.exp(-b * b / 2) / math.sqrt(2 * math.pi)
    if b <= 0:
        return max(0.0, math.erfc(b / math.sqrt(2)) / 2 - density * mills(a))
    return max(0.0, density * (mills(b) - mills(a)))


def mills(x: float) -> float:
    """Φ(−x)/φ(x) for x ≥ 0; from `STEEP` on 1/(x + 1/(x + 2/(x + 3/…)))."""
    if x < STEEP:
        return math.sqrt(math.pi / 2) * math.erfc(x / math.sqrt(2)) * math.exp(x * x / 2)
    rest = x
    for k in range(60, 0, -1):
        rest = x + k / rest
    return 1 / rest


def epsilon_of(sigma: float, steps: float, delta: float, *, replaced: bool = False) -> float:
    """ε of so many releases with noise multiplier σ = (standard deviation of the noise)/C."""
    return epsilon_of_mu((2 if replaced else 1) * math.sqrt(steps) / expected(sigma, "sigma"), delta)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The smallest ε of a μ-Gaussian differentially private mechanism."""
    proper(delta)
    if delta_of(0.0, mu) <= delta:
        return 0.0
    return largest_where(lambda epsilon: delta_of(epsilon, mu) > delta, 1.0)


def sigma_of(epsilon: float, steps: float, delta: float, *, replaced: bool = False) -> float:
    """The smallest noise multiplier with which so many releases are (ε, δ)-private."""
    proper(delta)
    expected(epsilon, "epsilon")
    mu = 1 / largest_where(lambda inverse: delta_of(epsilon, 1 / inverse) > delta, 1.0)
    return (2 if replaced else 1) * math.sqrt(steps) / mu


def largest_where(holds: Callable[[float], bool], first: float, within: float = UPWARDS) -> float:
    """The end of [0, x), where a condition holds that then never holds again, at most so much too large: doubled, then
    halved."""
    high = first
    while holds(high):
        high *= 2
    low = 0.0
    while high - low > within * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high * (1 + UPWARDS)


def expected(number: float, name: str) -> float:
    if not (math.isfinite(number) and number > 0):
        raise Invalid(f"{name} = {number} is not valid: a finite number above 0")
    return number


def proper(delta: float) -> float:
    if not 0 < delta < 1:
        raise Invalid(f"delta = {delta} is not valid: between 0 and 1")
    return delta


def small_enough(delta: float, units: int) -> float:
    """δ, where δ · units ≤ 0.1. A mechanism that publishes each unit with probability δ is (0, δ)-private, too."""
    if proper(delta) * units > 0.1 * (1 + UPWARDS):
        raise Invalid(f"delta = {delta:g} is too large for {units:,} units: at most {0.1 / units:.1e}")
    return delta


def joint_sigma(sigma: float, counted: float) -> float:
    """The noise multiplier z that is left for the vector where the total is to be σ and a clip adapts.

    An adaptive clip (Andrew et al., arXiv:1905.03871) counts the units below it. Each bit is ±1/2, so the count, with
    noise of standard deviation σ_b, is one more coordinate of norm 1/(2 σ_b): z = (σ⁻² − (2σ_b)⁻²)^(−1/2).
    """
    rest = expected(sigma, "sigma") ** -2 - (2 * expected(counted, "counted")) ** -2
    if rest <= 0:
        raise Invalid(f"a count with noise {counted:g} leaves nothing of sigma = {sigma:g}: above {sigma / 2:g}")
    return float(rest**-0.5)
