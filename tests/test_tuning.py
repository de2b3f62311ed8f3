"""`fedzero tune`: finds the rate that a full run likes best, and goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedzero.cli import app
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.store import Ledger
from fedzero.runs import recipe as recipes
from fedzero.runs import session, tuning
from fedzero.runs.progress import Silent
from fedzero.runs.session import Environment

TOML = """
name = "bowl"
rounds = 80
[algorithm]
kind = "{kind}"
rate = 1e-3
directions = 5
[task]
kind = "quadratic"
dimension = 20
[federation]
clients = 3
cohort = 3
"""


def bowl(**algorithm: Any) -> recipes.Recipe:
    table: dict[str, Any] = {
        "name": "bowl",
        "rounds": 80,
        "algorithm": {"kind": "decomfl", "rate": 1e-3, "directions": 5} | algorithm,
        "task": {"kind": "quadratic", "dimension": 20},
        "federation": {"clients": 3, "cohort": 3},
    }
    return recipes.decode(table)


def rounds_in(folder: Path) -> int:
    ledger = Ledger.open(folder / "ledger.db")
    try:
        return len(replay.read(ledger).rounds)
    finally:
        ledger.close()


def test_the_rate_found_is_the_best_of_full_runs(tmp_path: Path) -> None:
    found = tuning.tune(bowl(), tmp_path / "tune", Environment(), bounds=(1e-4, 1.0), trials=6, rounds=40)

    def gap(rate: float) -> float:
        recipe = tuning.varied(bowl(), "algorithm.rate", rate)
        loss = session.start(recipe, tmp_path / f"full-{rate}", Environment(), Silent()).final_loss
        return float("inf") if loss is None else loss

    gaps = {trial.value: gap(trial.value) for trial in found.trials if isinstance(trial.value, float)}
    assert len(gaps) == 6
    assert found.best == min(gaps, key=gaps.__getitem__)
    assert found.trials[0].rounds == 40 > found.trials[-1].rounds


def test_by_default_the_search_begins_at_the_rate_of_auto(tmp_path: Path) -> None:
    found = tuning.tune(bowl(), tmp_path, Environment(), trials=4, rounds=40)
    rates = sorted(trial.value for trial in found.trials if isinstance(trial.value, float))
    assert any(trial.value == "auto" for trial in found.trials)
    assert rates[0] < 0.02 < rates[-1], "1/(tr H / P) is 0.045"


def test_methods_without_auto_begin_at_the_recipe_s_rate(tmp_path: Path) -> None:
    found = tuning.tune(bowl(kind="fedzo", rate=0.01), tmp_path, Environment(), trials=3, rounds=8)
    assert sorted(trial.value for trial in found.trials) == [0.001, 0.01, 0.1]


def test_a_search_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    told: list[tuning.Trial] = []

    def dies(trial: tuning.Trial) -> None:
        told.append(trial)
        if len(told) == 6:
            raise Killed

    search: dict[str, Any] = {"bounds": (1e-3, 1e-1), "trials": 4, "rounds": 32}
    whole = tuning.tune(bowl(), tmp_path / "whole", Environment(), **search)
    with pytest.raises(Killed):
        tuning.tune(bowl(), tmp_path / "cut", Environment(), told=dies, **search)
    written = {path: path.read_bytes() for path in tmp_path.glob("cut/*/model.safetensors")}
    again = tuning.tune(bowl(), tmp_path / "cut", Environment(), **search)
    assert [(t.value, t.rounds, t.loss) for t in again.trials] == [(t.value, t.rounds, t.loss) for t in whole.trials]
    assert all(path.read_bytes() == before for path, before in written.items())
    assert [rounds_in(Path(t.folder)) for t in again.trials] == [32, 32, 32, 16]
    for trial in again.trials:
        session.verified(Path(trial.folder), Environment())


def test_any_number_of_a_recipe_can_be_searched_for(tmp_path: Path) -> None:
    found = tuning.tune(bowl(rate=0.02), tmp_path, Environment(), key="algorithm.radius", trials=2, rounds=8)
    assert sorted(trial.value for trial in found.trials) == [1e-4, 1e-2]
    with pytest.raises(FedzeroError, match="no positive number there"):
        tuning.tune(bowl(), tmp_path, Environment(), key="algorithm.optimizer")


def test_a_rate_that_diverges_is_never_best(tmp_path: Path) -> None:
    found = tuning.tune(bowl(), tmp_path, Environment(), bounds=(1e-2, 1e4), trials=3, rounds=16)
    assert found.best == 0.01


def test_the_command(tmp_path: Path) -> None:
    recipe = tmp_path / "bowl.toml"
    recipe.write_text(TOML.format(kind="decomfl"))
    arguments = ["tune", str(recipe), "--trials", "3", "--rounds", "8", "--out", str(tmp_path / "t")]
    arguments += ["--set", "algorithm.directions=4"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "best: --set algorithm.rate=" in done.output
    assert len(list(tmp_path.glob("t/*/ledger.db"))) == 4
