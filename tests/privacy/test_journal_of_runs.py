"""The journal of runs of one process: every round is reserved before it is asked, by data set, over runs and kills."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import journal_child
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from journal_child import RECIPE
from typer.testing import CliRunner

import fedzero
from entropy import given_entropy
from fedzero.cli import app
from fedzero.engines.local import LocalClients
from fedzero.errors import FedzeroError
from fedzero.ledger.answers import FILE as ANSWERS
from fedzero.ledger.store import Ledger
from fedzero.privacy import renyi
from fedzero.runs.spending.budget import FILE, Budget, Spent
from fedzero.runs.spending.charges import OTHERS, Policy
from fedzero.runs.spending.here import NOTE, POLICY, VARIABLE

STEPS = 35
"""Writes that last, at which a process can be killed: at least so many."""


def run(folder: Path, journal: Path | None, **changes: Any) -> fedzero.Run:
    options = {name: changes.pop(name) for name in ("callbacks", "exist") if name in changes}
    return fedzero.run(RECIPE, set=changes, out=folder, journal=journal, progress=False, **options)


def spent(journal: Path) -> list[Spent]:
    budget = Budget(journal, Policy())
    try:
        return budget.totals()
    finally:
        budget.close()


def attempts(journal: Path) -> int:
    return sum(each.attempts for each in spent(journal))


class Pauses(fedzero.Callback):
    """Ends the call after a round."""

    def __init__(self, after: int):
        self.after = after

    def round(self, result: Any) -> Any:
        return fedzero.Pause() if result.rounds == self.after else None


def by_hand(*rounds: tuple[int, float], q: float = 0.5) -> float:
    """ε of so many rounds with these σ, added up at the order that is best for the first, which has half of δ, and at
    others, which share the other half."""
    first = renyi.subsampled(renyi.gaussian(rounds[0][1]), q, 1)
    order: int = max(renyi.WHOLE, key=lambda order: (8.0 - renyi.converted(order, 1e-6)) / first(order))
    others = set(OTHERS) - {order}
    deltas = dict.fromkeys(others, 1e-6 / 2 / len(others)) | {order: 1e-6 / 2}
    curves = [(count, renyi.subsampled(renyi.gaussian(sigma), q, 1)) for count, sigma in rounds]
    return min(sum(n * step(a) for n, step in curves) + renyi.converted(a, delta) for a, delta in deltas.items())


def least(rounds: int) -> str:
    """A policy into which so many rounds fit with σ = 2, and no more."""
    step = renyi.subsampled(renyi.gaussian(2.0), 0.5, 1)
    found = min(rounds * step(order) + renyi.converted(order, 1e-6 / 2) for order in renyi.WHOLE)
    return f"epsilon = {found + 1e-3}\ndelta = 1e-6\n"


def test_runs_sweeps_and_warm_starts_on_one_data_set_add_up(tmp_path: Path, monkeypatch: Any) -> None:
    """Another recipe and another base are further charges; a repeated call is none."""
    journal = tmp_path / "journal"
    first = run(tmp_path / "one", journal)
    run(tmp_path / "one", journal)
    run(tmp_path / "warm", journal, base=str(first.folder / "model.safetensors"), rounds=3)
    monkeypatch.setenv(VARIABLE, str(journal))
    fedzero.sweep(RECIPE, seeds=[1, 2], set={"privacy.sigma": 4.0}, out=tmp_path / "sweep", progress=False)
    (found,) = spent(journal)
    assert (found.attempts, found.runs, found.unit) == (4 + 3 + 2 * 4, 4, "client")
    assert found.epsilon == pytest.approx(by_hand((7, 2.0), (8, 4.0)))
    said = CliRunner().invoke(app, ["privacy", "--journal", str(journal)]).output
    assert f"ε = {found.epsilon:.4g} no limit" in said and "15 rounds of 4 runs" in " ".join(said.split())


def test_a_search_that_cannot_judge_its_trials_has_paid_for_those_it_made(tmp_path: Path) -> None:
    def made(rate: float, **options: Any) -> fedzero.Run:
        return fedzero.run(RECIPE, set={"algorithm.rate": rate}, **options)

    options: Any = {"rounds": 4, "out": tmp_path / "trials", "journal": tmp_path / "journal", "progress": False}
    with pytest.raises(FedzeroError, match="no training losses to judge trials by"):
        fedzero.tune(made, {"rate": [0.01, 0.02]}, **options)
    assert attempts(tmp_path / "journal") == Ledger.open(tmp_path / "trials" / "rate=0.01" / "ledger.db").done > 0
    with pytest.raises(FedzeroError, match="no training losses to judge trials by"):
        fedzero.tune(RECIPE, {"algorithm.rate": [0.01, 0.02]}, **options | {"out": tmp_path / "recipe"})
    assert spent(tmp_path / "journal")[0].runs == 1, "of a recipe it is known before the first trial"


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    (journal / POLICY).write_text(least(9))
    run(tmp_path / "one", journal)
    run(tmp_path / "two", journal)
    with pytest.raises(FedzeroError, match=r"budget.toml has epsilon = .* with 4 more of these rounds .* allow more"):
        run(tmp_path / "three", journal)
    assert not (tmp_path / "three" / "ledger.db").exists() and attempts(journal) == 8
    with pytest.raises(FedzeroError, match="with 2 more of these rounds"):
        run(tmp_path / "two", journal, rounds=6)
    (journal / POLICY).write_text('unit = "example"\nrequire = true\n')
    with pytest.raises(FedzeroError, match="unit = 'example', and the recipe has 'client'"):
        run(tmp_path / "four", journal)
    plain = {name: value for name, value in RECIPE.items() if name != "privacy"}
    with pytest.raises(FedzeroError, match=r"budget.toml has require = true, and the recipe has no \[privacy\]"):
        fedzero.run(plain, out=tmp_path / "plain", journal=journal, progress=False)
    (journal / POLICY).write_text("epsilom = 2.0\n")
    with pytest.raises(FedzeroError, match="epsilom"):
        run(tmp_path / "five", journal)


def test_a_round_is_reserved_before_anybody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send, seen = LocalClients.send, []

    def asked(self: Any, asked: int, *message: Any) -> None:
        seen.append((asked, attempts(tmp_path / "journal")))
        send(self, asked, *message)

    monkeypatch.setattr(LocalClients, "send", asked)
    with given_entropy(coins=b"one"):  # of which somebody takes part in every round
        run(tmp_path / "run", tmp_path / "journal")
    assert [found for _, found in seen] == [round + 1 for round, _ in seen] and len(seen) == 4


def test_a_run_goes_on_in_the_journal_in_which_it_began(tmp_path: Path) -> None:
    journal, folder = tmp_path / "journal", tmp_path / "run"
    run(folder, journal, callbacks=[Pauses(2)])
    assert attempts(journal) == 2
    with pytest.raises(FedzeroError, match="is counted in the journal"):
        run(folder, tmp_path / "other")
    shutil.copytree(journal, tmp_path / "old")
    run(folder, None, callbacks=[Pauses(3)])
    assert attempts(journal) == 3
    shutil.move(journal, tmp_path / "away")
    with pytest.raises(FedzeroError, match="which is not there"):
        run(folder, None)
    shutil.move(tmp_path / "old", journal)
    with pytest.raises(FedzeroError, match="is an older copy: it has no entry of round 2"):
        run(folder, None)
    shutil.rmtree(journal)
    shutil.move(tmp_path / "away", journal)
    assert run(folder, None).summary.complete
    assert (attempts(journal), spent(journal)[0].runs) == (4, 1)
    run(folder, None, exist="overwrite")
    assert attempts(journal) == 4, "another run, which nobody counts"
    assert not (folder / NOTE).exists()


def test_a_run_that_is_counted_later_is_counted_whole(tmp_path: Path) -> None:
    journal, folder = tmp_path / "journal", tmp_path / "run"
    run(folder, None, callbacks=[Pauses(3)])
    journal.mkdir()
    (journal / POLICY).write_text(least(3))
    with pytest.raises(FedzeroError, match="with 4 more of these rounds"):
        run(folder, journal)
    assert not spent(journal) and not (folder / NOTE).exists()
    (journal / POLICY).unlink()
    run(folder, journal, callbacks=[Pauses(4)])
    assert attempts(journal) == 4
    assert fedzero.Run.open(folder).resume(progress=False, rounds=5).summary.rounds == 5
    assert (attempts(journal), spent(journal)[0].runs) == (5, 1)


def test_two_runs_of_one_recipe_and_lost_answers_pay_again(tmp_path: Path) -> None:
    """The random number of a round is with the answers: without them a round is another attempt."""
    journal = tmp_path / "journal"
    for name in ("one", "two"):
        run(tmp_path / name, journal, callbacks=[Pauses(2)])
    assert (attempts(journal), spent(journal)[0].runs) == (4, 2)
    budget = Budget(journal, Policy())
    budget.close()
    for path in (tmp_path / "one").glob(ANSWERS + "*"):
        path.unlink()
    run(tmp_path / "one", None)
    assert attempts(journal) == 6, "the rounds on the ledger are not asked again"


def test_data_sets_are_told_apart_by_their_rows(tmp_path: Path) -> None:
    """The same rows, dealt out in another way, are one data set; the same digits, for another model, as well."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(40, 3)).astype(np.float32), generator.integers(0, 2, 40)
    journal = tmp_path / "journal"
    privacy = {"sigma": 2.0, "unit": "example", "clip": 1.0, "population": 40, "probability": 0.5}
    for number, (rows, dealt) in enumerate([(40, 2), (40, 4), (39, 2)]):
        fedzero.train(
            torch.nn.Linear(3, 2),
            (x[:rows], y[:rows]),
            partition="iid",
            count=dealt,
            loss=F.cross_entropy,
            test=(x, y),
            method={"kind": "decomfl", "rate": 0.01, "directions": 2},
            privacy=privacy,
            rounds=2,
            out=tmp_path / str(number),
            journal=journal,
            progress=False,
        )
    assert sorted(each.attempts for each in spent(journal)) == [2, 4]
    for name, model in (("cnn", "cnn"), ("mlp", "mlp")):
        digits = {"task.model": model, "rounds": 1, "privacy.sigma": 2.0, "algorithm.directions": 2}
        fedzero.run("demo-private", set=digits | {"privacy.epsilon": 32.0}, out=tmp_path / name, journal=journal)
    assert sorted(each.attempts for each in spent(journal)) == [2, 2, 4]


