"""E8: settings as in the paper, equal budgets, and what is said about the outcome."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import drive

from fedzero.methods.fedzo import FedZO
from fedzero.methods.zofedht import ZOFedHT
from fedzero.model.schedules import rate_at
from fedzero.report.history import History, Point
from fedzero_papers.experiments.contract import Options, Stage
from fedzero_papers.experiments.curves import lowest
from fedzero_papers.experiments.e8 import (
    ALPHAS,
    BELOW,
    CONTROLS,
    E8,
    FULL,
    METHODS,
    RATES,
    Choice,
    Instance,
    Result,
    Size,
    findings,
)
from fedzero_papers.experiments.tables import table_csv


@pytest.fixture(scope="module")
def search() -> Stage:
    return next(E8.plan(Options()))


def finals(options: Options) -> Stage:
    """The second stage, if every run of the first ends alike."""
    plan = E8.plan(options)
    first = next(plan)
    return plan.send({job.folder: run([0.5]) for job in first.jobs})


def run(losses: list[float], queries: int = 100) -> History:
    """A made-up history, evaluated after every round."""
    points = tuple(Point(r, loss, None, 0.0, 0.0, r * queries) for r, loss in enumerate(losses))
    return History("x", "x", "x", 1, 1, 1, len(losses) - 1, points, (), 0.0, "", "", (), True)


def of_the_paper(stage: Stage) -> list[Any]:
    """Without the controls."""
    return [job for job in stage.jobs if "/control-" not in job.folder]


@pytest.mark.slow
def test_controls_are_plain_sgd_at_other_rates(search):
    tuned = [job for job in search.jobs if job not in of_the_paper(search)]
    assert {rate_at(job.recipe.algorithm.rate, 0) for job in tuned} == set(BELOW)
    last = finals(Options())
    for job in (job for job in last.jobs if job not in of_the_paper(last)):
        assert isinstance(job.recipe.algorithm, FedZO) and job.recipe.algorithm.samples == "batch"
        peer = job.recipe.seed, job.folder.split("/")[0]
        (chosen,) = [j for j in last.jobs if (j.recipe.seed, j.folder.split("/")[0]) == peer and "zofedht" in j.folder]
        method, rate = chosen.recipe.algorithm, rate_at(job.recipe.algorithm.rate, 0)
        if "shortened" in job.folder:
            assert rate == pytest.approx(rate_at(method.rate, 0) * (1 - method.alpha))
        else:
            assert rate in BELOW
    linear = [f"{d}-{m}" for d in ("mnist", "fashion") for m in ("logistic", "svm")]
    assert {job.folder.split("/")[0] for job in tuned} == {
        f"{each}-{p}{scaling}" for each in linear for p in ("iid", "shards", "labels") for scaling in ("", "-standard")
    }


def test_readings_the_paper_leaves_open(search):
    for job in search.jobs:
        name, task = job.folder.split("/")[0], job.recipe.task
        assert (task.scaling == "standard") == name.endswith("-standard")
        assert (task.sorted_by == "labels") == ("-labels" in name)


def test_the_settings_are_the_papers(search):
    for job in of_the_paper(search):
        method, federation, task = job.recipe.algorithm, job.recipe.federation, job.recipe.task
        assert isinstance(method, ZOFedHT | FedZO)
        assert (method.directions, method.local_steps, method.radius) == (1, 50, 1e-4)
        assert (method.difference, method.distribution) == ("central", "gaussian")
        assert (federation.clients, federation.cohort, federation.replacement) == (100, 10, True)
        assert (task.batch, task.full) == (64, True)
        start = rate_at(method.rate, 0)
        assert start in RATES
        assert rate_at(method.rate, 8) == pytest.approx(start / 3)
        assert (method.samples == "all") == ("zofedavg-gd" in job.folder)
        if isinstance(method, ZOFedHT):
            assert method.tau == 5
            assert method.alpha in ALPHAS


def test_the_grid_is_the_papers_but_for_the_largest_model(search):
    """Eighteen instances, sixteen other readings; 27 + 3 + 3 points of the grid, fewer for the MLP on RCV1."""
    by_instance: dict[str, int] = {}
    for job in of_the_paper(search):
        instance = job.folder.split("/")[0]
        by_instance[instance] = by_instance.get(instance, 0) + 1
    assert len(by_instance) == 18 + 16
    assert {n for name, n in by_instance.items() if not name.startswith("rcv1-mlp")} == {33}
    assert by_instance["rcv1-mlp-iid"] == 3 * 3 + 3 + 3
    assert search.ahead[0] == (18 + 16) * 3 * 3


def test_shards_are_sorted_and_one_a_client(search):
    kinds = {job.folder.split("/")[0].split("-")[2]: job.recipe.task.partition for job in search.jobs}
    assert type(kinds["iid"]).__name__ == "Iid"
    assert (type(kinds["shards"]).__name__, kinds["shards"].per_client) == ("Shards", 1)


def test_all_methods_of_an_instance_have_the_same_budget():
    """In samples: a GD round looks at all of a client's data. Rounds are whole, so budgets agree to half a GD round."""
    samples = {"mnist": 600, "fashion": 600, "rcv1": 190}
    seen: dict[str, dict[str, float]] = {}
    for job in of_the_paper(finals(Options())):
        instance, method = job.folder.split("/")[:2]
        each = samples[instance.split("-")[0]] if method == "zofedavg-gd" else 64
        seen.setdefault(instance, {})[method] = job.recipe.rounds * each
    for instance, budgets in seen.items():
        assert set(budgets) == set(METHODS)
        tolerance = samples[instance.split("-")[0]] / 2
        assert max(budgets.values()) - min(budgets.values()) <= tolerance, instance


