"""E1: the paper's setting, equal numbers a round for K 1 and K 5, means over seeds, and a small one for real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import drive

from fedzero.methods.contract import Scale as Size
from fedzero.model.schedules import rate_at
from fedzero_papers.experiments.contract import Options
from fedzero_papers.experiments.e1 import E1, METHODS, QUICK
from fedzero_papers.experiments.outcome import Cell


def recipes_of(options: Options) -> dict[str, Any]:
    return {job.folder.split("/")[0]: job.recipe for job in next(E1.plan(options)).jobs}


def test_the_setting_is_the_papers():
    stage = next(E1.plan(Options()))
    assert [job.folder for job in stage.jobs] == [f"{method}/seed-{s}" for method in METHODS for s in (1, 2, 3)]
    found = recipes_of(Options())
    for recipe in found.values():
        assert (recipe.federation.clients, recipe.federation.cohort) == (100, 10)
        assert (recipe.task.full, type(recipe.task.partition).__name__) == (True, "Iid")
    ours, theirs = found["paper"].algorithm, found["fedavg-paper"].algorithm
    assert (ours.rate, ours.optimizer.beta) == (1e-3, 0.5)
    assert (theirs.rate, theirs.momentum, theirs.local_steps) == (1e-3, 0.0, 1)
    assert [found[name].algorithm.directions for name in ("p50", "p5", "paper")] == [50, 5, 50]


def test_the_first_is_the_recipe():
    """Its figures in docs/results/e1.md are those of `fedzero run e1`."""
    method = recipes_of(Options())["p50-large-batch"].algorithm
    assert [rate_at(method.rate, r) for r in (0, 2239, 2800)] == [7e-3, 7e-3, pytest.approx(3.5e-4)]


def test_more_local_steps_send_as_many_numbers():
    found = recipes_of(Options())
    sizes = {name: found[name].algorithm.cost(0, Size(28_938, 100)).replies for name in ("p50", "k5-p10")}
    assert sizes["p50"] == sizes["k5-p10"]


def test_a_small_one_for_real(tmp_path: Path):
    sizes = replace(QUICK.sizes, rounds=2, large_rounds=2, fedavg_rounds=2, slow_rounds=2, directions=2)
    tiny = replace(QUICK, seeds=2, sizes=sizes, common=(*QUICK.common, "federation.cohort=2", "evaluate_every=1"))
    plan = replace(E1, quick=tiny).plan(Options(quick=True, only="p5,k5*,fedavg"))
    outcome, histories = drive(plan, tmp_path)
    (table,), (figure,) = outcome.tables, outcome.figures
    rows: dict[Cell, dict[str, Any]] = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    for method in ("p5", "k5-p10", "fedavg"):
        runs = [histories[f"{method}/seed-{s}"] for s in (1, 2)]
        ends = [100 * run.final_accuracy for run in runs if run.final_accuracy is not None]
        row = rows[METHODS[method]]
        assert row["test accuracy (%)"] == pytest.approx(sum(ends) / 2)
        assert (row["standard error"] or 0.0) == pytest.approx(abs(ends[0] - ends[1]) / 2)
        assert row["numbers / client"] == runs[0].bytes / 4
    assert {line.label for line in figure.panels[0].lines} >= {METHODS["p5"], METHODS["fedavg"]}
