"""E2: the paper's setting, and a small one for real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from toy import drive

from fedzero.model.schedules import count_at
from fedzero_papers.experiments.contract import Options
from fedzero_papers.experiments.e2 import E2, METHODS, QUICK


def test_the_setting_is_the_papers():
    stage = next(E2.plan(Options()))
    assert [job.folder for job in stage.jobs] == [f"{method}/seed-{s}" for method in METHODS for s in (1, 2, 3)]
    recipes = {job.folder.split("/")[0]: job.recipe for job in stage.jobs}
    for recipe in recipes.values():
        assert (recipe.federation.clients, recipe.federation.cohort) == (100, 10)
        assert (recipe.task.full, recipe.task.model) == (True, "large")
        assert 2500 <= recipe.rounds <= 3000
    directions = recipes["decomfl"].algorithm.directions
    assert [count_at(directions, r) for r in (0, 499, 500, 999, 1000, 1999, 2000)] == [25, 25, 50, 50, 100, 100, 200]
    filters = {name: [type(f).__name__ for f in recipe.filters] for name, recipe in recipes.items()}
    assert filters == {"decomfl": [], "fedavg": [], "fedcom": ["Quantise"], "topk": ["TopK"], "topk-feedback": ["TopK"]}
    assert [recipes[name].filters[0].feedback for name in ("topk", "topk-feedback")] == [False, True]


def test_a_small_one_for_real(tmp_path: Path):
    less = (*QUICK.overrides, "rounds=2", "federation.cohort=2", "evaluate_every=1")
    tiny = replace(QUICK, overrides=less, decomfl=("algorithm.directions=2",))
    outcome, histories = drive(replace(E2, quick=tiny).plan(Options(quick=True)), tmp_path)
    (table,), (figure,) = outcome.tables, outcome.figures
    assert [row[0] for row in table.rows] == list(METHODS.values())
    by_rounds, by_numbers = figure.panels
    for row, method, loss, accuracy in zip(table.rows, METHODS, by_rounds.lines, by_numbers.lines, strict=True):
        run = histories[f"{method}/seed-1"]
        cells = dict(zip(table.columns, row, strict=True))
        assert (cells["test loss"], cells["test accuracy (%)"]) == (run.final_loss, 100 * run.final_accuracy)
        assert cells["numbers / client"] == run.bytes / 4
        assert (loss.x, loss.y[-1]) == ((0.0, 1.0, 2.0), run.final_loss)
        assert accuracy.x[-1] == run.bytes / 4
        assert accuracy.y[-1] == 100 * run.final_accuracy
    numbers = {method: histories[f"{method}/seed-1"].bytes_up for method in METHODS}
    assert numbers["decomfl"] < numbers["topk"] < numbers["fedcom"] < numbers["fedavg"]
    assert len(outcome.findings) == len(METHODS)


@pytest.mark.parametrize(("only", "expected"), [("top*", ["topk", "topk-feedback"]), ("decomfl", ["decomfl"])])
def test_parts(only, expected):
    stage = next(E2.plan(Options(quick=True, repetitions=2, only=only)))
    assert [job.folder for job in stage.jobs] == [f"{m}/seed-{seed}" for m in expected for seed in (1, 2)]
