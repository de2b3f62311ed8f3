"""The law of Poisson batches: every unit by a coin of its own."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedzero.errors import Invalid
from fedzero.oracles.poisson import Poisson, drawn_persons, drawn_units

UNITS, DRAWS, RATE = 40, 4000, 0.15


def roots(count: int = DRAWS) -> list[bytes]:
    return [i.to_bytes(32, "little") for i in range(count)]


def table() -> np.ndarray:
    drawn = np.zeros((DRAWS, UNITS), bool)
    for row, root in zip(drawn, roots(), strict=True):
        row[drawn_units(root, UNITS, RATE)] = True
    return drawn


def test_units_are_drawn_independently_with_the_same_probability() -> None:
    """Counts of units are binomial, sizes of batches too, and no two units come together more often than by chance."""
    drawn = table()
    counts = drawn.sum(0)
    assert min(stats.binomtest(int(k), DRAWS, RATE).pvalue for k in counts) > 1e-3 / UNITS
    chi = ((counts - DRAWS * RATE) ** 2).sum() / (DRAWS * RATE * (1 - RATE))
    assert 1e-3 < stats.chi2.cdf(chi, UNITS) < 1 - 1e-3, "neither more nor less dispersed than coins"
    sizes = drawn.sum(1)
    spread = ((sizes - UNITS * RATE) ** 2).sum() / (UNITS * RATE * (1 - RATE))
    assert 1e-3 < stats.chi2.cdf(spread, DRAWS) < 1 - 1e-3, "batches of a fixed size have no spread"
    pairs = np.corrcoef(drawn.T)[np.triu_indices(UNITS, 1)]
    assert np.abs(pairs).max() < stats.norm.isf(1e-3 / len(pairs)) / np.sqrt(DRAWS)
    after = np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]
    assert abs(after) < 4 / np.sqrt(drawn[1:].size), "roots beside each other"


def test_a_root_decides_and_no_unit_is_drawn_twice() -> None:
    one, other = roots(2)
    assert np.array_equal(drawn_units(one, 900, 0.3), drawn_units(one, 900, 0.3))
    assert not np.array_equal(drawn_units(one, 900, 0.3), drawn_units(other, 900, 0.3))
    found = drawn_units(one, 900, 0.3)
    assert (np.diff(found) > 0).all() and found.dtype == np.int64
    assert len(drawn_units(one, 900, 1.0)) == 900 and len(drawn_units(one, 0, 0.3)) == 0
    assert set(drawn_units(one, 900, 0.1)) < set(found), "one coin a unit, whatever the rate"


def test_a_person_comes_with_all_rows_or_with_none() -> None:
    ids = np.random.default_rng(1).integers(0, 12, 200) * 7
    counts = np.zeros(12)
    for root in roots(1500):
        rows = drawn_persons(root, ids, 0.25)
        who = np.unique(ids[rows])
        assert np.array_equal(rows, np.flatnonzero(np.isin(ids, who)))
        counts[who // 7] += 1
    assert min(stats.binomtest(int(k), 1500, 0.25).pvalue for k in counts) > 1e-3 / 12


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_a_rate_is_a_probability(rate) -> None:
    with pytest.raises(Invalid, match="give one above 0"):
        Poisson(rate)
