"""Bounds from replays of real noise; estimates from canaries."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from fedzero.errors import Invalid
from fedzero.privacy import audit, gaussian
from fedzero.privacy.noise import rounded_gaussian

DELTA = 1e-5


@pytest.mark.parametrize("trials", [1, 30, 100_000])
def test_limits_are_those_of_clopper_and_pearson(trials: int) -> None:
    for successes in {0, 1, trials // 3, trials - 1, trials}:
        low, high = audit.at_least(successes, trials, 0.005), audit.at_most(successes, trials, 0.005)
        wanted_low = stats.beta.ppf(0.005, successes, trials - successes + 1) if successes else 0.0
        wanted_high = stats.beta.ppf(0.995, successes + 1, trials - successes) if successes < trials else 1.0
        assert (low, high) == (pytest.approx(wanted_low, rel=1e-7), pytest.approx(wanted_high, rel=1e-7))


def replays(noise: float, seed: int, count: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """A sum of integers with one unit of norm 1,000 and without it, and real noise."""
    drawn = rounded_gaussian(noise * 1_000, 2 * count, random.Random(seed).randbytes)
    return 1_000 + drawn[:count], drawn[count:]


def test_the_bound_is_below_the_claim_and_finds_half_the_noise() -> None:
    sigma = gaussian.sigma_of(2.0, 1, DELTA)
    correct = audit.audited(*replays(sigma, 1), DELTA)
    wrong = audit.audited(*replays(sigma / 2, 2, 40_000), DELTA)
    assert 0.4 < correct.epsilon < 2.0 < wrong.epsilon < gaussian.epsilon_of(sigma / 2, 1, DELTA)
    assert correct.replays == 16_000 and correct.confidence == 0.99


def test_the_bound_holds_as_often_as_it_says() -> None:
    """Randomised response of ε = 1, 200 audits: a bound above 1 in at most one of a hundred, nearly."""
    epsilon = 1.0
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    above, chance = 0, np.random.default_rng(0)
    for _ in range(200):
        there, gone = chance.random(400) < truth, chance.random(400) > truth
        above += audit.lower_bound(there, gone, threshold=0.5, delta=0.0).epsilon > epsilon
    assert above <= 6
    found = audit.lower_bound([1.0] * 90 + [0.0] * 10, [1.0] * 20 + [0.0] * 80, threshold=0.5, delta=1e-3)
    hit, alarm = stats.beta.ppf(0.005, 90, 11), stats.beta.ppf(0.995, 21, 80)
    wanted = max(math.log((hit - 1e-3) / alarm), math.log((1 - alarm - 1e-3) / (1 - hit)))
    assert found.epsilon == pytest.approx(wanted)
    sure = audit.lower_bound(np.ones(10**5), np.zeros(10**5), threshold=0.5, delta=DELTA)
    assert sure.epsilon > 9  # whoever is published


def test_a_threshold_is_not_chosen_on_what_it_is_counted_with() -> None:
    chance = np.random.default_rng(0)
    there = chance.standard_normal(1_000)
    choosing, counting = there[:200].copy(), there[200:].copy()
    found = audit.audited(there, -there, DELTA)
    assert found.replays == 1_600 and found.guesses_with == (counting > found.threshold).sum()
    shuffled = np.concatenate([choosing, chance.permutation(counting) + 100])
    assert audit.audited(shuffled, -there, DELTA).threshold == found.threshold
    for missing in ([], [1.0, math.nan, 1, 1, 1]):
        with pytest.raises(Invalid, match="audit"):
            audit.audited(missing, [1.0] * 5, DELTA)


def test_two_gaussians_are_as_close_as_an_integral_says() -> None:
    assert audit.two_gaussians((0.0, 1.0), (1.0, 1.0), DELTA) == pytest.approx(gaussian.epsilon_of(1.0, 1, DELTA))
    at = np.linspace(-60, 60, 2_000_001)
    for one, other in (((0.0, 1.0), (1.0, 0.8)), ((0.0, 1.0), (2.0, 1.5)), ((0.0, 0.03), (0.05, 0.04))):
        epsilon = audit.two_gaussians(one, other, DELTA)
        p, q = stats.norm.pdf(at, *one), stats.norm.pdf(at, *other)
        deltas = [np.maximum(0, a - math.exp(epsilon) * b).sum() * (at[1] - at[0]) for a, b in ((p, q), (q, p))]
        assert max(deltas) == pytest.approx(DELTA, rel=2e-3)
    assert audit.two_gaussians((1.0, 2.0), (1.0, 2.0), DELTA) == 0


def test_canaries_of_a_gaussian_mechanism_estimate_its_epsilon() -> None:
    """A sum with noise σ of 1,000 random unit vectors in 10,000 dimensions; the cosine of each with the sum."""
    sigma, dimension, chance = 1.5, 10_000, np.random.default_rng(0)
    vectors = chance.standard_normal((1_000, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    total = vectors.sum(0) + sigma * chance.standard_normal(dimension)
    found = audit.canary_estimate(vectors @ total / np.linalg.norm(total), dimension, DELTA)
    norm = math.sqrt(1_000 + sigma**2 * dimension)
    assert found.mean == pytest.approx(1 / norm, rel=0.2) and found.canaries == 1_000
    others = math.sqrt(1_000 / dimension + sigma**2)  # to one canary the others are noise, too
    assert found.epsilon == pytest.approx(gaussian.epsilon_of(others, 1, DELTA), rel=0.25)
    with pytest.raises(Invalid, match="canaries"):
        audit.canary_estimate([0.1], dimension, DELTA)
