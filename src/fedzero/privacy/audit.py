"""How private a mechanism looks to somebody who attacks it.

A *bound* comes from replays: the real mechanism runs many times with a unit and many times without it, each run gives a
number, and a number above a threshold is a guess that the unit was there. An (ε, δ)-private mechanism has

    P(guess | with) ≤ exp(ε) P(guess | without) + δ,   and the same for no guess, with and without exchanged

so lower and upper limits of the probabilities (Clopper, Pearson 1934) give a lower limit of ε that holds with the
stated confidence. If it is above the claim, the claim is wrong. It says little if it is far below: it depends on the
attack.

An *estimate* comes from canaries of one run (Andrew et al., arXiv:2302.03098). It is no limit: it varies much for
correct code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import Invalid
from fedzero.privacy.gaussian import largest_where, proper

F64 = NDArray[np.float64]

CANDIDATES = 64
"""Thresholds that are tried on the first replays."""
CHOOSING = 5
"""One of so many replays chooses the threshold."""
DIMENSIONS = 1_000
"""From here on the cosine with a random direction is a Gaussian for all purposes."""


@dataclass(frozen=True)
class Bound:
    """ε is at least `epsilon`, with a probability of at least `confidence` over the replays."""

    epsilon: float
    confidence: float
    threshold: float
    guesses_with: int
    guesses_without: int
    replays: int


def lower_bound(
    with_unit: Sequence[float] | F64,
    without_unit: Sequence[float] | F64,
    *,
    threshold: float,
    delta: float,
    confidence: float = 0.99,
) -> Bound:
    """The bound for a threshold that was chosen without looking at these replays; `audited` chooses one."""
    proper(confidence)
    there, gone = np.asarray(with_unit, np.float64), np.asarray(without_unit, np.float64)
    if not len(there) or not len(gone) or np.isnan(there).any() or np.isnan(gone).any():
        raise Invalid("an audit needs replays with the unit and without it, and a number of each")
    hits, alarms = int((there > threshold).sum()), int((gone > threshold).sum())
    epsilon = _least(hits, len(there), alarms, len(gone), delta, 1 - confidence)
    return Bound(epsilon, confidence, threshold, hits, alarms, len(there) + len(gone))


def audited(
    with_unit: Sequence[float] | F64, without_unit: Sequence[float] | F64, delta: float, confidence: float = 0.99
) -> Bound:
    """The bound from four fifths of the replays, at the threshold that is best for the first fifth."""
    there, gone = np.asarray(with_unit, np.float64), np.asarray(without_unit, np.float64)
    (choose, count), (choose_gone, count_gone) = _parts(there), _parts(gone)
    tried = np.quantile(np.concatenate([choose, choose_gone]), np.linspace(0, 1, CANDIDATES + 2)[1:-1])

    def at(threshold: float) -> float:
        found = lower_bound(choose, choose_gone, threshold=threshold, delta=delta, confidence=confidence)
        return found.epsilon

    best = max((float(each) for each in tried), key=at)
    return lower_bound(count, count_gone, threshold=best, delta=delta, confidence=confidence)


def _parts(numbers: F64) -> tuple[F64, F64]:
    if len(numbers) < CHOOSING:
        raise Invalid(f"an audit needs {CHOOSING} replays of each kind at least: some choose, the others count")
    return numbers[: len(numbers) // CHOOSING], numbers[len(numbers) // CHOOSING :]


def _least(hits: int, of_hits: int, alarms: int, of_alarms: int, delta: float, risk: float) -> float:
    """Two limits, each wrong with a probability of at most risk/2; both inequalities are read off them."""
    hit, alarm = at_least(hits, of_hits, risk / 2), at_most(alarms, of_alarms, risk / 2)
    found = [(hit - delta, alarm), (1 - alarm - delta, 1 - hit)]
    return max(0.0, *(math.log(above / below) if above > 0 and below > 0 else 0.0 for above, below in found))


def at_least(successes: int, trials: int, risk: float) -> float:
    """A lower limit of a probability: the largest p with P(Bin(trials, p) ≥ successes) ≤ risk."""
    if not successes:
        return 0.0
    return _halved(lambda p: tail(successes, trials, p) <= risk)[0]


def at_most(successes: int, trials: int, risk: float) -> float:
    """An upper limit of a probability: the smallest p with P(Bin(trials, p) ≤ successes) ≤ risk."""
    if successes == trials:
        return 1.0
    return _halved(lambda p: 1 - tail(successes + 1, trials, p) > risk)[1]


def _halved(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Two neighbours in [0, 1]: the condition holds at the lower one, and no longer at the upper one."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def tail(successes: int, trials: int, p: float) -> float:
    """P(Bin(trials, p) ≥ successes) = I_p(k, n − k + 1), successes > 0, by the continued fraction of the incomplete
    beta function, on the side on which it converges fast."""
    a, b = float(successes), float(trials - successes + 1)
    if p <= 0 or p >= 1:
        return float(p >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(p) + b * math.log1p(-p))
    if p < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, p) / a
    return 1 - front * _fraction(b, a, 1 - p) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's method (DLMF 8.17.22)."""
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    value = d
    for m in range(1, 100_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


@dataclass(frozen=True)
class Estimate:
    """No bound. mean and deviation: of the cosines of the canaries that took part."""

    epsilon: float
    mean: float
    deviation: float
    canaries: int


def canary_estimate(cosines: Sequence[float] | F64, dimension: int, delta: float) -> Estimate:
    """From the cosines between what a run released and the canaries in it: random directions of so many dimensions, one
    a canary. Of a direction that took no part the cosine has the distribution N(0, 1/dimension); of the others it is
    taken to be N(mean, deviation²). The estimate is the smallest ε with which these two are (ε, δ)-close (2302.03098,
    algorithm 1).
    """
    found = np.asarray(cosines, np.float64)
    if len(found) < 2 or dimension < DIMENSIONS or not np.isfinite(found).all():
        raise Invalid(
            f"an estimate needs two canaries at least, with finite cosines, of {DIMENSIONS:,} dimensions or more"
        )
    mean, deviation = float(found.mean()), float(found.std(ddof=1))
    return Estimate(two_gaussians((0.0, dimension**-0.5), (mean, deviation), delta), mean, deviation, len(found))


def two_gaussians(one: tuple[float, float], other: tuple[float, float], delta: float) -> float:
    """The smallest ε with which N(m₁, s₁²) and N(m₂, s₂²), given as (m, s), are (ε, δ)-close both ways."""
    proper(delta)

    def apart(epsilon: float) -> bool:
        return max(_delta(one, other, epsilon), _delta(other, one, epsilon)) > delta

    return largest_where(apart, 1.0) if apart(0.0) else 0.0


def _delta(p: tuple[float, float], q: tuple[float, float], epsilon: float) -> float:
    """P(R) − exp(ε) Q(R) for R = {y: ln p(y)/q(y) = a y² + b y + c > ε}."""
    (m, s), (n, t) = p, q
    a, b = (t**-2 - s**-2) / 2, m / s**2 - n / t**2
    c = ((n / t) ** 2 - (m / s) ** 2) / 2 + math.log(t / s) - epsilon
    if a == 0:
        if b == 0:
            return float(c > 0) * -math.expm1(epsilon)
        edge = -c / b
        region = [(edge, math.inf)] if b > 0 else [(-math.inf, edge)]
    elif (inside := b * b - 4 * a * c) <= 0:
        region = [(-math.inf, math.inf)] if a > 0 else []
    else:
        left, right = sorted(((-b - math.sqrt(inside)) / (2 * a), (-b + math.sqrt(inside)) / (2 * a)))
        region = [(-math.inf, left), (right, math.inf)] if a > 0 else [(left, right)]
    mass = math.fsum(_between(low, high, m, s) for low, high in region)
    of_q = math.fsum(_between(low, high, n, t) for low, high in region)
    return mass - (math.exp(epsilon + math.log(of_q)) if of_q > 0 else 0.0)


def _between(low: float, high: float, mean: float, deviation: float) -> float:
    """P(low < N(mean, deviation²) < high), from the nearer tail."""
    x, y = (low - mean) / (deviation * math.sqrt(2)), (high - mean) / (deviation * math.sqrt(2))
    x, y = (x, y) if x + y > 0 or (math.isinf(x) and math.isinf(y)) else (-y, -x)
    return (math.erfc(x) - math.erfc(y)) / 2
