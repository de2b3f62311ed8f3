"""E7: settings as described, means and standard errors over repetitions, and what is said about them."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import drive

from fedzero.methods.fzoos import FZooS
from fedzero.methods.rules.kernels import Adam
from fedzero.report.history import History, Point
from fedzero_papers.experiments.baselines import METHODS
from fedzero_papers.experiments.contract import Options, Stage
from fedzero_papers.experiments.curves import Curve
from fedzero_papers.experiments.e7 import (
    E7,
    FULL,
    METRICS,
    QUICK,
    SETTINGS,
    Scale,
    Tuning,
    figures,
    findings,
    percent,
    table,
)
from fedzero_papers.experiments.tables import table_csv


@pytest.fixture(scope="module")
def stage() -> Stage:
    return next(E7.plan(Options(only="*-p*-t*")))


def run(losses: list[float], queries: int = 100) -> History:
    points = tuple(Point(r, loss, None, 0.0, 0.0, r * queries, {"metric": 1 - loss}) for r, loss in enumerate(losses))
    return History("x", "x", "x", 1, 1, 1, len(points) - 1, points, (), 0.0, "", "", (), True)


def curve_of(*runs: History) -> Curve:
    return Curve.of(runs, percent)


def test_the_settings_are_the_papers(stage):
    for job in stage.jobs:
        method: Any = job.recipe.algorithm
        task: Any = job.recipe.task
        assert method.box == (0.0, 1.0)
        assert job.recipe.federation.clients == job.recipe.federation.cohort == 7
        assert task.full
        metric, share, steps = job.folder.removeprefix("windows/").split("/")[0].split("-")
        assert (task.metric, f"p{task.share:g}", f"t{method.local_steps}") == (metric, share, steps)
        assert job.recipe.seed == 1 + task.repetition
        if not isinstance(method, FZooS):
            assert (method.directions, method.difference, method.distribution) == (20, "forward", "gaussian")
            rate = METHODS["fedzo-3"].rate if "/fedzo-3/" in job.folder else 0.01
            assert (method.rate, method.form) == (rate, "dense")
            assert isinstance(method.local_optimizer, Adam)


def test_every_method_has_every_case_five_times(stage):
    cases = {(metric, share, steps) for metric in METRICS for share, steps, _ in SETTINGS}
    for method in METHODS:
        mine = [job for job in stage.jobs if f"/{method}/" in job.folder and not job.folder.startswith("windows/")]
        found = [(j.recipe.task.metric, j.recipe.task.share, j.recipe.algorithm.local_steps) for j in mine]  # type: ignore[union-attr]
        assert set(found) == cases
        assert {found.count(case) for case in cases} == {5}
    assert {share for _, share, steps in cases if steps == 10} == {0.3, 0.5, 1.0}
    assert {steps for _, share, steps in cases if share == 0.5} == {5, 10, 20}


def test_it_is_sized_for_two_cores(stage):
    """By the costs measured when it was written; the paper's 50 rounds, five times, take an hour and a half."""
    assert sum(job.cost for job in stage.jobs if not job.folder.startswith("windows/")) / 2 / 60 <= 90
    assert sum(job.cost for job in next(E7.plan(Options(quick=True))).jobs) / 2 / 60 <= 3
    assert not QUICK.full


def test_windows_differ_in_what_fzoos_looks_back_at():
    """P = 1, T = 10, as many rounds for all, and FedZO as in the other cases."""
    jobs = {job.folder.split("/")[2]: job.recipe for job in next(E7.plan(Options(only="windows-f1*"))).jobs}
    assert {(r.task.share, r.algorithm.local_steps, r.rounds) for r in jobs.values()} == {(1.0, 10, 30)}
    methods: Any = {name: recipe.algorithm for name, recipe in jobs.items()}
    assert methods["nearest-150"].surrogate.window.count == 150
    assert methods["nearest-600"].surrogate.window.count == 600
    assert methods["nearest-600"].active == methods["nearest-150"].active
    assert type(methods["whole"].surrogate.window).__name__ == "Everything"
    assert methods["whole"].active == methods["nearest-150"].active
    fz = methods["text"]
    assert (fz.preset, fz.surrogate.noise, fz.active.reach) == ("text", 1e-6, 0.01)
    assert next(E7.plan(Options(only="f1-p1-t10"))).jobs[0].recipe.algorithm == methods["nearest-150"]


