"""Vectors on a grid: bounded whatever comes in, unbiased, exact."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from fedzero.errors import Invalid
from fedzero.privacy.integers import Grid, choose_grid, clipped, floats, normalised, quantised, within

STRANGE = np.array(
    [
        [math.nan, 1, 1],
        [math.inf, 0, 0],
        [0, -math.inf, 0],
        [0, 0, 0],
        [1e308, 1e308, -1e308],
        [5e-324, 0, 5e-324],
        [3, 4, 0],
    ]
)


def test_clipping_and_normalising() -> None:
    for rows in (clipped(STRANGE, 2.0), normalised(STRANGE, 2.0)):
        assert not rows[:4].any() and np.isfinite(rows).all()
        np.testing.assert_allclose(np.linalg.norm(rows[[4, 6]], axis=1), 2.0, rtol=1e-15)
        np.testing.assert_allclose(rows[6], [1.2, 1.6, 0], rtol=1e-15)
    assert (clipped(STRANGE, 2.0)[5] == STRANGE[5]).all()  # short ones stay as they are
    np.testing.assert_allclose(np.linalg.norm(normalised(STRANGE, 2.0)[5]), 2.0)
    assert clipped(np.float32([3, 4]), 10.0).tolist() == [[3, 4]]


def test_the_allowance_is_the_published_one() -> None:
    """Theorem 1 of 2102.06387 with γ = 1/s and β = exp(−1/2), times s²; the minimum of its two bounds."""
    for clip, exponent, count in ((1.0, 6, 10), (0.37, 12, 1000), (250.0, -3, 2), (1.0, 2, 1)):
        grid, gamma = Grid(clip, exponent, count), 2.0**-exponent
        first = clip**2 + gamma**2 * count / 4 + gamma * (clip + gamma * math.sqrt(count) / 2)
        second = (clip + gamma * math.sqrt(count)) ** 2
        wanted = min(first, second) / gamma**2
        assert grid.allowance == math.ceil(wanted) and grid.largest == math.ceil(clip / gamma) + 1
    assert Grid(1.0, 6, 10).allowance == 4096 + math.ceil(2.5 + 64 + math.sqrt(10) / 2)


@pytest.mark.parametrize("count", [1, 7, 200])
def test_rounding_keeps_the_norm_and_the_mean(count: int) -> None:
    grid = Grid(1.0, 3, count)  # sC = 8: rounding alone would often exceed it
    row = 0.99 * normalised(np.random.default_rng(0).standard_normal((1, count)), 1.0)
    whole = quantised(np.repeat(row, 4_000, 0), grid, random.Random(0).randbytes)
    squares = [sum(int(each) ** 2 for each in one) for one in whole]
    assert max(squares) <= grid.allowance and (whole.std(0) > 0).all()
    assert (np.abs(whole - 8 * row) < 1).all()
    shift = whole.mean(0) - 8 * row[0]
    along = shift @ row[0] / 0.99
    assert -0.3 < along < 0.02  # of a step: a draw that is too long is drawn again
    assert np.linalg.norm(shift - along * row[0] / 0.99) < 2 * math.sqrt(count / 4 / 4_000)


def test_rounding_is_drawn_again_while_the_norm_is_too_large() -> None:
    """A thousand equal numbers of .4: half of the roundings exceed the allowance, none of those that are returned."""
    grid, asked, source = Grid(0.4 * math.sqrt(1000), 0, 1000), [], random.Random(0)

    def counting(count: int) -> bytes:
        asked.append(count)
        return source.randbytes(count)

    whole = quantised(np.full((200, 1000), 0.4), grid, counting)
    assert (whole.sum(1) <= grid.allowance).all() and whole.any(1).all()
    assert len(asked) > 1 and sum(asked) / (200 * 8000) < 1 / (1 - math.exp(-0.5))


def test_whatever_comes_in_is_bounded() -> None:
    grid, entropy = Grid(2.0, 10, 3), random.Random(0).randbytes
    whole = quantised(STRANGE, grid, entropy)
    assert not whole[[0, 1, 2, 3, 4, 6]].any()  # nobody clipped them
    assert within(quantised(clipped(STRANGE, 2.0), grid, entropy), grid).all()
    with pytest.raises(Invalid, match="shape"):
        quantised(np.zeros((2, 4)), grid, entropy)


def test_norms_of_strangers_are_checked_without_overflow() -> None:
    grid = Grid(1.0, 29, 4)
    edge = math.isqrt(grid.allowance)
    rows = [
        [edge, 0, 0, 0],
        [edge + 1, 0, 0, 0],
        [2**62, 2**62, 0, 0],
        [-(2**63), 0, 0, 0],
        [2**32, 2**32, 2**32, 2**32],
    ]
    assert within(np.array(rows, np.int64), grid).tolist() == [True, False, False, False, False]


def test_the_finest_grid_that_has_room() -> None:
    grid = choose_grid(0.7, 32, units=600)
    assert 600 * grid.largest < 2**24 <= 600 * Grid(0.7, grid.exponent + 1, 32).largest
    grid = choose_grid(0.7, 32, units=65_800, message=500, sigma=0.8, surplus=2.0, field=2**61 - 1)
    assert 500 * grid.largest < 2**24 <= 500 * Grid(0.7, grid.exponent + 1, 32).largest
    small = choose_grid(1.0, 32, units=100, sigma=1.0, field=2**20)
    noise = 12 * float(small.noise(1.0))
    assert 100 * small.largest + noise < 2**19
    assert 100 * Grid(1.0, small.exponent + 1, 32).largest + 2 * noise > 2**19
    for impossible in ({"units": 1 << 24}, {"units": 100, "field": 2**8}, {"units": 10, "sigma": 1e9, "field": 2**31}):
        with pytest.raises(Invalid, match="room"):
            choose_grid(1.0, 32, **impossible)
    for clip in (0.0, math.nan, math.inf):
        with pytest.raises(Invalid, match="clip"):
            choose_grid(clip, 32, units=10)


def test_sums_are_exact_as_float32_numbers() -> None:
    generator, entropy = np.random.default_rng(0), random.Random(0).randbytes
    for clip in (1e-3, 0.7, 1e6):
        grid = choose_grid(clip, 8, units=100)
        total = quantised(normalised(generator.standard_normal((100, 8)), clip), grid, entropy).sum(0)
        assert [Fraction(float(each)) * grid.scale for each in floats(total, grid)] == total.tolist()
    assert floats(np.array([1 - (1 << 24)]), grid).dtype == np.float32
    with pytest.raises(Invalid, match="float32"):
        floats(np.array([1 << 24]), grid)


def test_noise_is_measured_by_the_allowance() -> None:
    grid = Grid(1.0, 5, 100)
    for sigma, parties in ((0.753, 1), (2.0, 7)):
        exact = math.sqrt(sigma**2 * grid.allowance / parties)
        assert exact <= grid.noise(sigma, parties) <= exact + 2**-19
    assert grid.noise(1.0) > 32
