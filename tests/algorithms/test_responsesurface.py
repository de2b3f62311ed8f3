"""The response surface: what everybody is asked, what the mean is, and who may be missing."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from fedzero.algorithms import ResponseSurface
from fedzero.algorithms.contract import Federation, Gathered, State
from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.filters.combiners import Median, mean
from fedzero.model.params import Params

KEYS = Keys.of_seed(3)
D = 4


def begun(method=None):
    method = method or ResponseSurface()
    return method, method.init(Params.of_vector(torch.full((D,), 0.5)), 3)


def points_of(method, state: State, round: int):
    return method._asked(state, KEYS, round)[1]


def played(method, state, round, functions, combine=mean):
    points = points_of(method, state, round)
    sent = {i: np.array([f(x) for x in points]) for i, f in functions.items()}
    gathered = Gathered(round, state.scale, KEYS, sent, dict.fromkeys(sent, 1), combine, state)
    update = method.aggregate(gathered)
    return update, method.apply(state, [update], KEYS)


def bowls(shift=0.0):
    centres = np.array([[0.2, 0.4, 0.6, 0.3], [0.4, 0.5, 0.7, 0.3], [0.3, 0.9, 0.2, 0.6]])
    return {i: lambda x, c=c: 1e6 + shift + float(np.square(x - c).sum()) for i, c in enumerate(centres)}, centres


@pytest.mark.parametrize("combine", [mean, Median().combine])
def test_values_are_combined_to_more_digits_than_a_combiner_gives(combine):
    method, state = begun()
    functions, _ = bowls()
    points = points_of(method, state, 0)
    _, state = played(method, state, 0, functions, combine)
    rows = np.array([[f(x) for x in points] for f in functions.values()])
    right = rows.mean(axis=0) if combine is mean else np.median(rows, axis=0)
    assert np.frombuffer(state.carry.values) == pytest.approx(right, rel=1e-15)


def test_the_mean_of_quadratics_is_minimised_and_the_model_is_the_best_point():
    method, state = begun()
    functions, centres = bowls(-1e6)
    for round in range(8):
        _, state = played(method, state, round, functions)
    assert state.params.vector().numpy() == pytest.approx(centres.mean(axis=0), abs=1e-6)
    assert len(state.carry.values) == 8 * 8 * (D + 1)


def test_an_update_says_all_that_a_replica_needs():
    """A replica that only applies has the points of the server, to the last bit."""
    method, server = begun()
    _, other = begun()
    functions, _ = bowls()
    for round in range(6):
        update, server = played(method, server, round, functions)
        other = method.apply(other, [update], KEYS)
        assert (points_of(method, other, round + 1) == points_of(method, server, round + 1)).all()
    assert server.numbers == other.numbers


def test_a_party_that_is_missing_in_a_wide_round_does_not_shift_the_values():
    method, state = begun()
    functions, _ = bowls()
    functions[0] = lambda x: 5e6 + float(np.square(x - 0.3).sum())  # a level of its own
    _, state = played(method, state, 0, functions)
    without = {i: f for i, f in functions.items() if i}
    points = points_of(method, state, 1)
    _, state = played(method, state, 1, without)
    right = [np.mean([f(x) for f in functions.values()]) for x in points]
    assert np.frombuffer(state.carry.values)[D + 1 :] == pytest.approx(right, abs=1.0)  # and not 1.3e6 below


def test_a_round_in_which_nobody_answered_leaves_points_for_one_of_another_size():
    method = ResponseSurface(points={"start": 5, "then": [[2, 3], [3, 9]]})
    method = msgspec.convert(msgspec.to_builtins(method), ResponseSurface)
    functions, _ = bowls()
    state = begun(method)[1]
    _, state = played(method, state, 0, functions)
    for missed in (1, 2):
        assert len(points_of(method, state, missed + 1)) == method.batch(D, missed + 1)
    _, state = played(method, state, 3, functions)
    assert len(state.carry.values) == 8 * (5 + 9)


def test_what_it_cannot_serve_is_refused():
    everybody = Federation(clients=3, cohort=3)
    with pytest.raises(FedzeroError, match="same parties"):
        ResponseSurface().check(Federation(clients=3, cohort=2))
    with pytest.raises(FedzeroError, match=r"algorithm\.steps = 1"):
        ResponseSurface(steps=(0, 1)).check(everybody)
    with pytest.raises(FedzeroError, match="coordinate 1"):
        ResponseSurface(steps=(3, 0), choices=(1,)).check(everybody)
    with pytest.raises(FedzeroError, match="2 numbers in 4 dimensions"):
        points_of(*begun(ResponseSurface(steps=(3, 0))), 0)
