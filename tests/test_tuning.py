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
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session, tuning
from fedzero.runs.progress import Silent

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
    assert len(gaps) == 7, "six, and the recipe's own"
    assert found.best == min(gaps, key=gaps.__getitem__)
    assert found.trials[0].rounds == 40 > found.trials[-1].rounds


def test_by_default_the_search_begins_at_the_rate_of_auto(tmp_path: Path) -> None:
    found = tuning.tune(bowl(), tmp_path, Environment(), trials=4, rounds=40)
    rates = sorted(trial.value for trial in found.trials if isinstance(trial.value, float))
    assert any(trial.value == "auto" for trial in found.trials)
    assert rates[0] < 0.02 < rates[-1], "1/(tr H / P) is 0.045"


def test_methods_without_auto_begin_at_the_recipe_s_rate(tmp_path: Path) -> None:
    found = tuning.tune(bowl(kind="fedzo", rate=0.01), tmp_path, Environment(), trials=3, rounds=8)
    assert sorted(trial.value for trial in found.trials)[:3] == [0.001, 0.01, 0.1]


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
    assert [rounds_in(Path(t.folder)) for t in again.trials] == [t.rounds for t in whole.trials]
    assert {t.rounds for t in whole.trials} == {32, 16}
    for trial in again.trials:
        recorded.verified(Path(trial.folder), Environment())


def test_any_number_of_a_recipe_can_be_searched_for(tmp_path: Path) -> None:
    found = tuning.tune(bowl(rate=0.02), tmp_path, Environment(), key="algorithm.radius", trials=2, rounds=8)
    assert {1e-4, 1e-3, 1e-2} <= {trial.value for trial in found.trials}
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
    assert len(list(tmp_path.glob("t/*/ledger.db"))) >= 5, "auto, three values, and the recipe's own"


def losses(found: tuning.Tuned) -> dict[tuning.Value, float | None]:
    return {trial.value: trial.loss for trial in found.trials}


SLOW_START = {"kind": "piecewise", "points": [[0, 0.03], [80, 0.02]]}


@pytest.mark.parametrize("own", [0.03, "auto", SLOW_START])
@pytest.mark.parametrize("bounds", [(1e-6, 1e-5), (10.0, 1000.0), None])
def test_nothing_is_recommended_that_is_worse_than_what_the_recipe_has(
    tmp_path: Path, own: Any, bounds: tuple[float, float] | None
) -> None:
    found = tuning.tune(bowl(rate=own), tmp_path, Environment(), trials=3, rounds=16, bounds=bounds)
    assert found.own == (own if not isinstance(own, dict) else "recipe")
    (mine,) = [trial for trial in found.trials if trial.value == found.own]
    best = losses(found)[found.best]
    assert mine.rounds == 16 and mine.loss is not None and best is not None and best <= mine.loss
    if bounds is not None:
        assert found.best == found.own, "nothing within the bounds is any good"


@pytest.mark.parametrize("own", [1e-5, 1e3])
def test_the_recipe_s_value_stays_in_the_search_however_bad_it_begins(tmp_path: Path, own: float) -> None:
    found = tuning.tune(bowl(rate=own), tmp_path, Environment(), bounds=(0.01, 0.05), trials=6, rounds=32)
    (mine,) = [trial for trial in found.trials if trial.value == own]
    assert mine.rounds == 32 and found.best != own


def test_beyond_an_edge_further_values_are_tried_until_one_is_worse(tmp_path: Path) -> None:
    found = tuning.tune(bowl(rate=2e-3), tmp_path, Environment(), bounds=(3e-3, 1e-2), trials=2, rounds=32)
    tried = sorted(value for value in losses(found) if isinstance(value, float))
    assert tried[:4] == [2e-3, 3e-3, 1e-2, 3.3e-2] and len(tried) > 3
    assert isinstance(found.best, float) and 1e-2 < found.best < tried[-1]
    assert found.note == "runs of 32 rounds prefer rates that are too large for 80"
    assert found.trials[0].value == found.best


@pytest.mark.parametrize(
    ("bounds", "which"),
    [((1e-7, 1e-6), "the largest that was tried; a larger one may be better: give it with --to"),
     ((1e7, 1e8), "the smallest that was tried; a smaller one may be better: give it with --from")],
)  # fmt: skip
def test_a_search_that_found_no_end_of_what_is_better_says_so(
    tmp_path: Path, bounds: tuple[float, float], which: str
) -> None:
    recipe = bowl(rate=bounds[0], optimizer={"kind": "sign"})
    found = tuning.tune(recipe, tmp_path, Environment(), bounds=bounds, trials=2, rounds=8)
    assert found.note.startswith(f"the best value is {which}")
    assert len(found.trials) == 2 + tuning.WIDENINGS


def test_a_value_that_the_recipe_cannot_have_ends_the_widening(tmp_path: Path) -> None:
    recipe = bowl(rate=0.12, optimizer={"kind": "momentum", "beta": 0.5})
    found = tuning.tune(
        recipe, tmp_path, Environment(), key="algorithm.optimizer.beta", bounds=(0.5, 0.9), trials=2, rounds=16
    )
    assert found.best == 0.9 and "the largest that was tried" in found.note


def test_a_schedule_is_where_a_search_begins_and_what_it_must_beat(tmp_path: Path) -> None:
    recipe = bowl(rate=SLOW_START, optimizer={"kind": "momentum"})
    found = tuning.tune(recipe, tmp_path, Environment(), trials=3, rounds=16)
    assert {0.003, 0.03, 0.3, "recipe"} <= set(losses(found))
    assert ("compared over the first 16 of its 80 rounds only" in found.note) == (found.best != "recipe")
    worse = bowl(rate={"kind": "piecewise", "points": [[0, 1e-6], [80, 0.02]]})
    found = tuning.tune(worse, tmp_path / "worse", Environment(), trials=2, rounds=16, bounds=(0.01, 0.03))
    assert found.best != "recipe" and "compared over the first 16 of its 80 rounds only" in found.note


def test_the_command_says_when_there_is_nothing_to_change(tmp_path: Path) -> None:
    recipe = tmp_path / "bowl.toml"
    recipe.write_text(TOML.format(kind="decomfl").replace("rate = 1e-3", "rate = 0.03"))
    arguments = ["tune", str(recipe), "--trials", "2", "--rounds", "8", "--out", str(tmp_path / "t")]
    done = CliRunner().invoke(app, [*arguments, "--from", "1e-6", "--to", "1e-5"])
    assert done.exit_code == 0, done.output
    assert "best: the recipe's own algorithm.rate\n" in done.output
    assert "note: runs of 8 rounds prefer rates that are too large for 80\n" in done.output
