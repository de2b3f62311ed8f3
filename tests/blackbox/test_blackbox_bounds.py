"""Normalisation: the unit box and the user's, there and back, and never outside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedzero.errors import FedzeroError
from fedzero.oracles.blackbox import Bounds

ENDS = st.floats(-1e6, 1e6)
SIZE = st.integers(1, 5)


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    size = draw(SIZE)
    low = [draw(ENDS) for _ in range(size)]
    width = [draw(st.floats(1e-3, 1e6)) for _ in range(size)]
    return Bounds.of(low, [a + w for a, w in zip(low, width, strict=True)], size)


@given(bounds(), st.data())
def test_there_and_back(box, data):
    u = np.array(data.draw(st.lists(st.floats(0, 1), min_size=box.dimension, max_size=box.dimension)))
    x = box.from_unit(u)
    # x is rounded to its own last place, which is coarse where the box is far from zero and narrow.
    room = 4 * np.finfo(np.float64).eps * (1 + np.maximum(abs(box.low), abs(box.high)) / (box.high - box.low))
    assert (abs(box.to_unit(x) - u) <= room).all()
    assert (abs(box.from_unit(box.to_unit(x)) - x) <= room * (box.high - box.low)).all()


@given(bounds(), st.data())
def test_never_outside(box, data):
    wild = st.floats(allow_nan=False, allow_infinity=True)
    u = np.array(data.draw(st.lists(wild, min_size=box.dimension, max_size=box.dimension)))
    x = box.from_unit(u)
    assert ((box.low <= x) & (x <= box.high)).all()
    assert (x == box.from_unit(np.clip(u, 0, 1))).all()  # projection first, and once is enough


@given(bounds())
def test_corners_and_middle(box):
    assert (box.from_unit(np.zeros(box.dimension)) == box.low).all()
    assert np.allclose(box.from_unit(np.ones(box.dimension)), box.high, rtol=1e-15, atol=0)
    assert (box.starting_at(None) == 0.5).all()
    assert (box.starting_at(box.low) == 0).all()


def test_rounding_cannot_push_a_point_over_the_edge():
    """0.1 + (0.7 − 0.1) is 0.7000000000000001 in float64: the very case the second clip is for."""
    low, high = next(
        (a / 10, b / 10) for a in range(1, 9) for b in range(a + 1, 10) if a / 10 + (b / 10 - a / 10) > b / 10
    )
    assert low + (high - low) > high
    assert Bounds.of(low, high, 1).from_unit(np.ones(1)) == high


@pytest.mark.parametrize(
    ("low", "high", "start", "words"),
    [
        (0.0, [1.0, 2.0], None, "task.high has 2 numbers"),
        ([0.0, 1.0, 2.0], [1.0, 1.0, 3.0], None, "coordinate 1"),
        (1.0, 0.0, None, "low must be less"),
        (-1e308, 1e308, None, "too far apart"),
        (float("nan"), 1.0, None, "task.low"),
        (0.0, 1.0, [0.5, 0.5, 1.5], "task.start = 1.5 for coordinate 2"),
        (0.0, 1.0, [0.5], "task.start has 1 numbers"),
    ],
)
def test_bounds_that_are_none(low, high, start, words):
    with pytest.raises(FedzeroError, match=words):
        Bounds.of(low, high, 3).starting_at(start)