class Killed:
    """A run that is killed at some of its steps, each time by another process, and then goes on to its end."""

    def __init__(self, server: Any, place: Path):
        self.server, self.place, self.journal = server, place, place / "journal"

    def process(self, last: int = -1) -> bool:
        """Whether it was killed."""
        paths = map(str, (self.place / "run", self.journal))
        steps = str(self.place / "steps")
        process = self.server.Process(target=journal_child.go, args=(*paths, last, steps), daemon=True)
        process.start()
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL)
        return bool(process.exitcode)

    def check(self) -> None:
        """Rounds on the ledger are in the journal, whenever it was killed."""
        if (self.place / "run" / "ledger.db").exists():
            done = Ledger.open(self.place / "run" / "ledger.db").done
            assert (attempts(self.journal) if (self.journal / FILE).exists() else 0) >= done

    def to_end(self, lasts: list[int]) -> None:
        for last in lasts:
            killed = self.process(last)
            self.check()
            if not killed:
                break
        if not Path(self.place / "steps").exists():
            assert not self.process()
        assert (attempts(self.journal), spent(self.journal)[0].runs) == (4, 1), "each round is paid once"


@pytest.mark.parametrize("last", [9, 12, 17])
def test_a_run_that_is_killed_pays_each_round_once(warm_server: Any, tmp_path: Path, last: int) -> None:
    Killed(warm_server, tmp_path).to_end([last])


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_step(warm_server: Any, tmp_path: Path) -> None:
    whole = Killed(warm_server, tmp_path / "whole")
    whole.place.mkdir()
    whole.to_end([])
    made = int((whole.place / "steps").read_text())
    assert made >= STEPS
    generator = np.random.default_rng(1)
    for last in generator.permutation(made)[:16].tolist():
        place = tmp_path / str(last)
        place.mkdir()
        Killed(warm_server, place).to_end([last])
    for number in range(8):
        place = tmp_path / f"often-{number}"
        place.mkdir()
        Killed(warm_server, place).to_end(generator.integers(0, 14, 6).tolist())
