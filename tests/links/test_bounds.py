"""The bound from the cohort's own spread: whatever one client sends, it counts for no more than is stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vectors import few, normal

from fedzero.links.bounds import beyond, median_of, norm_of, norms_of, shortened


def cut(contributions: dict[int, np.ndarray], factor: float) -> dict[int, np.ndarray]:
    """Naively: v · min(1, c · M / ‖v‖), M the upper median."""
    lengths = {c: math.sqrt(math.fsum(float(x) ** 2 for x in v)) for c, v in contributions.items()}
    middle = sorted(lengths.values())[len(lengths) // 2]
    return {c: v * min(1.0, factor * middle / max(lengths[c], 1e-300)) for c, v in contributions.items()}


def found(contributions: dict[int, np.ndarray], factor: float) -> dict[int, np.ndarray]:
    norms = norms_of(contributions)
    longest, outside = beyond(norms, factor)
    return {c: shortened(v, norms[c], longest) if c in outside else v for c, v in contributions.items()}


@few
@given(st.integers(3, 12), st.floats(1.0, 4.0), st.integers(0, 10**6))
def test_against_the_formula(count, factor, seed) -> None:
    random = np.random.default_rng(seed)
    given = {c: normal(7, seed + c) * np.float32(10 ** random.uniform(-3, 3)) for c in range(count)}
    for client, right in cut(given, factor).items():
        np.testing.assert_allclose(found(given, factor)[client], right, rtol=1e-6)


@few
@given(st.integers(4, 15), st.sampled_from([1e30, -3.4e38, 1e-30, 5.0]), st.integers(0, 10**6))
def test_one_liar_has_at_most_its_share(count, lie, seed) -> None:
    """The mean moves by at most (c + 1) · (the largest honest norm) / n, in any order."""
    honest = {c: normal(9, seed + c) for c in range(count - 1)}
    largest = max(map(norm_of, honest.values()))
    lied = found({**honest, 99: np.full(9, lie, np.float32)}, 2.0)
    with_zero = np.stack([*honest.values(), np.zeros(9)]).mean(axis=0)
    moved = np.linalg.norm(np.stack(list(lied.values())).astype(np.float64).mean(axis=0) - with_zero)
    assert norm_of(lied[99]) <= 2.0 * largest * (1 + 1e-6)
    # Whom the lie made too long among the honest is shortened to no less than 2 M, by less than its own length.
    cut_too = sum(norm_of(v) for c, v in honest.items() if lied[c] is not v)
    assert moved <= (2.0 * largest + cut_too) / count * (1 + 1e-6)
    back = found(dict(reversed([*honest.items(), (99, np.full(9, lie, np.float32))])), 2.0)
    assert all(back[c].tobytes() == lied[c].tobytes() for c in lied)


def test_half_of_the_clients_may_be_done() -> None:
    """Two sites of two clients, one of them at its own minimum: the other is not scaled down to nothing."""
    given = {0: np.zeros(5, np.float32), 1: np.zeros(5, np.float32), 2: normal(5, 1), 3: normal(5, 2)}
    assert found(given, 1.5)[2] is given[2]
    assert min(norm_of(found(given, 1.5)[c]) for c in (2, 3)) > 0


@pytest.mark.parametrize("count", [1, 2])
def test_of_few_nothing_can_be_told(count) -> None:
    given = {0: normal(5), 1: np.full(5, 1e30, np.float32)}
    assert beyond(norms_of(dict(list(given.items())[:count])), 2.0) == (math.inf, [])


@pytest.mark.parametrize("lie", [1e30, 0.0])
@pytest.mark.parametrize("count", range(3, 12))
def test_less_than_half_do_not_move_the_median_out_of_the_honest_norms(count, lie) -> None:
    honest = count // 2 + 1
    norms = {c: 1.0 + c if c < honest else lie for c in range(count)}
    assert 1.0 <= median_of(norms) <= honest


def test_norms_do_not_overflow_and_do_not_depend_on_how_they_are_made() -> None:
    huge = np.full(2000, 3.4e38, np.float32)
    assert norm_of(huge) == pytest.approx(3.4e38 * math.sqrt(2000))
    many = {c: normal(600, c) for c in range(5)}
    assert norms_of(many) == {c: norm_of(v) for c, v in many.items()}
