"""E5: settings as the paper has them, what is read off the curves, and gradients observed as they are."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from toy import drive

from fedzero.methods.rules.kernels import Adam
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.report.history import History, Point
from fedzero_papers.experiments import alignment as alignments
from fedzero_papers.experiments import exact
from fedzero_papers.experiments.alignment import alignment
from fedzero_papers.experiments.contract import Options, Stage
from fedzero_papers.experiments.curves import by_query, by_round
from fedzero_papers.experiments.e5 import E5, FULL, METHODS, Case, Result, Scale, job

TOY = Scale((0.5,), (), 2, 1, (), 20, 1, 1, 1, 1, 2, dimension=12)


@pytest.fixture(scope="module")
def stage() -> Stage:
    return next(E5.plan(Options()))


def history(losses: list[float], queries: int = 100) -> History:
    points = tuple(Point(r, loss, None, 0.0, 0.0, r * queries) for r, loss in enumerate(losses))
    return History("x", "x", "x", 1, 1, 1, len(points) - 1, points, (), 0.0, "", "", (), True)


def test_the_settings_are_the_papers(stage) -> None:
    for each in stage.jobs:
        method, task, places = each.recipe.algorithm, each.recipe.task, each.recipe.federation
        assert (task.dimension, task.function, task.noise) == (300, "quadratic", 0.0)
        assert (places.clients, places.cohort) == (5, 5)
        assert (method.rate, method.box) == (0.01, (0.0, 1.0))
        if "fzoos" in each.folder:
            assert method.optimizer == Adam()
        else:
            assert (method.directions, method.local_optimizer, method.difference) == (20, Adam(), "forward")


def test_five_seeds_of_every_method_and_case(stage) -> None:
    for c, t in ((0.5, 10), (5.0, 10), (50.0, 10), (5.0, 5), (5.0, 20)):
        for method in METHODS:
            mine = [j for j in stage.jobs if j.folder.startswith(f"{Case(c, t).name}/{method}/")]
            assert sorted(j.recipe.seed for j in mine) == [1, 2, 3, 4, 5]
            assert {(j.recipe.task.heterogeneity, j.recipe.algorithm.local_steps, j.recipe.rounds) for j in mine} == {
                (c, t, 50)
            }
    features = {j.recipe.algorithm.settled.transfer.count for j in stage.jobs if j.folder.startswith("features")}
    assert features == set(FULL.features)
    fixed = {j.recipe.algorithm.correction_at for j in stage.jobs if j.folder.startswith("fixed")}
    assert fixed == {"iterate", "start"}


def test_five_percent_is_read_off_every_run() -> None:
    result = Result((history([10, 4, 0.5, 0.2]), history([4, 1, 0.3, 0.1], queries=10)))
    assert [(point.round, point.queries) for point in result.reached if point] == [(2, 200), (3, 30)]
    assert result.mean_reached(by_round) == 2.5
    assert result.mean_reached(by_query) == 115
    never = Result((history([10, 4, 0.5]), history([10, 9, 8])))
    assert never.reached[1] is None
    assert never.mean_reached(by_round) is None
    assert never.curve.final[0] == pytest.approx((0.05 + 0.8) / 2)


@pytest.mark.slow
def test_the_toy_experiment_runs_to_its_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(alignments, "cores", lambda: 1)  # every process imports everything
    outcome, _ = drive(replace(E5, full=TOY, quick=TOY).plan(Options(quick=True)), tmp_path)
    names = {figure.name for figure in outcome.figures}
    assert {"fig1", "fig3", "fig5b", "exact"} <= names
    table, cosine, control = outcome.tables
    assert len(control.rows) == 3
    assert {row[2] for row in table.rows} >= set(METHODS.values())
    assert len(cosine.rows) == len(METHODS)
    assert any("cos(ĝ, ∇F)" in words for words in outcome.findings)


def test_gradients_are_observed_as_clients_step_along_them() -> None:
    """Alone and with the exact gradient's own direction in every coordinate, the angle is nought; with plain estimates
    along Q of d directions the cosine is about √(Q / (d + Q + 1))."""
    recipe = job("fedzo", Case(0.0, 4), 1, 3, TOY).recipe
    found = alignment(recipe)
    assert found.shape == (3, 5, 4)
    expected = np.sqrt(20 / (12 + 20 + 1))
    assert found.mean() == pytest.approx(expected, abs=0.05)
    many = msgspec.structs.replace(recipe, algorithm=msgspec.structs.replace(recipe.algorithm, directions=2000))
    assert alignment(many).mean() > 0.99


def test_recipes_of_all_methods_exist() -> None:
    for method in (*METHODS, "fzoos-text"):
        assert recipes.load(f"e5-{method}").name == f"e5-{method}"


def test_exact_gradients_by_hand() -> None:
    """The control's round, by a plain loop over clients, with gradients by differences of values."""
    recipe = job("fzoos", Case(5.0), 3, 1, TOY).recipe
    objective = prepare(recipe, Environment()).problem.objective

    def f(i: int, u: np.ndarray) -> float:
        x = objective.function.place(u[None])
        return float(objective.function.values(x, objective.scales[i : i + 1], objective.shifts[i : i + 1])[0, 0])

    def gradient(i: int, u: np.ndarray) -> np.ndarray:
        return np.array([(f(i, u + h) - f(i, u - h)) / 2e-4 for h in 1e-4 * np.eye(12)])

    start, ends = prepare(recipe, Environment()).problem.params.vector().double().numpy(), []
    for i in range(5):
        y, m, v = start.copy(), np.zeros(12), np.zeros(12)
        for t in range(1, 11):
            own, every = gradient(i, y), np.mean([gradient(j, y) for j in range(5)], axis=0)
            g = own + (every - own) / t
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            y = np.clip(y - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), 0, 1)
        ends.append(y)
    at = [np.mean([f(i, x) for i in range(5)]) - objective.function.minimum(12) for x in (start, np.mean(ends, axis=0))]
    assert exact.gaps(recipe, lambda t: 1 / t)[-1] == pytest.approx(at[1] / at[0], rel=1e-6)


def test_the_rule_alone_fails_where_clients_differ_much() -> None:
    """The whole setting at C = 50: exact gradients, and still γ = 1/t ends above the gap at the start."""
    recipe = job("fzoos", Case(50.0), 1, 50, FULL).recipe
    assert exact.gaps(recipe, lambda t: 1 / t)[-1] > 1.5
    assert exact.gaps(recipe, lambda t: 1.0)[-1] < 0.01
