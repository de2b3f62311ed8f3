"""Draws against exact probabilities, from fixed streams of bytes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedzero.errors import Invalid
from fedzero.privacy.noise import _less, discrete_gaussian, rounded_gaussian
from fedzero.privacy.words import Draws, below, happens, survives, words

MANY = 20_000


def stream(seed: int) -> Draws:
    return random.Random(seed).randbytes


def rounded(z: int, sigma: float) -> float:
    """P(z − 1/2 < σ N(0, 1) < z + 1/2)."""
    near, far = ((abs(z) + side) / (sigma * math.sqrt(2)) for side in (-0.5, 0.5))
    return (math.erfc(near) - math.erfc(far)) / 2 if z else math.erf(far)


def discrete(z: int, sigma: float) -> float:
    total = math.fsum(math.exp(-((k / sigma) ** 2) / 2) for k in range(-200, 201))
    return math.exp(-((z / sigma) ** 2) / 2) / total


def fit(drawn: np.ndarray, probability: Callable[[int], float]) -> float:
    """The p-value of a chi-square test; what is expected fewer than ten times is one class."""
    kept = [z for z in range(-40, 41) if probability(z) * len(drawn) >= 10]
    expected = [probability(z) * len(drawn) for z in kept]
    found = [int((drawn == z).sum()) for z in kept]
    expected.append(len(drawn) - sum(expected))
    found.append(len(drawn) - sum(found))
    return float(stats.chisquare(found, expected).pvalue)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.7])
def test_small_noise_has_the_exact_probabilities(sigma: float) -> None:
    drawn = rounded_gaussian(sigma, MANY, stream(1))
    assert fit(drawn, lambda z: rounded(z, sigma)) > 1e-3
    assert fit(drawn, lambda z: rounded(z, 1.05 * sigma)) < 1e-6  # the test sees five per cent
    drawn = discrete_gaussian(Fraction(sigma) ** 2, MANY, stream(2))
    assert fit(drawn, lambda z: discrete(z, sigma)) > 1e-3
    assert fit(drawn, lambda z: discrete(z, 1.05 * sigma)) < 1e-6


def test_the_two_differ_where_sigma_is_small() -> None:
    """Rounding adds 1/12 to the variance: one is not the other."""
    assert fit(rounded_gaussian(1.0, MANY, stream(3)), lambda z: discrete(z, 1.0)) < 1e-6


@pytest.mark.parametrize("draw", [rounded_gaussian, lambda s, n, d: discrete_gaussian(Fraction(s) ** 2, n, d)])
def test_large_noise_is_normal_down_to_its_last_bits(draw: Callable[..., np.ndarray]) -> None:
    sigma = Fraction(3**30, 181)  # 2⁴⁰
    drawn = draw(sigma, 5_000, stream(4))
    assert stats.kstest(drawn / float(sigma), "norm").pvalue > 1e-3
    assert stats.chisquare(np.bincount(drawn & 15, minlength=16)).pvalue > 1e-3


def test_the_same_bytes_are_the_same_noise() -> None:
    assert (rounded_gaussian(5.0, 50, stream(5)) == rounded_gaussian(5.0, 50, stream(5))).all()
    assert (rounded_gaussian(5.0, 50, stream(5)) != rounded_gaussian(5.0, 50, stream(6))).any()


@pytest.mark.parametrize("sigma", [0, -1.0, 2.0**57])
def test_what_is_no_standard_deviation_is_refused(sigma: float) -> None:
    with pytest.raises(Invalid, match="sigma"):
        rounded_gaussian(sigma, 1, stream(0))


def scripted(*found: int) -> Callable[[], int]:
    return iter(found).__next__


def test_equal_digits_are_decided_by_the_next_ones() -> None:
    third = 2**64 // 3
    assert happens(1, 3, scripted(third - 1)) and not happens(1, 3, scripted(third + 1))
    assert happens(1, 3, scripted(third, third, third - 1)) and not happens(1, 3, scripted(third, third + 1))
    assert happens(1, 1, scripted(2**64 - 1)) and not happens(0, 1, scripted(0, 0, 1))
    a, b = [7], [7]
    assert _less(a, b, scripted(1, 1, 5, 6)) and (a, b) == ([7, 1, 5], [7, 1, 6])


def test_probabilities_of_single_decisions() -> None:
    word = words(stream(7))
    for numerator, denominator in ((1, 3), (5, 2), (10**40, 3 * 10**40 + 1)):
        hits = sum(survives(numerator, denominator, word) for _ in range(MANY))
        assert stats.binomtest(hits, MANY, math.exp(-numerator / denominator)).pvalue > 1e-3
    counts = np.bincount([below(6, word) for _ in range(MANY)], minlength=6)
    assert len(counts) == 6 and stats.chisquare(counts).pvalue > 1e-3
    assert below(1, scripted()) == 0 and below(2**70, word) < 2**70


def test_words_are_all_of_the_bytes_in_their_order() -> None:
    def counted() -> Iterator[bytes]:
        for block in itertools.count():
            yield b"".join((block * 512 + i).to_bytes(8, "little") for i in range(512))

    blocks = counted()
    word = words(lambda count: next(blocks)[:count])
    assert [word() for _ in range(1_100)] == list(range(1_100))
