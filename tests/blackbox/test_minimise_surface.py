"""minimise with its default method: budgets, exact values, whole numbers, choices, constraints, noise, ask and tell."""

from __future__ import annotations

import numpy as np
import pytest
from test_blackbox_run import BOUNDS, CENTRES, Boxes, intact, mean_at

import fedzero
from fedzero import api
from fedzero.errors import FedzeroError
from fedzero.report import sentence
from fedzero.results.history import history
from stops import StopAt


def test_the_value_is_that_at_the_point_found_to_the_last_bit(tmp_path):
    """Without a query for the sake of a report: the best point is one at which everybody was asked."""
    boxes = Boxes()
    result = fedzero.minimise(boxes.functions, BOUNDS, budget=60, out=tmp_path)
    assert result.queries == sum(boxes.calls.values()) == 180
    assert result.x == pytest.approx(CENTRES.mean(axis=0), abs=1e-6)
    assert (result.value, result.estimated, result.error) == (pytest.approx(mean_at(result.x), rel=1e-15), False, None)
    assert any((x == result.x).all() for _, x in boxes.points)
    assert result.values == tuple(((result.x - c) ** 2).sum() for c in CENTRES)
    assert result.start_value == pytest.approx(mean_at(np.mean(BOUNDS, axis=1)), rel=1e-12)
    assert (result.best_value, result.best_x.tolist()) == (result.value, result.x.tolist())
    assert not any(step.estimated for step in result.history)
    values = [step.value for step in result.history]
    assert values == sorted(values, reverse=True)
    assert "≈" not in sentence([history(tmp_path)])
    intact(tmp_path)


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 10, 25])
def test_a_budget_is_spent_to_the_last_query(tmp_path, budget):
    """Also where it is not a multiple of a batch, or less than a batch."""
    boxes = Boxes()
    result = fedzero.minimise(boxes.functions, BOUNDS, budget=budget, out=tmp_path)
    assert result.complete
    assert boxes.calls == dict.fromkeys(range(3), budget)
    assert result.value == min(mean_at(x) for _, x in boxes.points)


def test_a_budget_is_spread_over_the_rounds(tmp_path):
    result = fedzero.minimise(Boxes().functions, BOUNDS, budget=62, rounds=3, out=tmp_path)
    assert (result.rounds, result.queries) == (3, 3 * 60)
    assert result.x == pytest.approx(CENTRES.mean(axis=0), abs=1e-4)


def test_a_run_that_was_stopped_goes_on_to_the_same_ledger(tmp_path):
    options = {"budget": 48, "seed": 5}
    whole = fedzero.minimise(Boxes().functions, BOUNDS, out=tmp_path / "whole", **options)
    for at in (0, 3, 7):
        with pytest.raises(KeyboardInterrupt):
            fedzero.minimise(Boxes().functions, BOUNDS, out=tmp_path / "run", progress=StopAt(at), **options)
    again = fedzero.minimise(Boxes().functions, BOUNDS, out=tmp_path / "run", **options)
    assert (again.x.tolist(), again.value, again.queries) == (whole.x.tolist(), whole.value, whole.queries)
    heads = [fedzero.Run.open(tmp_path / name).summary.ledger_head for name in ("whole", "run")]
    assert heads[0] == heads[1]


def test_whole_numbers_and_options_come_as_such(tmp_path):
    seen = []

    def f(x):
        seen.append(x)
        rate, layers, kind = x
        return (rate - 0.3) ** 2 + (layers - 6.3) ** 2 + {"a": 1.0, "b": 0.0, "c": 2.0}[kind]

    bounds = [(0.0, 1.0), fedzero.Integer(1, 10), fedzero.Choice("a", "b", "c")]
    result = fedzero.minimise([f, f], bounds, budget=60, out=tmp_path)
    assert all(type(x[1]) is int and 1 <= x[1] <= 10 and x[2] in "abc" for x in seen)
    assert result.x[1:].tolist() == [6, 1]
    assert result.x[0] == pytest.approx(0.3, abs=1e-4)
    assert result.value == pytest.approx(0.09, abs=1e-6)
    intact(tmp_path)


def test_constraints_are_kept_but_for_what_the_penalty_leaves(tmp_path):
    """min (x − 2)² with x ≤ 1 and weight w: x = (2 + w)/(1 + w), for each of the coordinates."""
    result = fedzero.minimise(
        [lambda x: ((x - 2) ** 2).sum()],
        [(0, 4)] * 2,
        budget=90,
        constraints=[lambda x: x[0] - 1, lambda x: x[1] - 1],
        penalty=1000.0,
        out=tmp_path,
    )
    assert result.x == pytest.approx([1002 / 1001] * 2, abs=1e-4)
    assert result.value == pytest.approx(2 * 1000 / 1001, rel=1e-5)


def test_constraints_have_to_be_given_again(tmp_path):
    f, limits = lambda x: x.sum(), [lambda x: 0.0]
    with pytest.raises(KeyboardInterrupt):
        fedzero.minimise([f], [(0, 4)] * 2, budget=90, constraints=limits, progress=StopAt(2), out=tmp_path)
    with pytest.raises(FedzeroError, match="was not given"):
        fedzero.Run.open(tmp_path).resume()
    assert fedzero.minimise([f], [(0, 4)] * 2, budget=90, constraints=limits, out=tmp_path).queries == 90


def test_noise_is_averaged_and_the_value_has_a_standard_error(tmp_path):
    random = np.random.default_rng(0)
    boxes = [lambda x, c=c: ((x - c) ** 2).sum() + random.standard_normal() for c in CENTRES]
    result = fedzero.minimise(boxes, BOUNDS, budget=150, together=False, out=tmp_path)
    assert result.estimated
    assert 0 < result.error < 0.5  # a single mean of three has 0.58
    assert result.value == pytest.approx(mean_at(result.x), abs=4 * result.error)
    assert mean_at(result.x) - mean_at(CENTRES.mean(axis=0)) < 0.3


def test_ask_and_tell_with_whole_numbers(tmp_path):
    optimiser = fedzero.Optimiser([(0, 1), api.Integer(0, 5)], budget=15, out=tmp_path)
    while not optimiser.finished:
        for point in optimiser.ask(3):
            optimiser.tell(point, (point.x[0] - 0.2) ** 2 + abs(point.x[1] - 4))
    assert optimiser.result().x == pytest.approx([0.2, 4], abs=0.05)
    assert optimiser.result().queries == 15
