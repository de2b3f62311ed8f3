"""Mean, median and trimmed mean against numpy and scipy, in any order, and with somebody who lies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from vectors import EPS, few, normal

from fedzero.links.combining import mean
from fedzero.links.krum import Krum, MultiKrum
from fedzero.links.median import Median
from fedzero.links.nnm import NearestNeighbours
from fedzero.links.server_clip import ServerClip
from fedzero.links.trimmed_mean import TrimmedMean

N = 11
COMBINERS = {
    "mean": mean,
    "median": Median().combine,
    "trimmed mean": TrimmedMean(fraction=0.3).combine,
    "krum": Krum().combine,
    "multi-krum": MultiKrum().combine,
}
combiners = pytest.mark.parametrize("combine", COMBINERS.values(), ids=COMBINERS.keys())
robust = pytest.mark.parametrize("combine", list(COMBINERS.values())[1:3], ids=list(COMBINERS)[1:3])
drawn = st.dictionaries(st.integers(0, 500), st.integers(1, 3), min_size=1, max_size=9)
"""Who was drawn, and how often."""


def contributions_of(clients) -> dict[int, np.ndarray]:
    return {client: normal(N, client) * (1 + client) for client in clients}


def rows_of(contributions, weights) -> np.ndarray:
    """Everybody as often as drawn, (turns, numbers), float64."""
    return np.repeat(np.stack(list(contributions.values())), list(weights.values()), axis=0).astype(np.float64)


def near(found: np.ndarray, right: np.ndarray, rows: np.ndarray) -> None:
    """One rounding to float32; sums in float64 in another order are far below."""
    assert found.dtype == np.float32
    assert np.abs(found - right).max() <= 1.001 * EPS * np.abs(rows).max()


@few
@given(drawn)
def test_mean(weights) -> None:
    contributions = contributions_of(weights)
    rows = rows_of(contributions, weights)
    near(mean(contributions, weights), rows.mean(axis=0), rows)
    near(mean(contributions, weights), np.average(list(contributions.values()), 0, list(weights.values())), rows)


@few
@given(drawn)
def test_median(weights) -> None:
    contributions = contributions_of(weights)
    rows = rows_of(contributions, weights)
    near(Median().combine(contributions, weights), stats.scoreatpercentile(rows, 50, axis=0), rows)


@few
@given(drawn, st.floats(0.01, 0.49))
def test_trimmed_mean(weights, fraction) -> None:
    """At least one goes at each end, and at least one stays."""
    contributions = contributions_of(weights)
    rows = rows_of(contributions, weights)
    found = TrimmedMean(fraction=fraction).combine(contributions, weights)
    if len(rows) <= 2:
        right = rows.mean(axis=0)
    elif int(fraction * len(rows)) >= 1:
        right = stats.trim_mean(rows, fraction, axis=0)
    else:
        ordered = np.sort(rows, axis=0)
        right = (rows.sum(axis=0) - ordered[0] - ordered[-1]) / (len(rows) - 2)
    near(found, right, rows)


@combiners
@few
@given(drawn, st.randoms(use_true_random=False))
def test_order_does_not_matter(combine, weights, random) -> None:
    """To the last bit."""
    contributions = contributions_of(weights)
    shuffled = random.sample(sorted(contributions), len(contributions))
    again = combine({c: contributions[c] for c in shuffled}, {c: weights[c] for c in reversed(shuffled)})
    assert again.tobytes() == combine(contributions, weights).tobytes()


@combiners
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_order_does_not_matter_where_sums_depend_on_it(combine, order) -> None:
    """(1e30 + 1) − 1e30 is not (1e30 − 1e30) + 1, not even in float64."""
    said = {client: np.full(N, value, np.float32) for client, value in enumerate((1e30, 1.0, -1e30))}
    weights = dict.fromkeys(said, 1)
    assert combine({c: said[c] for c in order}, weights).tobytes() == combine(said, weights).tobytes()


@combiners
def test_drawn_twice_is_like_two_who_say_the_same(combine) -> None:
    given = contributions_of([1, 2, 3])
    twice = combine(given, {1: 1, 2: 2, 3: 1})
    assert twice.tobytes() == combine({**given, 4: given[2]}, dict.fromkeys([1, 2, 3, 4], 1)).tobytes()
    if combine is not COMBINERS["krum"]:  # which chooses one of them
        assert twice.tobytes() != combine(given, dict.fromkeys(given, 1)).tobytes()


LIES = {"huge": 3e38, "huge below": -3e38, "a little": 10.0}


@robust
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
@pytest.mark.parametrize("honest", [2, 3, 4, 9])
def test_one_liar_cannot_move_it_beyond_the_honest(combine, lie, honest) -> None:
    """Whatever it says, the outcome stays between the smallest and the largest honest number. The mean does not."""
    true = {client: normal(N, client) for client in range(honest)}
    rows = np.stack(list(true.values()))
    everybody = {**true, 99: np.full(N, lie, np.float32)}
    weights = dict.fromkeys(everybody, 1)
    found = combine(everybody, weights)
    assert (found >= rows.min(axis=0)).all()
    assert (found <= rows.max(axis=0)).all()
    moved = mean(everybody, weights)
    assert ((moved < rows.min(axis=0)) | (moved > rows.max(axis=0))).any()


@robust
def test_half_and_more_can(combine) -> None:
    """The promise has its limits: a median of two is their mean."""
    everybody = {0: np.zeros(N, np.float32), 1: np.full(N, 100, np.float32)}
    assert (combine(everybody, {0: 1, 1: 1}) == 50).all()


# ---- distances between contributions, against loops


def liars(fraction: float, n: int, spare: int) -> int:
    f = max(1, int(fraction * n))
    while f > 0 and n < 2 * f + spare:
        f -= 1
    return f


def scores(rows: np.ndarray, f: int) -> list[float]:
    """Σ of the n − f − 2 smallest squared distances to others."""
    found = []
    for i, row in enumerate(rows):
        apart = sorted(float(((row - other) ** 2).sum()) for j, other in enumerate(rows) if j != i)
        found.append(sum(apart[: max(1, len(rows) - f - 2)]))
    return found


many = st.dictionaries(st.integers(0, 500), st.integers(1, 2), min_size=5, max_size=9)


@few
@given(many, st.sampled_from([0.1, 0.2, 0.4]))
def test_krum_and_multi_krum(weights, fraction) -> None:
    contributions = contributions_of(sorted(weights))
    weights = {c: weights[c] for c in sorted(weights)}
    rows = rows_of(contributions, weights)
    f = liars(fraction, len(rows), 3)
    by_score = sorted(range(len(rows)), key=lambda i: (scores(rows, f)[i], i))
    near(Krum(fraction=fraction).combine(contributions, weights), rows[by_score[0]], rows)
    kept = rows[by_score[: len(rows) - f]].mean(axis=0)
    near(MultiKrum(fraction=fraction).combine(contributions, weights), kept, rows)


@few
@given(many, st.sampled_from([0.1, 0.2, 0.4]))
def test_nearest_neighbours(weights, fraction) -> None:
    weights = {c: weights[c] for c in sorted(weights)}
    contributions = contributions_of(weights)
    rows = rows_of(contributions, weights)
    keep = len(rows) - liars(fraction, len(rows), 2)
    mixed = NearestNeighbours(fraction=fraction).mix(contributions, weights)
    assert mixed.keys() == contributions.keys()
    for client, own in contributions.items():
        apart = [(float(((own.astype(np.float64) - row) ** 2).sum()), j) for j, row in enumerate(rows)]
        near(mixed[client], rows[[j for _, j in sorted(apart)[:keep]]].mean(axis=0), rows)
    shuffled = NearestNeighbours(fraction=fraction).mix(dict(reversed(contributions.items())), weights)
    assert all(shuffled[c].tobytes() == mixed[c].tobytes() for c in mixed)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
@pytest.mark.parametrize("honest", [4, 9])
def test_one_liar_is_not_among_the_chosen(lie, honest) -> None:
    """Of n ≥ 2f + 3: what comes out is made of honest contributions alone, if the lie is farther than they are."""
    true = {client: normal(N, client) for client in range(honest)}
    everybody = {**true, 99: np.full(N, lie, np.float32)}
    weights = dict.fromkeys(everybody, 1)
    rows = np.stack(list(true.values()))
    assert any((Krum().combine(everybody, weights) == row).all() for row in rows)
    near(MultiKrum().combine(everybody, weights), rows.astype(np.float64).mean(axis=0), rows) if honest == 4 else None
    mixed = NearestNeighbours().mix(everybody, weights)
    for client in true:
        assert np.abs(mixed[client]).max() <= np.abs(rows).max()


def test_clipping_by_the_server() -> None:
    said = {0: normal(N), 1: np.full(N, 1e30, np.float32), 2: np.zeros(N, np.float32)}
    clipped = ServerClip(norm=2.0).mix(said, dict.fromkeys(said, 1))
    for client, values in said.items():
        right = values * min(1.0, 2.0 / max(np.linalg.norm(values.astype(np.float64)), 1e-30))
        np.testing.assert_allclose(clipped[client], right, rtol=1e-6)