def test_numbers_of_a_result():
    curve = curve_of(run([0.5, 0.4, 0.3]), run([0.5, 0.3, 0.1], 300))
    assert [pytest.approx(each) for each in curve.values] == [(50, 40, 30), (50, 30, 10)]
    assert (curve.rounds, curve.queries) == ((0.0, 1.0, 2.0), (0.0, 200.0, 400.0))
    assert curve.final == (pytest.approx(20), pytest.approx(math.sqrt(200) / math.sqrt(2)))


CASE, OTHER = Tuning("precision", 0.5, 10, 1, 0.1), Tuning("f1", 1.0, 10, 1, 0.1)


def test_what_is_said():
    results = {(case, m): curve_of(run([0.5, 0.4]), run([0.5, 0.4])) for case in (CASE, OTHER) for m in METHODS}
    results[CASE, "scaffold-2"] = curve_of(run([0.5, 0.2], 101), run([0.5, 0.3], 101))
    results[OTHER, "fedprox"] = curve_of(run([0.5, 0.39]), run([0.5, 0.39]))
    said = findings(results, FULL)
    assert said[0].startswith("Lowest after equally many rounds, of 2 cases: ")
    assert "SCAFFOLD-ZO (type II) in 1" in said[0]
    assert "FedProx-ZO in 1" in said[0]
    assert "SCAFFOLD-ZO (type II)" not in said[1], "100 queries do not pay for its first round"
    (line,) = [each for each in said if each.startswith("precision, P = 0.5, T = 10")]
    assert "from 50.0; after 1 rounds: SCAFFOLD-ZO (type II) 25.0, " in line
    assert line.endswith("SCAFFOLD-ZO (type II) 50.0.")
    assert "fewer rounds" in said[-1]


def test_figures_have_two_panels_a_case():
    results = {(case, m): curve_of(run([0.5, 0.4]), run([0.5, 0.2])) for case in (CASE, OTHER) for m in METHODS}
    found = figures(results, [CASE, OTHER], FULL)
    assert [(figure.name, len(figure.panels)) for figure in found] == [("precision", 2), ("f1", 2)]
    line = found[0].panels[1].lines[0]
    assert line.x == (0.0, 100.0)
    assert line.y == (pytest.approx(50), pytest.approx(30))
    assert line.low is not None
    assert line.low[1] == pytest.approx(20)
    assert found[1].panels[0].y == "1 − F1 (%)"
    (row, *_) = table("table", "x", results, {m: m for m in METHODS}).rows
    assert row[-3:] == (pytest.approx(50), pytest.approx(30), pytest.approx(10))


TINY = Scale((Tuning("recall", 0.3, 2, 2, 0.1),), 2, False, samples=60, clients=3)


@pytest.mark.slow
def test_a_small_one_for_real(tmp_path: Path, monkeypatch):
    """Rows of the table and points of the figure are those of the ledgers."""
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "cache"))
    outcome, histories = drive(replace(E7, quick=TINY).plan(Options(quick=True)), tmp_path / "runs")
    (made,), (figure,) = outcome.tables, outcome.figures
    rows: list[dict[str, Any]] = list(csv.DictReader(table_csv(made).splitlines()))
    assert [row["method"] for row in rows] == [baseline.label for baseline in METHODS.values()]
    for row, method, line in zip(rows, METHODS, figure.panels[0].lines, strict=True):
        runs = [h for folder, h in histories.items() if f"/{method}/" in folder]
        assert len(runs) == 2
        losses = [h.final_loss for h in runs]
        assert float(row["1 − metric last (%)"]) == pytest.approx(50 * sum(losses), rel=1e-12)
        assert float(row["standard error"]) == pytest.approx(100 * abs(losses[0] - losses[1]) / 2, rel=1e-9)
        assert line.x == tuple(float(r) for r in range(1 + METHODS[method].rounds(2)))
        if method != "fzoos":
            assert runs[0].queries == 2 * 3 * 21 * (2 + (method == "scaffold-1"))
        assert all(h.points[-1].others["metric"] == pytest.approx(1 - h.final_loss) for h in runs)
        assert all("accuracy" in h.facts["classifier"] for h in runs)
    assert len({row["1 − metric first (%)"] for row in rows}) == 1, "all methods begin at the same place"
    assert len({h.model_digest for h in histories.values()}) == len(histories), "and none stays there"
