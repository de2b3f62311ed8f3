"""The client's half of [privacy] in C against fedzero's: the same integers of the same random bytes."""

from __future__ import annotations

import native
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedzero.errors import Invalid
from fedzero.privacy.integers import Grid, choose_grid, clipped, normalised, quantised

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
anything = st.one_of(finite, st.floats(-1, 1, width=32), st.sampled_from((0.0, float("nan"), float("inf"), -0.0)))


class Stream:
    """The same bytes, in whatever pieces they are drawn."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.left = b""

    def take(self, count: int) -> bytes:
        while len(self.left) < count:
            self.left += self.random.bytes(4096)
        out, self.left = self.left[:count], self.left[count:]
        return out


@settings(max_examples=60)
@given(st.floats(5e-324, 1e9), st.integers(-102, 102), st.one_of(st.integers(1, 300), st.integers(1, 1 << 20)))
def test_allowances(core: native.Core, clip: float, exponent: int, count: int) -> None:
    try:
        expected = Grid(clip, exponent, count).allowance
    except Invalid:
        expected = 0
    assert core.allowance(clip, exponent, count) == expected


@pytest.mark.parametrize("count", [0, (1 << 20) + 1])
def test_grids_that_there_are_not(core: native.Core, count: int) -> None:
    assert core.allowance(1.0, 4, count) == core.allowance(0.0, 4, 5) == core.allowance(float("nan"), 4, 5) == 0


@settings(max_examples=40)
@given(
    hnp.arrays(np.float32, st.integers(1, 300), elements=anything), st.floats(1e-3, 1e3), st.booleans(), st.integers()
)
def test_integers(core: native.Core, values: np.ndarray, clip: float, normalise: bool, seed: int) -> None:
    seed = abs(seed)
    grid = choose_grid(clip, values.size, units=1000, message=1)
    rows = (normalised if normalise else clipped)(values[None], clip)
    expected = quantised(rows, grid, Stream(seed).take)[0]
    whole = core.private(values, clip, grid.exponent, normalise, Stream(seed).take)
    assert (whole == expected).all()
    assert int((whole.astype(object) ** 2).sum()) <= grid.allowance


def test_a_coarse_grid_draws_again(core: native.Core) -> None:
    """Where rounding makes vectors too long often, both draw again as often."""
    grid, values = Grid(1.0, 0, 40), np.full(40, 1.0, np.float32)
    for seed in range(200):
        rows = normalised(values[None], 1.0)
        expected = quantised(rows, grid, Stream(seed).take)[0]
        assert (core.private(values, 1.0, 0, True, Stream(seed).take) == expected).all()


def test_without_entropy_there_is_no_privacy(core: native.Core) -> None:
    with pytest.raises(native.Failed, match="entropy"):
        core.private(np.ones(3, np.float32), 1.0, 4, False, None)
