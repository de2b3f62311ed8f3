"""Runs that end early because of their losses, and runs that diverge."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedzero.ledger import Ledger
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.outline import EvaluationHistory
from fedzero.ledger.records import Evaluation
from fedzero.ledger.replay import LedgerView, read
from fedzero.oracles import Metrics
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.stopping import Stop
from fedzero.runs import session
from fedzero.runs.progress import Silent

HERE = Environment()


def after(*losses: float) -> EvaluationHistory:
    evaluations = EvaluationHistory()
    for n, loss in enumerate(losses):
        evaluations.note(Evaluation(2 * n, b"", Metrics(loss)))
    return evaluations


def view_of(folder: Path) -> LedgerView:
    ledger = Ledger.open(folder / LEDGER)
    try:
        return read(ledger)
    finally:
        ledger.close()


def test_above() -> None:
    stop = Stop(above=3.0)
    assert [bool(stop.reason(after(*losses))) for losses in ((), (3.0,), (1.0, 3.01), (5.0, 2.0))] == [0, 0, 1, 0]
    assert "after round 2" in stop.reason(after(1.0, math.nan))
    assert "stop.above = 3" in stop.reason(after(1.0, math.inf))


@pytest.mark.parametrize(
    ("losses", "ends"),
    [
        ((), False),
        ((2.0, 2.0), False),
        ((2.0, 2.0, 2.0), True),
        ((2.0, 3.0, 1.9), False),
        ((2.0, 1.0, 1.5, 1.2), True),
        ((2.0, 1.0, math.nan, math.nan), True),
        ((math.nan, math.nan), False),
        ((math.nan, math.nan, math.nan), True),
        ((math.nan, math.nan, 1.0), False),
    ],
)
def test_patience_of_two(losses: tuple[float, ...], ends: bool) -> None:
    assert bool(Stop(patience=2).reason(after(*losses))) == ends
    assert Stop().reason(after(*losses)) == ""


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ((), False),
        ((2.3, 22.0), False),
        ((2.3, 24.0), True),
        ((2.3, 1e9, 2.0), False),
        ((2.3, math.nan), True),
        ((-5.0, 30.0), False),
        ((-5.0, 50.0), True),
    ],
)
def test_what_counts_as_diverged(losses: tuple[float, ...], diverged: bool) -> None:
    assert Stop().diverged(after(*losses)) == diverged
    assert Stop(above=1.5).diverged(after(2.0, 1.6))


def test_a_run_that_diverges_is_named_while_it_does_and_afterwards(fedzero, tiny, tmp_path: Path) -> None:
    outcome = fedzero("run", tiny, "--out", tmp_path / "run", "--set", "algorithm.rate=1e30")
    assert outcome.code == 0
    assert outcome.err.count("the run diverges") == 1 and "algorithm.rate" in outcome.err
    assert "diverged" in outcome.out
    outcome = fedzero("run", tiny, "--out", tmp_path / "run", "--overwrite", "--json", "--set", "algorithm.rate=1e30")
    assert (outcome.json["diverged"], outcome.json["complete"], outcome.json["reason"]) == (True, True, "")
    good = fedzero("run", tiny, "--out", tmp_path / "good", "--json")
    assert good.json["diverged"] is False
    assert "the run diverges" not in good.err


@pytest.mark.parametrize("stop", ["{above=1e6}", "{patience=2}"])
def test_the_command_ends_early(fedzero, tiny, tmp_path: Path, stop: str) -> None:
    sets = ["--set", "algorithm.rate=1e10", "--set", f"stop={stop}"]
    outcome = fedzero("run", tiny, "--out", tmp_path / "run", "--json", *sets)
    assert outcome.code == 0
    assert 0 < outcome.json["rounds"] < 12
    assert "stop." in outcome.json["reason"]
    assert fedzero("verify", tmp_path / "run").code == 0
    again = fedzero("resume", tmp_path / "run", "--json")
    assert again.json["ledger_head"] == outcome.json["ledger_head"]


@pytest.mark.parametrize("wrong", ["{below=1}", "{patience=0}", "{above='much'}", "{above=inf}", "3"])
def test_a_stop_that_is_none(fedzero, tiny, tmp_path: Path, wrong: str) -> None:
    fedzero("run", tiny, "--out", tmp_path / "run", "--set", f"stop={wrong}").refused("stop")


class Pulled(Exception):
    pass


class Plug(Silent):
    """Ends the process's run at its n-th event, before or after an evaluation as it comes."""

    def __init__(self, events: int):
        self.left = events

    def round(self, record: object) -> None:
        self._event()

    def evaluation(self, record: object) -> None:
        self._event()

    def _event(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Pulled


@pytest.mark.parametrize("stop", ["{above=1e6}", "{patience=2}"])
def test_a_resumed_run_ends_in_the_same_round(tiny, tmp_path: Path, quiet, stop: str) -> None:
    recipe = recipes.load(tiny, ["algorithm.rate=1e4", f"stop={stop}", "algorithm.local_steps=1"])
    straight = session.start(recipe, tmp_path / "straight", HERE, quiet)
    events = len(quiet.seen)
    assert straight.reason and straight.rounds < 12
    for count in range(1, events + 1):
        folder = tmp_path / str(count)
        with pytest.raises(Pulled):
            session.start(recipe, folder, HERE, Plug(count))
        assert view_of(folder).end is None
        resumed = session.resume(folder, HERE, Silent())
        assert (resumed.ledger_head, resumed.reason) == (straight.ledger_head, straight.reason)


def test_a_recipe_without_stop_is_that_of_an_old_ledger() -> None:
    table = b'{"name":"x","rounds":3,"algorithm":{"kind":"mezo","rate":0.1},"task":{"kind":"quadratic"},'
    old = recipes.from_canonical(table + b'"federation":{"clients":1,"cohort":1}}')
    assert old.stop == Stop()
    assert recipes.from_canonical(recipes.canonical(old)) == old
    assert "stop" not in recipes.to_toml(old)
