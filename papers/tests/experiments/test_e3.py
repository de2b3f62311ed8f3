"""E3: the paper's setting, and a small model for real; bytes do not depend on the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from toy import drive

from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.tasks.language import rows
from fedzero.tasks.language.texts import TEXTS
from fedzero.tasks.language.trainable import Full
from fedzero_papers.experiments import e3
from fedzero_papers.experiments.contract import Options
from fedzero_papers.experiments.e3 import E3, METHODS, TASKS, WEIGHTS


def jobs():
    stage = next(E3.plan(Options()))
    return {job.folder.removesuffix("/seed-1"): job.recipe for job in stage.jobs}


def test_the_setting_is_the_papers_but_for_what_recipes_say():
    found = jobs()
    assert set(found) == {f"{t}/{m}" for t in TASKS for m in METHODS} | {f"sst2/{name}" for name in WEIGHTS}
    for part, recipe in found.items():
        task, method = part.split("/")
        ours = recipes.load(f"e3-{task}")
        assert recipe.task.text == task
        assert recipe.task.compile == (method in METHODS)
        if method in WEIGHTS:
            assert (recipe.rounds, recipe.task.batch, recipe.algorithm.radius) == (1000, 32, 1e-3)
        else:
            assert (recipe.rounds, recipe.algorithm.radius) == (ours.rounds, ours.algorithm.radius)
        if method == "mezo":
            assert (recipe.federation.clients, recipe.task.batch) == (1, 2 * ours.task.batch)
            continue
        assert (recipe.federation.clients, recipe.federation.cohort) == (8, 2)
        assert recipe.task.partition.alpha == 1
        assert recipe.algorithm.local_steps == 1
        assert recipe.algorithm.directions == (5 if method.endswith("-5") else 10)
        assert recipe.task.dtype == ("float32" if method == "float32" else "bfloat16")
        assert recipe.task.rounding == ("nearest" if method == "nearest" else "stochastic")
        if method in METHODS:
            assert recipe.algorithm.difference == ours.algorithm.difference


def test_comparators_train_what_the_task_trains():
    """Layers and bounds on what clients send are the task's, whatever the method; how weights are kept is compared with
    all of them trained."""
    for part, recipe in jobs().items():
        ours = recipes.load(f"e3-{part.split('/')[0]}")
        if part.split("/")[1] in METHODS:
            assert (recipe.task.train, recipe.filters) == (ours.task.train, ours.filters)
            assert recipe.task.train != Full()
        else:
            assert (recipe.task.train, recipe.filters) == (Full(), ())


@pytest.mark.parametrize("method", ["fedzo-5", "mezo"])
def test_the_recipe_of_a_comparator_is_what_e3_runs_on_sst2(method):
    ours, theirs = recipes.load(f"e3-{method.removesuffix('-5')}"), jobs()[f"sst2/{method}"]
    points = [[round, pytest.approx(rate)] for round, rate in theirs.algorithm.rate.points]
    assert [list(point) for point in ours.algorithm.rate.points] == points
    theirs = structs.replace(theirs, task=structs.replace(theirs.task, compile=False))
    theirs = structs.replace(theirs, algorithm=structs.replace(theirs.algorithm, rate=ours.algorithm.rate))
    assert theirs == ours


def test_another_model_is_used_throughout():
    stage = next(E3.plan(Options(model="some/model", only="cb")))
    assert [job.recipe.task.model for job in stage.jobs] == ["some/model"] * 4


@pytest.mark.parametrize("task", TASKS)
def test_the_most_frequent_answers_are_those_of_the_rows(task, full_data):
    text = TEXTS[task]
    answers = Counter(text.answer(row) for row in rows.load(text.test, full_data("sst2"), text.unfold))
    assert round(100 * max(answers.values()) / answers.total(), 1) == e3.MAJORITY[task]


def test_a_small_one_for_real(tmp_path: Path, small_model, full_data):
    less = ["rounds=2", "evaluate_every=1", "task.training=64", "task.testing=16", "task.batch=2", "task.length=40"]
    tiny = replace(E3, quick=(*less, "federation.clients=3"))
    options = Options(quick=True, model=str(small_model("opt")))
    outcome, histories = drive(tiny.plan(options), tmp_path, full_data("sst2"))
    (table,), (tasks, weights) = outcome.tables, outcome.figures
    assert [row[1] for row in table.rows][:4] == list(METHODS.values())
    for row, run in zip(table.rows, histories.values(), strict=True):
        cells = dict(zip(table.columns, row, strict=True))
        assert cells["accuracy after, %"] == 100 * run.final_accuracy
        assert cells["queries"] > 0
    assert [panel.title for panel in tasks.panels] == ["SST-2"]
    assert len(weights.panels[0].lines) == 3
    assert len(outcome.findings) == 3
    ours, fedzo = histories["sst2/decomfl-10/seed-1"], histories["sst2/fedzo-5/seed-1"]
    assert e3.as_vectors(ours) == 2 * 4 * ours.parameters * 2 * 2 / 3
    assert 0 < ours.bytes < e3.as_vectors(ours) / 100
    assert fedzo.bytes > 0


def test_bytes_are_the_same_for_a_model_ten_times_larger(tmp_path: Path, small_model, quiet, full_data):
    """The promise is 1 %; it is none at all."""
    import small_language

    transformers = small_language.transformers
    large = tmp_path / "large"
    config = transformers.AutoConfig.from_pretrained(small_model("smollm"))
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 96, 256, 4
    config.head_dim = 24
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(large)
    small_language.words().save_pretrained(large)
    found = []
    for model in (small_model("smollm"), large):
        less = ["rounds=4", "task.training=64", "task.testing=16", "task.batch=2", "task.length=40"]
        recipe = recipes.load("e3-sst2", [*less, f'task.model="{model}"'])
        found.append(session.start(recipe, tmp_path / f"run-{len(found)}", Environment(full_data("sst2")), quiet))
    assert found[1].parameters > 10 * found[0].parameters
    for way in ("bytes_up_per_client", "bytes_down_per_client"):
        assert getattr(found[0], way) == getattr(found[1], way) > 0
