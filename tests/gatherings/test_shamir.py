"""Sums that any T members open and T − 1 do not, exact to the integer."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from fedzero.errors import Refused
from fedzero.gatherings import field
from fedzero.gatherings.field import LARGEST, P
from fedzero.gatherings.shamir import completed, most_colluding, opened, threshold, values, weight

CASES = 10_000


def drawn(source: np.random.Generator, count: int) -> field.U64:
    return field.uniform(source.bytes(8 * count))


def shares(source: np.random.Generator, integers: field.I64, members: int) -> dict[int, field.U64]:
    first = [drawn(source, len(integers)) for _ in range(threshold(members) - 1)]
    return completed(field.of_integers(integers), first, members)


@pytest.mark.parametrize("cases", [500, pytest.param(CASES, marks=pytest.mark.slow)])
def test_sums_are_exact_to_the_integer(cases) -> None:
    """Random hosts m, committees c, which hosts drop out before the set and which members after it."""
    chance, source = random.Random(7), np.random.default_rng(7)
    for _ in range(cases):
        c = chance.randint(4, 16)
        T, m = threshold(c), chance.randint(2, 6)
        inputs = [source.integers(-LARGEST, LARGEST + 1, 2) for _ in range(m)]
        given = [shares(source, integers, c) for integers in inputs]
        U = chance.sample(range(m), chance.randint(1, m))
        here = chance.sample(range(1, c + 1), chance.randint(T, c))
        answers = {j: field.total(np.stack([given[i][j] for i in U])) for j in here}
        assert field.integers_of(opened(answers, T)).tolist() == sum(inputs[i] for i in U).tolist()


@pytest.mark.parametrize("members", range(4, 17))
def test_thresholds(members) -> None:
    T, k = threshold(members), most_colluding(members)
    assert T > k >= 1 and members + k < 2 * T
    assert not (k + 1 < T and members + k + 1 < 2 * T), "one more would be withstood"
    assert members - T >= 1, "no dropout would be tolerated"
    assert {7: (2, 2), 16: (5, 5)}.get(members, (k, members - T)) == (k, members - T)


@pytest.mark.parametrize("members", [4, 7])
def test_fewer_than_the_threshold_say_nothing(members) -> None:
    """Whatever T − 1 members hold, every secret has a polynomial that goes through it."""
    source, T = np.random.default_rng(1), threshold(members)
    given = shares(source, np.array([5]), members)
    for some in itertools.combinations(range(1, members + 1), T - 1):
        view = {j: given[j] for j in some}
        for guess in (0, 5, P - 1):
            whole = {0: np.array([guess], np.uint64), **view}
            rest = values(whole, range(1, members + 1))
            assert all(np.array_equal(rest[j], view[j]) for j in some)
            assert opened(rest, T).tolist() == [guess]
        with pytest.raises(Refused, match=f"only {T - 1} members"):
            opened(view, T)


def test_lagrange_weights_are_those_of_fractions() -> None:
    """f(x) = 3x² + 2x + 1 through 1, 4 and 9."""
    points = {x: np.array([3 * x * x + 2 * x + 1], np.uint64) for x in (1, 4, 9)}
    assert [found.tolist() for found in values(points, [0, 2, 100]).values()] == [[1], [17], [30201]]
    assert [weight((1, 2), m, 0) for m in (1, 2)] == [2, P - 1]


@pytest.mark.parametrize("odd", [1, 4, 7])
def test_an_answer_that_is_off_the_polynomial_abandons_the_sum(odd) -> None:
    given = shares(np.random.default_rng(3), np.array([1, -2]), 7)
    given[odd] = field.add(given[odd], np.array([0, 1], np.uint64))
    with pytest.raises(Refused, match=f"do not lie on one polynomial: that of member {odd} is odd"):
        opened(given, 5)
    six = {j: given[j] for j in given if j != 2}
    with pytest.raises(Refused, match=r"do not lie on one polynomial$"):
        opened(six, 5)


def test_two_odd_answers_are_not_named() -> None:
    given = shares(np.random.default_rng(3), np.array([1, -2]), 7)
    for odd in (1, 2):
        given[odd] = field.add(given[odd], np.array([1, 1], np.uint64))
    with pytest.raises(Refused, match=r"do not lie on one polynomial$"):
        opened(given, 5)