def test_final_runs_have_seeds_of_their_own(search):
    assert {job.recipe.seed for job in search.jobs} == {0}
    assert {job.recipe.seed for job in finals(Options()).jobs} == {1, 2, 3}
    assert len(finals(Options(repetitions=1, only="mnist-svm-ii[d]")).jobs) == 3 + 2


def test_it_is_sized_for_two_cores(search):
    """By the costs measured when it was written: the figures take less than two hours, RCV1 half an hour of them."""
    drawn, rcv1 = (next(E8.plan(Options(only=only))) for only in ("*-iid,*-shards", "rcv1*"))
    minutes = [(sum(job.cost for job in stage.jobs) + stage.ahead[1]) / 2 / 60 for stage in (search, drawn, rcv1)]
    assert minutes[0] <= 240
    assert minutes[1] <= 120
    assert minutes[2] <= 30


def test_the_lowest_finite_loss_is_chosen():
    a, b, c, d = (Choice(rate) for rate in (0.1, 1.0, 10.0, 100.0))
    assert lowest({a: run([1.0, 0.5]), b: run([1.0, 0.4]), c: run([1.0, math.nan]), d: run([1, -math.inf])}) == b
    assert lowest({a: run([math.nan]), b: run([math.inf])}) == a, "of equally bad ones the first, which is the smallest"


def result(*losses: list[float]) -> Result:
    return Result(Choice(0.1), tuple(run(each) for each in losses), 64.0)


def test_what_is_said_where_the_claim_does_not_come_out():
    good, bad = Instance("mnist", "svm", "iid"), Instance("rcv1", "mlp", "shards")
    results = {
        (good, "zofedht"): result([1, 0.2], [1, 0.4]),
        (good, "zofedavg-sgd"): result([1, 0.1], [1, 0.9]),  # the best run, but not the lowest mean
        (good, "zofedavg-gd"): result([1, 0.6], [1, 0.6]),
        (bad, "zofedht"): result([1, 0.5], [1, math.nan]),
        (bad, "zofedavg-sgd"): result([1, 0.4], [1, 0.4]),
        (bad, "zofedavg-gd"): result([1, 0.6], [1, 0.6]),
    }
    said = findings(results)
    assert said[0].startswith("ZOFedHT has the lowest training loss in 1 of 2 instances, by the mean of the last")
    assert said[1].startswith("ZOFedHT has the lowest training loss in 0 of 2 instances, by the best run")
    (line,) = [each for each in said if each.startswith("Not lowest")]
    assert "nor in the paper" in line
    assert "ZOFedAvg-SGD 0.4 and ZOFedHT inf" in line
    assert said[-1].startswith("6 of 6 chosen rates lie at an edge")


def test_numbers_of_a_result():
    found = result([1.0, 0.8, 0.6, 0.5, 0.4], [1.0, 0.9, 0.7, 0.6, 0.2])
    assert found.mean == pytest.approx(0.3)
    assert min(found.losses) == 0.2
    assert found.late == pytest.approx((0.5 + 0.4 + 0.6 + 0.2) / 4), "rounds 3 and 4 of 4"
    assert found.evaluations == 400 * 64


TINY = replace(
    FULL,
    samples={"mnist": 4_000},
    clients=20,
    cohort=2,
    seeds=2,
    sizes={("mnist", "logistic"): Size(1, 6, (1, 1, 1), (0.1,), (0.5,))},
    full=False,
)


@pytest.mark.slow
def test_a_small_one_for_real(tmp_path: Path):
    """Rows of the table and points of the figure are those of the ledgers, in samples."""
    outcome, histories = drive(replace(E8, quick=TINY).plan(Options(quick=True, only="logistic-iid")), tmp_path)
    (table, control), (figure,) = outcome.tables, outcome.figures
    assert [row[4] for row in control.rows] == ["ZOFedHT", "ZOFedAvg-SGD", *CONTROLS.values()]
    rows: list[dict[str, Any]] = list(csv.DictReader(table_csv(table).splitlines()))
    assert [row["method"] for row in rows] == list(METHODS.values())
    for row, method, line in zip(rows, METHODS, figure.panels[0].lines, strict=True):
        runs = [h for folder, h in histories.items() if f"/{method}/final/" in folder]
        assert len(runs) == 2
        losses = [h.final_loss for h in runs]
        assert float(row["mean loss"]) == pytest.approx(sum(losses) / 2, rel=1e-15)
        assert (float(row["best loss"]), float(row["worst loss"])) == (min(losses), max(losses))
        each = 200 if method == "zofedavg-gd" else 64
        assert int(row["evaluations"]) == round(sum(h.queries for h in runs) / 2 * each)
        assert runs[0].queries <= runs[0].rounds * 2 * 50 * 2, "at most: a client drawn twice works once"
        counts = zip(*([p.queries for p in h.points] for h in runs), strict=True)
        assert line.x == tuple(sum(pair) / 2 * each for pair in counts)
        assert line.low is not None
        assert line.low[-1] == min(losses)
    assert {row["α"] for row in rows} == {"0.5", ""}
