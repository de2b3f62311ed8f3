"""The response surface: what everybody is asked, what the mean is, and who may be missing."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.links.combining import mean
from fedzero.links.median import Median
from fedzero.methods import ResponseSurface
from fedzero.methods.contract import Federation, State, StepInputs
from fedzero.methods.responsesurface import _sent
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
    gathered = StepInputs(round, state.scale, KEYS, sent, dict.fromkeys(sent, 1), combine, state)
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


def test_where_a_party_has_no_value_there_is_none_of_the_mean():
    """Not shifted, not of the others: a party that is missing, did not answer at a point, or is not defined there."""
    method, state = begun()
    functions, _ = bowls(-1e6)
    functions[0] = lambda x: -5e6 + float(np.square(x - 0.3).sum())  # a level of its own
    points = points_of(method, state, 0)
    holes = {1: {1: np.nan}, 2: {2: np.inf}, 3: {1: np.nan, 2: np.inf}}  # by point and party
    sent = {
        i: _sent(np.array([holes.get(p, {}).get(i, f(x)) for p, x in enumerate(points)])) for i, f in functions.items()
    }
    assert all(np.isfinite(values).all() for values in sent.values())  # as everything that travels
    for filtered in (lambda v: v, lambda v: v.astype(np.float32), lambda v: v / 2):
        with np.errstate(over="ignore"):
            given = {i: filtered(values) for i, values in sent.items()}
        gathered = StepInputs(0, state.scale, KEYS, given, dict.fromkeys(sent, 1), mean, state)
        found = np.frombuffer(method.apply(begun()[1], [method.aggregate(gathered)], KEYS).carry.values)
        right = np.mean([given[i][[0, 4]].astype(np.float64) for i in range(3)], axis=0)
        assert found[[0, 4]] == pytest.approx(right, rel=1e-12)
        assert not np.isfinite(found[1:4]).any()
        assert found[3] == np.inf
    _, state = played(method, state, 0, functions)
    update, state = played(method, state, 1, {i: f for i, f in functions.items() if i})
    assert np.isnan(np.frombuffer(state.carry.values)[D + 1 :]).all()
    assert np.isfinite(method.decode_update(update)).all()
    best = points[int(np.argmin(np.frombuffer(state.carry.values)[: D + 1]))]
    assert state.params.vector().numpy() == pytest.approx(best, abs=1e-6)


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
