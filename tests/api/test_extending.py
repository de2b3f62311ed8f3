"""Runs that grow, from Python and from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedzero
from fedzero.errors import FedzeroError, Invalid
from fedzero.ledger.folder import MODEL

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
PAIR = (X, X[:, :3].argmax(1))
RECIPE = {
    "name": "table",
    "rounds": 4,
    "algorithm": {"kind": "decomfl", "rate": 0.01, "optimizer": {"kind": "momentum"}},
    "task": {"kind": "quadratic", "dimension": 4},
    "federation": {"clients": 4, "cohort": 2},
}


def train(out: Path, **options: Any) -> fedzero.Run:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return fedzero.train(model, [PAIR] * 3, loss=F.cross_entropy, cohort=2, progress=False, out=out, **options)


def model_of(folder: Path) -> str:
    return fedzero.Run.open(folder).summary.model_sha256


def test_more_rounds_of_the_same_call_extend_the_run(tmp_path: Path) -> None:
    """Seed and evaluations, of which the second call says nothing, are those of the run."""
    long = train(tmp_path / "long", rounds=12, seed=7, evaluate_every=3)
    train(tmp_path / "grown", rounds=6, seed=7, evaluate_every=3)
    grown = train(tmp_path / "grown", rounds=12)
    assert grown.summary.model_sha256 == long.summary.model_sha256
    assert grown.history["loss"].tolist() == long.history["loss"].tolist()
    assert (grown.recipe.rounds, grown.recipe.seed, grown.recipe.evaluate_every) == (12, 7, 3)
    assert all(torch.equal(a, b) for a, b in zip(grown.model.parameters(), long.model.parameters(), strict=True))
    grown.verify()
    again = train(tmp_path / "grown")
    assert again.summary.ledger_head == grown.summary.ledger_head, "a call that says nothing finds the run finished"


def test_a_default_that_follows_from_the_rounds_does_not_tell_runs_apart(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=50)
    run = train(tmp_path / "run", rounds=75)
    assert (run.recipe.rounds, run.recipe.evaluate_every) == (75, 2)
    assert run.summary.complete


def test_fewer_rounds_and_other_settings_are_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=4, seed=1)
    with pytest.raises(FedzeroError, match="has made 4 rounds, more than rounds = 3"):
        train(tmp_path / "run", rounds=3)
    for other in ({"seed": 2}, {"evaluate_every": 3}, {"batch": 9}, {"rounds": 8, "method": "mezo"}):
        with pytest.raises(FedzeroError):
            train(tmp_path / "run", **other)
    assert fedzero.Run.open(tmp_path / "run").summary.rounds == 4


def test_a_run_is_extended_by_resume(tmp_path: Path) -> None:
    fedzero.run(RECIPE, out=tmp_path / "long", rounds=9, progress=False)
    run = fedzero.run(RECIPE, out=tmp_path / "grown", progress=False)
    run.resume(progress=False, rounds=9, evaluate_every=3, stop={"patience": 50})
    assert run.summary.model_sha256 == model_of(tmp_path / "long")
    assert (run.recipe.rounds, run.recipe.evaluate_every, run.recipe.stop.patience) == (9, 3, 50)
    run.verify()
    for wrong in ({"rounds": 0}, {"rounds": "9"}, {"stop": {"patient": 3}}):
        with pytest.raises(FedzeroError):
            run.resume(progress=False, **wrong)
    assert "9" in repr(run)


def test_the_run_that_trained_a_module_goes_on_with_it(tmp_path: Path) -> None:
    """The module has the trained parameters, and the run begins with those before; in the end it has the new ones."""
    long, run = train(tmp_path / "long", rounds=9), train(tmp_path / "grown", rounds=4)
    module = run.model
    for rounds in (None, 6, 9):
        run.resume(progress=False, rounds=rounds)
    assert run.model is module and run.summary.rounds == 9
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), long.model.parameters(), strict=True))
    assert run.state_dict().keys() == module.state_dict().keys()
    run.verify()


def test_the_recipe_of_a_run_that_was_extended_finds_it_again(tmp_path: Path) -> None:
    """It says 4 rounds, as it did when the run began."""
    fedzero.run(RECIPE, out=tmp_path / "run", seed=5, progress=False)
    grown = fedzero.run(RECIPE | {"rounds": 7}, out=tmp_path / "run", progress=False)
    assert (grown.summary.rounds, grown.recipe.seed) == (7, 5)
    assert fedzero.run(RECIPE, out=tmp_path / "run", progress=False).summary.rounds == 7
    with pytest.raises(FedzeroError, match="has made 7 rounds, more than rounds = 4"):
        fedzero.run(RECIPE, out=tmp_path / "run", rounds=4, progress=False)


def test_what_to_do_with_a_run_that_is_there(tmp_path: Path) -> None:
    first = train(tmp_path / "run", rounds=3, seed=1).summary.ledger_head
    for refused in ({"exist": "error"}, {"resume": False}):
        with pytest.raises(FedzeroError, match="already holds a run"):
            train(tmp_path / "run", rounds=3, **refused)
    for resumed in ({}, {"exist": "resume"}, {"resume": True}):
        assert train(tmp_path / "run", **resumed).summary.ledger_head == first
    replaced = train(tmp_path / "run", rounds=2, exist="overwrite")
    assert (replaced.summary.rounds, replaced.recipe.seed) == (2, 0)
    for wrong in ({"exist": "replace"}, {"exist": "resume", "resume": False}):
        with pytest.raises(Invalid):
            train(tmp_path / "run", **wrong)


def test_a_search_is_extended(tmp_path: Path) -> None:
    def search(folder: str, **options: Any) -> fedzero.Result:
        return fedzero.minimise(
            [lambda x: float(((x - 0.3) ** 2).sum())], [(-1, 1)] * 3, out=tmp_path / folder, **options
        )

    long, short = search("long", rounds=5), search("grown", rounds=3)
    grown = search("grown", rounds=5)
    assert (short.rounds, grown.history, grown.queries) == (3, long.history, long.queries)
    assert (grown.x.tolist(), grown.value, grown.complete) == (long.x.tolist(), long.value, True)
    fedzero.Run.open(tmp_path / "grown").verify()


def test_an_extension_pays_for_no_more_than_the_budget(tmp_path: Path) -> None:
    """Of a budget and more rounds another method would follow, with fewer points a round: the run keeps its own, which
    has spent everything."""

    def search(rounds: int) -> fedzero.Result:
        return fedzero.minimise([lambda x: float(x @ x)], [(-1, 1)] * 3, out=tmp_path, budget=60, rounds=rounds)

    short, run = search(3), fedzero.Run.open(tmp_path)
    grown = search(5)
    assert (grown.queries, grown.rounds) == (short.queries, 3) and "can pay for round 3" in run.summary.reason
    assert run.recipe.rounds == 5
    run.verify()


def test_ask_and_tell_goes_on(tmp_path: Path) -> None:
    def play(rounds: int, folder: str) -> int:
        optimiser, told = fedzero.Optimiser([(-1, 1)] * 2, out=tmp_path / folder, rounds=rounds), 0
        while not optimiser.finished:
            for point in optimiser.ask():
                optimiser.tell(point, float(point.x @ point.x))
                told += 1
        return told

    play(2, "grown")
    assert play(2, "grown") == 0
    assert play(4, "grown") > 0
    assert fedzero.Run.open(tmp_path / "grown").summary.rounds == 4
    assert (tmp_path / "grown" / MODEL).exists()


def test_the_command_line(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    call, out, long = request.getfixturevalue("fedzero"), tmp_path / "run", tmp_path / "long"
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'name = "table"\nrounds = 4\n[algorithm]\nkind = "decomfl"\nrate = 0.01\n[task]\nkind = "quadratic"\n'
        "dimension = 4\n[federation]\nclients = 4\ncohort = 2\n"
    )

    def done(*arguments: Any) -> None:
        found = call(*arguments)
        assert found.code == 0, found.err

    done("run", recipe, "--out", long, "--rounds", 9)
    done("run", recipe, "--out", out)
    call("run", recipe, "--out", out).refused("already holds a run")
    done("resume", out, "--rounds", 6, "--evaluate-every", 2, "--stop", "patience=40")
    assert fedzero.Run.open(out).recipe.stop.patience == 40
    done("resume", out, "--rounds", 7, "--stop", "none")
    assert fedzero.Run.open(out).recipe.stop.patience is None
    done("run", recipe, "--out", out, "--exist", "resume", "--rounds", 9)
    assert model_of(out) == model_of(long)
    done("verify", out)
    call("resume", out, "--rounds", 5).refused("more than rounds = 5")
    call("resume", out, "--stop", "patient=5").refused("patient")
    call("run", recipe, "--out", out, "--exist", "replace").refused("--exist replace")
    done("run", recipe, "--out", out, "--exist", "overwrite", "--seed", 5)
    done("run", recipe, "--out", out, "--exist", "resume", "--rounds", 4)
    assert fedzero.Run.open(out).recipe.seed == 5
    call("run", recipe, "--out", out, "--exist", "resume", "--seed", 6).refused("seed = 5 there and 6 here")
    assert fedzero.Run.open(out).summary.rounds == 4
