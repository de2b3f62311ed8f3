"""One link at a time: what it keeps, what it costs, and that what it does at random is right on average."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from vectors import EPS, TINY, chain_of, draw, few, normal, tame, vectors

from fedzero.links.clip import Clip
from fedzero.links.quantise import LEVELS, Quantise
from fedzero.links.sign import Sign
from fedzero.links.topk import TopK

fractions = st.floats(0.001, 1.0)
NOTHING = np.zeros(5, np.float32)


def length(values: np.ndarray) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


# ---- clip


@few
@given(vectors, st.floats(1e-3, 1e6))
@example(NOTHING, 1.0)
def test_clipped_to_the_norm_in_the_same_direction(values, norm) -> None:
    """Every number is rounded to float32 once; what float64 does before is far below (a tenth of EPS is generous)."""
    clipped = Clip(norm=norm).shape(values)
    assert clipped.dtype == np.float32
    assert length(clipped) <= norm * (1 + 1.1 * EPS) + len(values) * TINY
    if length(values) <= norm:
        assert clipped is values
    else:
        exact = values.astype(np.float64) * (norm / length(values))
        assert (np.abs(clipped - exact) <= 1.1 * EPS * np.abs(exact) + TINY).all()


def test_clip_of_numbers_whose_squares_float32_cannot_hold() -> None:
    """Nor the factor: 2/6e38 has few bits left in float32, 2e-6/6e38 hardly any."""
    for norm in (2.0, 2e-6):
        clipped = Clip(norm=norm).shape(np.array([3e38, -3e38, 3e38, 3e38], np.float32))
        assert clipped.tolist() == (np.array([1, -1, 1, 1]) * np.float32(norm / 2)).tolist()


# ---- top-k


@few
@given(vectors, fractions)
@example(NOTHING, 0.3)
@example(np.array([2, -2, 2, -2], np.float32), 0.5)
def test_top_k_keeps_the_largest_and_nothing_else(values, fraction) -> None:
    """Against a sort by magnitude; of equal ones the first."""
    k = math.ceil(fraction * len(values))
    right = np.sort(np.argsort(-np.abs(values), kind="stable")[:k])
    link = TopK(fraction=fraction)
    assert link.places(values).tolist() == right.tolist()
    expected = np.zeros_like(values)
    expected[right] = values[right]
    assert link.shape(values).tobytes() == expected.tobytes()


@pytest.mark.parametrize("feedback", [False, True])
def test_top_k_of_no_numbers_is_no_numbers(feedback) -> None:
    chain = chain_of({"kind": "top-k", "fraction": 0.1, "feedback": feedback})
    sent = chain.encode(normal(0), None, draw())
    assert chain.decode(sent.data, 0).tolist() == []


@pytest.mark.parametrize("n", [1, 7, 8, 9, 50, 1000])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.9, 1.0])
def test_top_k_sends_exactly_so_many(n, fraction) -> None:
    k = math.ceil(fraction * n)
    sent = chain_of({"kind": "top-k", "fraction": fraction}).encode(normal(n), None, draw())
    assert np.count_nonzero(sent.values) == k
    assert len(sent.data) <= 4 * k + min(4 * k, -(-n // 8)) + 16, "the numbers, their places, a frame"


# ---- quantise


@few
@given(vectors)
@example(NOTHING)
def test_quantised_by_less_than_one_level(values) -> None:
    """One level is max |v| / 127; the result is rounded to float32 once."""
    link, largest = Quantise(), float(np.abs(values).max())
    scale, codes = link.encode(values, draw())
    read = link.decode(scale, codes, len(values)).astype(np.float64)
    assert len(codes) == link.length(len(values)) == len(values)
    assert np.abs(read - values).max() <= largest / LEVELS + EPS * largest + TINY
    assert np.abs(read).max() <= largest * (1 + EPS) + TINY


def test_quantised_without_bias() -> None:
    """Rounding up or down with the right chances has a deviation of at most half a level a draw. Over M draws the mean
    is within 5 deviations of that, level·5/(2√M) = 0.04 levels, but for a chance of 6e-7 a number; rounding to the
    nearest, or always down, is off by up to half a level or a whole one."""
    values, M = normal(40), 4000
    link, level = Quantise(), float(np.abs(values).max()) / LEVELS
    total = np.zeros(len(values))
    for seed in range(M):
        total += link.decode(*link.encode(values, draw(seed)), len(values))
    off = np.abs(total / M - values)
    assert off.max() <= 5 * level / (2 * math.sqrt(M))
    between = np.abs(values / level - np.round(values / level)) > 0.2
    nearest = np.round(values / level) * level
    assert np.abs(nearest - values)[between].min() > 5 * level / (2 * math.sqrt(M)), "the test can tell"


def test_quantise_says_the_same_for_the_same_draw() -> None:
    values = normal(50)
    assert Quantise().encode(values, draw(3)) == Quantise().encode(values, draw(3))
    assert Quantise().encode(values, draw(3)) != Quantise().encode(values, draw(4))


# ---- sign


@few
@given(vectors)
@example(NOTHING)
def test_sign_is_one_magnitude_for_all(values) -> None:
    """The mean magnitude, rounded to float32 once."""
    link = Sign()
    scale, codes = link.encode(values, draw())
    read = link.decode(scale, codes, len(values))
    mean = float(np.abs(values.astype(np.float64)).mean())
    assert (np.abs(np.abs(read.astype(np.float64)) - mean) <= EPS * mean + TINY).all()
    assert ((read < 0) == (values < 0)).all() or not read.any()


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 1000, 100_001])
def test_sign_is_one_bit_a_number(n) -> None:
    data = chain_of({"kind": "sign"}).encode(normal(n), None, draw()).data
    assert len(data) <= n / 8 + 16


@pytest.mark.parametrize("n", [1, 50, 1000])
def test_quantise_is_one_byte_a_number(n) -> None:
    assert len(chain_of({"kind": "quantise"}).encode(normal(n), None, draw()).data) <= n + 16


@few
@given(tame, st.sampled_from([Quantise(), Sign()]))
def test_coders_give_as_many_bytes_as_announced(values, link) -> None:
    scale, codes = link.encode(values, draw())
    assert len(codes) == link.length(len(values))
    assert len(scale) == 4
