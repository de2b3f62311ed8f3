"""Searches over several fields: halved as in `fedzero tune`, or by an optuna study; recipes and functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import fedzero
from fedzero.cli import app
from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.runs import searching, tuning

TABLE: dict[str, Any] = {
    "name": "bowl",
    "rounds": 32,
    "algorithm": {"kind": "decomfl", "rate": 1e-3, "directions": 5},
    "task": {"kind": "quadratic", "dimension": 10},
    "federation": {"clients": 3, "cohort": 3},
}
GRID = {"algorithm.rate": [1e-3, 0.01, 0.05], "algorithm.directions": [2, 8]}
X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
CLIENTS = [(part, (part[:, 0] > 0).long()) for part in X.chunk(2)]


def trained(rate: float, directions: int = 4, model: torch.nn.Module | None = None, **run: Any) -> fedzero.Run:
    torch.manual_seed(0)
    method = fedzero.DeComFL(rate=rate, directions=directions)
    return fedzero.train(model or torch.nn.Linear(3, 2), CLIENTS, loss=F.cross_entropy, method=method, **run)


def test_the_best_of_a_grid_is_the_best_of_full_runs(tmp_path: Path) -> None:
    found = fedzero.tune(TABLE, GRID, rounds=16, out=tmp_path / "t", progress=False)
    table = found.table
    assert set(table) == {*GRID, "rounds", "loss", "folder"} and len(table["loss"]) == 7, "six, and the recipe's own"
    assert found.best == {key: table[key][0] for key in GRID} == {"algorithm.rate": 0.05, "algorithm.directions": 8}
    full = fedzero.sweep(TABLE, GRID, rounds=16, out=tmp_path / "full", progress=False)
    losses = [tuning.judged(tuning.losses_of(run.folder)) for run in full]
    assert min(losses, key=lambda loss: loss or 0) == found.trials[0].loss
    assert found.trials[0].rounds == 16 > found.trials[-1].rounds
    again = fedzero.tune(TABLE, GRID, rounds=16, out=tmp_path / "t", progress=False)
    assert again.trials == found.trials, "the same call continues"
    assert "7 runs" in found.report(tmp_path / "page.html").read_text("utf-8")
    with pytest.raises(FedzeroError, match="another recipe"):
        fedzero.tune({**TABLE, "seed": 4}, GRID, rounds=16, out=tmp_path / "t", progress=False)


def test_nothing_is_recommended_that_is_worse_than_the_recipe(tmp_path: Path) -> None:
    good = {**TABLE, "algorithm": TABLE["algorithm"] | {"rate": 0.05}}
    worse = {"algorithm.rate": [1e-6, 1e-5], "algorithm.radius": [1e-3, 1e-2]}
    found = fedzero.tune(good, worse, rounds=8, out=tmp_path / "t", progress=False)
    assert found.best == {} and found.trials[0].setting == {}
    among = fedzero.tune(good, {"algorithm.rate": [0.05, 1e-6]}, rounds=8, out=tmp_path / "among", progress=False)
    assert among.best == {"algorithm.rate": 0.05} and len(among.trials) == 2, "one of them is the recipe"


def test_one_field_of_a_recipe_is_searched_as_by_the_command(tmp_path: Path) -> None:
    found = fedzero.tune(TABLE, {"algorithm.rate": (1e-2, 1e-1)}, trials=3, rounds=8, out=tmp_path, progress=False)
    assert set(found.best) == {"algorithm.rate"} and found.best["algorithm.rate"] > 1e-3
    assert {0.01, 0.032, 0.1} <= set(found.table["algorithm.rate"])


def test_a_function_of_a_setting_is_searched(tmp_path: Path) -> None:
    grid = {"rate": [1e-4, 0.1, 1.0], "directions": [2, 8]}
    found = fedzero.tune(trained, grid, rounds=8, out=tmp_path / "t", progress=False)
    assert found.best["rate"] in (0.1, 1.0) and {each.rounds for each in found.trials} == {4, 8}
    whole = trained(**found.best, rounds=8, evaluate_every=8, out=tmp_path / "whole", progress=False)
    assert fedzero.Run.open(found.trials[0].folder).summary.model_digest == whole.summary.model_digest
    assert fedzero.tune(trained, grid, rounds=8, out=tmp_path / "t", progress=False).trials == found.trials
    once = torch.nn.Linear(3, 2)
    with pytest.raises(FedzeroError, match="make the model anew"):
        fedzero.tune(lambda **given: trained(model=once, **given), grid, rounds=8, out=tmp_path / "o", progress=False)


def test_a_run_that_has_enough_rounds_is_not_continued(tmp_path: Path) -> None:
    recipe = recipes.decode({**TABLE, "rounds": 16})
    made = searching.make_recipe(recipe, fedzero.run(TABLE, out=tmp_path / "x", progress=False).environment)
    for limit in (8, 4, 8):
        trial = searching.play_until(made, {}, tmp_path / "run", tuning.StopAfter(limit), "run")
        assert trial.rounds == limit and len(tuning.losses_of(tmp_path / "run")) == 8


@pytest.mark.parametrize(
    ("search", "options", "words"),
    [
        ({}, {}, "has no field"),
        ({"rate": (0.1, 1.0)}, {"rounds": 8}, "take lists of values, or a study"),
        ({"rate": 0.1}, {"rounds": 8}, "give a list of values"),
        ({"rate": [0.1]}, {}, "rounds: say how many"),
        ({"rate": [0.1]}, {"rounds": 8, "web": True}, "web, exist and stop"),
        ({"rate": [0.1]}, {"rounds": 8, "set": {"seed": 1}}, "of recipes"),
        ({"rate": [0.1]}, {"rounds": 8, "study": "mine"}, "study is a str"),
    ],
)
def test_mistakes_are_said_in_a_sentence(tmp_path: Path, search: Any, options: Any, words: str) -> None:
    with pytest.raises(FedzeroError, match=words):
        fedzero.tune(trained, search, out=tmp_path / "t", progress=False, **options)


def test_the_command_searches_several_fields(tmp_path: Path) -> None:
    recipe = tmp_path / "bowl.toml"
    recipe.write_text(recipes.to_toml(recipes.decode(TABLE)))
    grid = [f"--set={key}={','.join(map(str, values))}" for key, values in GRID.items()]
    arguments = ["tune", str(recipe), *grid, "--rounds", "8", "--out", str(tmp_path / "t")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "best: --set algorithm.rate=0.05 --set algorithm.directions=8" in done.output
    assert len(list(tmp_path.glob("t/*/ledger.db"))) == 7
    with pytest.raises(FedzeroError, match="search one field"):
        CliRunner().invoke(app, [*arguments, "--from", "1", "--to", "2"], catch_exceptions=False)


# ---- optuna

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.ERROR)


def study(storage: str | None = None, **more: Any) -> Any:
    sampler = optuna.samplers.RandomSampler(seed=None if storage else 1)
    return optuna.create_study(study_name="s", storage=storage, sampler=sampler, load_if_exists=True, **more)


def test_a_study_proposes_and_prunes(tmp_path: Path) -> None:
    told = study(pruner=optuna.pruners.PercentilePruner(30.0, n_startup_trials=2, n_warmup_steps=2))
    fields = {"algorithm.rate": (1e-4, 0.1), "algorithm.directions": [2, 8]}
    found = fedzero.tune(TABLE, fields, rounds=10, trials=8, study=told, out=tmp_path / "t", progress=False)
    states = [trial.state.name for trial in told.trials]
    assert len(states) == 8 and {"COMPLETE", "PRUNED"} == set(states)
    assert found.best == told.best_params and found.trials[0].loss == told.best_value
    assert min(trial.rounds for trial in found.trials) < 10, "pruned runs are short"
    with pytest.raises(FedzeroError, match="'minimize'"):
        fedzero.tune(TABLE, fields, study=optuna.create_study(direction="maximize"), out=tmp_path / "m")


def test_a_study_that_was_killed_goes_on_in_its_storage(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    calls: list[float] = []

    def dies(rate: float, **run: Any) -> fedzero.Run:
        calls.append(rate)
        if len(calls) == 3:
            raise Killed
        return trained(rate, **run)

    storage = f"sqlite:///{tmp_path / 'study.db'}"
    search: dict[str, Any] = {"search": {"rate": (0.01, 1.0)}, "rounds": 4, "trials": 4, "progress": False}
    with pytest.raises(Killed):
        fedzero.tune(dies, **search, study=study(storage), out=tmp_path / "t")
    assert [trial.state.name for trial in study(storage).trials] == ["COMPLETE", "COMPLETE", "FAIL"]
    found = fedzero.tune(dies, **search, study=study(storage), out=tmp_path / "t")
    assert len(study(storage).trials) == 5 and len(found.trials) == 4, "those that ended count, in both calls"
    assert found.best == study(storage).best_params
