"""E6: settings as described, success rates over the images, and what is said about them."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import drive

from fedzero.methods.rules.kernels import Adam
from fedzero.report.history import History, Point
from fedzero_papers.experiments.baselines import METHODS, Baseline, Comparison
from fedzero_papers.experiments.contract import Options, Stage
from fedzero_papers.experiments.curves import Curve, mean_and_error
from fedzero_papers.experiments.e6 import E6, FULL, QUICK, Attack, Result, Scale, figures, findings, table
from fedzero_papers.experiments.tables import table_csv

LABELS = [baseline.label for baseline in METHODS.values()]


@pytest.fixture(scope="module")
def stage() -> Stage:
    return next(E6.plan(Options()))


def run(successes: list[int], queries: int = 100) -> History:
    """A made-up history, evaluated every second round."""
    points = tuple(
        Point(2 * r, 1.0, None, 0.0, 0.0, r * queries, {"success": float(s), "distortion": 3.0 + s, "largest": 0.1})
        for r, s in enumerate(successes)
    )
    return History("x", "x", "x", 1, 1, 1, 2 * len(points) - 2, points, (), 0.0, "", "", (), True)


def test_the_settings_are_the_papers(stage):
    for job in stage.jobs:
        method: Any = job.recipe.algorithm
        task: Any = job.recipe.task
        assert method.box == (0.0, 1.0)
        assert job.recipe.federation.clients == job.recipe.federation.cohort == 10
        assert task.full
        assert (task.share, method.local_steps) == (
            float(job.folder.split("-p")[1].split("-")[0]),
            int(job.folder.split("-t")[1].split("/")[0]),
        )
        assert job.recipe.seed == 1 + task.repetition
        if "fzoos" not in job.folder:
            assert (method.directions, method.difference, method.distribution) == (20, "forward", "gaussian")
            rate = METHODS["fedzo-3"].rate if "/fedzo-3/" in job.folder else 0.01
            assert (method.rate, method.form) == (rate, "dense")
            assert isinstance(method.local_optimizer, Adam)


def test_every_method_attacks_the_same_images(stage):
    wanted = {(attack.name, str(image)) for attack in FULL.attacks for image in range(attack.images)}
    for method in METHODS:
        mine = [job for job in stage.jobs if f"/{method}/" in job.folder]
        assert {(job.folder.split("/")[0], job.folder.rsplit("-", 1)[1]) for job in mine} == wanted
        assert {job.recipe.task.image for job in mine} == set(range(15))  # type: ignore[union-attr]
    types = {method: {j.recipe.algorithm for j in stage.jobs if f"-t10/{method}/" in j.folder} for method in METHODS}
    assert all(len(found) == 1 for found in types.values())
    assert len({next(iter(found)) for found in types.values()}) == len(METHODS)


def test_more_repetitions_draw_anew():
    jobs = next(E6.plan(Options(repetitions=3, only="mnist-p1-t10"))).jobs
    assert {job.recipe.task.repetition for job in jobs} == {0, 1, 2}  # type: ignore[union-attr]
    assert len(jobs) == 3 * 15 * len(METHODS)


def test_it_is_sized_for_two_cores(stage):
    """By the costs measured when it was written, the training of victims aside."""
    assert sum(job.cost for job in stage.jobs) / 2 / 60 <= 60
    assert sum(job.cost for job in next(E6.plan(Options(quick=True))).jobs) / 2 / 60 <= 3
    assert not QUICK.full
    assert {attack.subject for attack in QUICK.attacks} == {"mnist"}, "no data folder is needed"


def test_numbers_of_a_result():
    found = Result((run([0, 1, 1]), run([0, 0, 1]), run([0, 0, 0], 200), run([0, 0, 1], 200)), images=2)
    curve = found.curve
    assert curve.values == ((0.0, 50.0, 100.0), (0.0, 0.0, 50.0))
    assert (curve.rounds, curve.queries) == ((0.0, 2.0, 4.0), (0.0, 150.0, 300.0))
    assert curve.mean == (0.0, 25.0, 75.0)
    assert curve.final == (75.0, pytest.approx(25.0))
    assert found.first(25) == (2.0, 150.0)
    assert found.first(50) == (4.0, 300.0)
    assert found.first(80) is None
    assert found.distortion == 4.0, "of those that succeeded"
    assert Result((run([0, 0]),), 1).distortion is None


# ---- what E6 and E7 share


def test_means_and_standard_errors():
    assert mean_and_error([2.0, 4.0, 9.0]) == (5.0, pytest.approx(math.sqrt(13) / math.sqrt(3)))
    assert mean_and_error([7.0]) == (7.0, 0.0)
    line = Curve((0, 1), (0, 9), ((1.0, 2.0), (3.0, 2.0))).line("x", 2)
    assert (line.x, line.y, line.low, line.high) == ((0, 1), (2.0, 2.0), (1.0, 2.0), (3.0, 2.0))
    alone = Curve((0, 1), (0, 9), ((1.0, 2.0),)).line("x", 2, by_queries=True)
    assert (alone.x, alone.y, alone.low) == ((0, 9), (1.0, 2.0), None)


def test_methods_are_compared_where_the_first_of_them_ends():
    long, short = Curve((0, 2, 4), (0, 40, 80), ((9.0, 5.0, 1.0),)), Curve((0, 2), (0, 50), ((9.0, 4.0),))
    curves = {"fedzo": long, "fedprox": short}
    by_rounds, by_queries = (Comparison.of(curves, by) for by in (False, True))
    assert by_rounds == Comparison(2, {"fedzo": 5.0, "fedprox": 4.0})
    assert by_queries == Comparison(50, {"fedzo": 5.0, "fedprox": 4.0})
    assert by_rounds.ranked(lowest=True) == "FedProx-ZO 4.0, FedZO 5.0"
    assert by_rounds.ranked(lowest=False, form="{:.0f}") == "FedZO 5, FedProx-ZO 4"


def test_dear_methods_get_fewer_rounds():
    assert [Baseline("x", share=0.4).rounds(given) for given in (1, 20, 40)] == [1, 8, 16]
    assert Baseline("x").rounds(7) == 7


CASE = Attack("mnist", 0.5, 10, 4, 0.1, images=2)


def test_what_is_said():
    curves = {(CASE, method): Result((run([0, 0, 0]), run([0, 0, 0])), 2).curve for method in METHODS}
    curves[CASE, "scaffold-1"] = Result((run([0, 1, 1], 300), run([0, 0, 0], 300)), 2).curve
    said = findings(curves, QUICK)
    assert said[0].startswith("MNIST, P = 0.5, T = 10: success (%) after 4 rounds: SCAFFOLD-ZO (type I) 50, ")
    by_queries_said = said[0].partition("with 200 queries an image: ")[2]
    assert "SCAFFOLD-ZO (type I) 0" in by_queries_said, "200 queries do not pay for its second round"
    assert "CIFAR" not in said[-1]
    assert "CIFAR-10 by a subset" in findings(curves, FULL)[-1]


def test_figures_have_two_panels_an_attack():
    cifar = replace(CASE, subject="cifar10")
    results = {(a, m): Result((run([0, 1, 1]), run([0, 0, 1])), 2) for a in (CASE, cifar) for m in METHODS}
    found = figures({key: result.curve for key, result in results.items()}, [CASE, cifar], FULL)
    assert [figure.name for figure in found] == ["fig2", "fig7"]
    for figure in found:
        rounds, queries = figure.panels
        assert rounds.lines[0].y == queries.lines[0].y == (0.0, 50.0, 100.0)
        assert (rounds.lines[0].x, queries.lines[0].x) == ((0.0, 2.0, 4.0), (0.0, 100.0, 200.0))
        assert [line.label for line in rounds.lines] == LABELS
    (row, *_) = table(results).rows
    assert row[-5:] == (100.0, 0.0, 2.0, 100.0, 4.0)


TINY = Scale((Attack("mnist", 0.2, 2, 2, 0.1, images=2),), 1, False, clients=2)


def test_a_small_one_for_real(tmp_path: Path, monkeypatch):
    """Rows of the table and points of the figure are those of the ledgers."""
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "cache"))
    outcome, histories = drive(replace(E6, quick=TINY).plan(Options(quick=True)), tmp_path / "runs")
    (made,), (figure,) = outcome.tables, outcome.figures
    rows: list[dict[str, Any]] = list(csv.DictReader(table_csv(made).splitlines()))
    assert [row["method"] for row in rows] == LABELS
    for row, method, line in zip(rows, METHODS, figure.panels[1].lines, strict=True):
        runs = [h for folder, h in histories.items() if f"/{method}/" in folder]
        assert len(runs) == 2
        assert float(row["success rate (%)"]) == 50 * sum(h.points[-1].others["success"] for h in runs)
        assert line.x == tuple(float(p.queries) for p in runs[0].points)
        assert runs[0].queries == float(row["queries an image"])
        if method != "fzoos":
            assert runs[0].queries == 2 * 2 * 21 * (2 + (method == "scaffold-1"))
        assert all(0 < h.points[-1].others["largest"] <= 0.3 for h in runs), "something changed, within the bound"
        assert all(h.points[-1].loss != h.points[0].loss for h in runs)
        assert all(h.pictures is not None and h.pictures.channels == 1 for h in runs)
