"""The sharp ε of Poisson-subsampled Gaussian noise, by privacy loss distributions of `dp-accounting` (extra `privacy`).

A step publishes Σ_{i ∈ B} v_i + N(0, σ²C²) with ‖v_i‖ ≤ C; every unit is in B with probability q, by a coin of its own
that nobody else knows. The privacy loss of a step, ln(p/p′) with p = (1 − q) N(0, σ²) + q N(1, σ²) and p′ = N(0, σ²),
is put on a grid of width 10⁻⁴, rounded up; distributions of T steps are convolved. That is done for a unit that is
added and for one that is removed, and the larger ε counts. Without subsampling (q = 1, a cohort that others see, or
seeds that others know) the closed form of `gaussian` holds, and needs no extra.

δ is at most 0.1/(number of units): `gaussian.small_enough`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from fedzero.errors import FedzeroError, Invalid
from fedzero.privacy import gaussian, renyi
from fedzero.privacy.gaussian import expected, proper
from fedzero.privacy.integers import Grid

INTERVAL = 1e-4
"""Width of the grid of privacy losses, dp-accounting's own choice."""
COARSE = 1e-3
"""Ten times as wide, for figures on the way: not smaller, and found several times sooner."""
STEPS = 10_000
"""σ for a wanted ε is a multiple of one part of so many."""
TINY = 1e-9
"""Stands for an ε of 0 where its logarithm is needed."""
NARROW = 0.8
"""Privacy loss distributions seldom need less than this part of the σ that Rényi divergences ask for; where they do,
the search goes on below."""


@lru_cache(maxsize=1024)
def epsilon_of(sigma: float, q: float, steps: int, delta: float, interval: float = INTERVAL) -> float:
    """ε after so many steps; a unit is added or removed."""
    if q == 1:
        return gaussian.epsilon_of(sigma, steps, delta)
    return _Account.of(sigma, q, interval).epsilon(steps, delta)


def sigma_of(epsilon: float, q: float, steps: int, delta: float, least: float = 0.0) -> float:
    """The smallest multiple of 10⁻⁴ with which `epsilon_of` is at most ε, or `least`: a small σ takes much time, and
    where hardly anybody takes part, ever smaller ones would do.

    Between a σ that is large enough and one that is not, the next one is where ln ε would be if it were a straight line
    in ln σ, a multiple that is not yet known; every third halves what is left.
    """
    expected(epsilon, "epsilon")
    if q == 1:
        return math.ceil(gaussian.sigma_of(epsilon, steps, delta) * STEPS) / STEPS
    high, end = math.ceil(_renyi_sigma(epsilon, q, steps, delta) * STEPS), max(1, math.ceil(least * STEPS))
    if high <= end:
        return end / STEPS
    low = max(math.floor(NARROW * high), end)
    known = {high: epsilon_of(high / STEPS, q, steps, delta)}
    while (at_low := epsilon_of(low / STEPS, q, steps, delta)) <= epsilon:
        if low == end:
            return end / STEPS
        known[low], high, low = at_low, low, max(math.floor(NARROW * low), end)
    known[low] = at_low
    tries = 0
    while high - low > 1:
        tries += 1
        part = math.log(known[low] / epsilon) / math.log(known[low] / max(known[high], TINY)) if tries % 3 else 0.5
        middle = min(max(round(low * (high / low) ** part), low + 1), high - 1)
        known[middle] = epsilon_of(middle / STEPS, q, steps, delta)
        low, high = (low, middle) if known[middle] <= epsilon else (middle, high)
    return round(high / STEPS, 4)


@lru_cache(maxsize=1024)
def distributed_epsilon(grid: Grid, variance: float, honest: int, q: float, steps: int, delta: float) -> float:
    """ε where so many honest parties add a discrete Gaussian of this variance to each number, in integers of the grid.

    q = 1 against whoever knows who takes part. Privacy loss distributions of such sums are not known to
    `dp-accounting`; these are Rényi bounds, and need no extra.
    """
    step = renyi.sum_of_discrete_gaussians(variance, honest, grid.count, grid.allowance)
    return renyi.epsilon_of(renyi.subsampled(step, q, steps), delta, renyi.REAL if q == 1 else renyi.WHOLE)


def distributed_sigma(grid: Grid, epsilon: float, honest: int, q: float, steps: int, delta: float) -> float:
    """The noise multiplier σ, at most 0.1 % too large, with which parties that each add `grid.noise(σ, honest)` promise
    ε."""
    expected(epsilon, "epsilon")
    least = 0.5 * math.sqrt(honest / grid.allowance)  # half a step for each party, where the bound begins

    def too_small(sigma: float) -> bool:
        variance = float(grid.noise(sigma, honest)) ** 2
        return sigma < least or distributed_epsilon(grid, variance, honest, q, steps, delta) > epsilon

    return gaussian.largest_where(too_small, 1.0, within=1e-3)


def accountant() -> str:
    """What computed a figure, for statements."""
    _library()
    return f"dp-accounting {version('dp-accounting')}, privacy loss distributions, interval {INTERVAL:g}"


def _renyi_sigma(epsilon: float, q: float, steps: int, delta: float) -> float:
    """A σ that is certainly large enough."""
    proper(delta)

    def too_small(sigma: float) -> bool:
        if sigma == 0:
            return True
        return renyi.epsilon_of(renyi.subsampled(renyi.gaussian(sigma), q, steps), delta, renyi.WHOLE) > epsilon

    return gaussian.largest_where(too_small, 1.0, within=1e-2)


class _Account:
    """The privacy loss distribution of one step; those of several are made of it when they are asked for."""

    def __init__(self, sigma: float, q: float, interval: float) -> None:
        library = _library().privacy_loss_distribution
        if not 0 < q < 1:
            raise Invalid(f"q = {q} is not valid: above 0, at most 1")
        self._step = library.from_gaussian_mechanism(
            expected(sigma, "sigma"), value_discretization_interval=interval, sampling_prob=q
        )
        self._nothing = library.identity(value_discretization_interval=interval)

    @staticmethod
    @lru_cache(maxsize=8)
    def of(sigma: float, q: float, interval: float) -> _Account:
        return _Account(sigma, q, interval)

    def epsilon(self, steps: int, delta: float) -> float:
        proper(delta)
        if steps == 0:
            return 0.0
        try:
            whole = self._nothing.compose(self._step.self_compose(steps))  # as its own accountant does
        except MemoryError:
            raise FedzeroError(f"{steps:,} steps are more than the accountant has memory for: use fewer") from None
        return float(whole.get_epsilon_for_delta(delta))


def _library() -> Any:
    try:
        from dp_accounting import pld
    except ImportError:
        raise FedzeroError("ε under subsampling needs dp-accounting: pip install 'fedzero[privacy]'") from None
    return pld
