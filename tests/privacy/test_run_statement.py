"""The statement of a run with [privacy]: what it says, made again, signed; and what is shown of such a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import recipe_of

from fedzero.api.runs import Run
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.folder import PRIVACY
from fedzero.loggers.reporter import Written, _recorded
from fedzero.methods import DeComFL
from fedzero.privacy.statement import public_key
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.report.page import page
from fedzero.results import export
from fedzero.results.history import history
from fedzero.runs import session, statement
from fedzero.runs.growing import Growth
from fedzero.runs.progress import Silent
from fedzero.runs.summary import summary_of

ROUNDS = 4


def table(**privacy: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(recipe_of(DeComFL(rate=2e-3, directions=6), clients=8, cohort=2))
    return plain | {"rounds": ROUNDS, "evaluate_every": 2} | ({"privacy": privacy} if privacy else {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("private")
    session.start(recipes.decode(table(sigma=1.0)), place, Environment(), Silent())
    return place


def test_a_run_ends_with_its_statement(folder: Path) -> None:
    found, signer = statement.read(folder / PRIVACY)
    assert signer is None and found == statement.statement_in(folder) == Run.open(folder).privacy
    assert (found.unit, found.units, found.q, found.steps, found.sigma) == ("client", 8, 0.25, ROUNDS, 1.0)
    assert (found.delta, found.simulated, found.run) == (0.1 / 8, True, summary_of(folder).ledger_head)
    readers, server = found.figures
    assert readers.epsilon == summary_of(folder).epsilon and readers.amplified and server.epsilon is None
    said = statement.words(found)
    assert f"ε = {readers.epsilon:.4g}" in said and "the server: none" in said and "simulated" in said


def test_a_statement_that_says_something_else_is_not_confirmed(folder: Path) -> None:
    found, _ = statement.read(folder / PRIVACY)
    assert statement.checked(folder, msgspec.structs.replace(found, accountant="another release")) == found
    better = (msgspec.structs.replace(found.figures[0], epsilon=0.1), found.figures[1])
    for changes in ({"figures": better}, {"steps": 3}, {"sigma": 2.0}, {"simulated": False}, {"run": "00"}):
        with pytest.raises(Refused, match=next(iter(changes))):
            statement.checked(folder, msgspec.structs.replace(found, **changes))


def test_a_ledger_with_an_epsilon_that_the_noise_does_not_give_is_not_confirmed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes a ledger can write any ε."""
    found = statement.statement_in(folder)
    small = (
        msgspec.structs.replace(found.figures[0], epsilon=(found.figures[0].epsilon or 0.0) * 0.9),
        found.figures[1],
    )
    forged = msgspec.structs.replace(found, figures=small)
    monkeypatch.setattr(statement, "statement_in", lambda folder: forged)
    with pytest.raises(Refused, match="the accountant finds"):
        statement.checked(folder, forged)


def test_noise_of_hosts_has_a_figure_against_the_server(tmp_path: Path) -> None:
    session.start(recipes.decode(table(sigma=20.0, noise="local")), tmp_path, Environment(), Silent())
    found, _ = statement.read(tmp_path / PRIVACY)
    readers, server = found.figures
    assert statement.checked(tmp_path, found) == found and found.noise == "local"
    assert (server.epsilon or 0) > (readers.epsilon or 0) > 0 and not server.amplified
    assert f"; ε {server.epsilon:.2f} against the server" in page([history(tmp_path)], "local")


def test_keys_and_signatures(folder: Path, tmp_path: Path) -> None:
    key = statement.new_key(tmp_path / "key")
    assert statement.key_in(tmp_path / "key") == key and (tmp_path / "key").stat().st_mode & 0o77 == 0
    with pytest.raises(FedzeroError, match="choose another name"):
        statement.new_key(tmp_path / "key")
    found = statement.statement_in(folder)
    statement.sign(found, key, tmp_path / "signed")
    assert statement.read(tmp_path / "signed", public_key(key)) == (found, public_key(key))
    for path in (tmp_path / "signed", folder / PRIVACY):
        with pytest.raises(Refused):
            statement.read(path, public_key(bytes(32)))
    (tmp_path / "key").write_text("no key")
    with pytest.raises(FedzeroError, match="is no key"):
        statement.key_in(tmp_path / "key")


def test_a_run_without_privacy_has_none_and_looks_as_before(tmp_path: Path) -> None:
    session.start(recipes.decode(table()), tmp_path, Environment(), Silent())
    assert not (tmp_path / PRIVACY).exists()
    with pytest.raises(FedzeroError, match="promises nothing"):
        statement.statement_in(tmp_path)
    assert "epsilon" not in export.as_csv(export.rows(tmp_path)) + export.as_json(export.rows(tmp_path))
    assert "ε" not in page([history(tmp_path)], "plain").partition("<script")[0]


def test_an_extension_removes_the_statement_until_it_ends(tmp_path: Path) -> None:
    session.start(recipes.decode(table(sigma=1.0)), tmp_path, Environment(), Silent())
    before, _ = statement.read(tmp_path / PRIVACY)
    seen: list[bool] = []

    class Looking(Silent):
        def round(self, record: object) -> None:
            seen.append((tmp_path / PRIVACY).exists())

    session.resume(tmp_path, Environment(), Looking(), growth=Growth(rounds=6))
    after, _ = statement.read(tmp_path / PRIVACY)
    assert seen == [False, False] and (before.steps, after.steps) == (ROUNDS, 6)
    assert (after.figures[0].epsilon or 0) > (before.figures[0].epsilon or 0)


def test_nothing_is_shown_as_counted_that_nobody_counts(folder: Path) -> None:
    totals, run = summary_of(folder), history(folder)
    assert totals.refused is None and totals.bounded is None
    assert totals.bytes_up_per_turn == pytest.approx(totals.bytes_up_per_client * 8 / (2 * ROUNDS))
    assert run.parties == () and run.refusals == () and run.train_loss == ()
    text = page([run], "private")
    assert "Who answered" not in text and f"ε {totals.epsilon:.2f} at δ 0.013 for a client" in text
    assert "expected ones" in text and "each client with a coin of its own" in text


def test_epsilon_is_in_curves_exports_and_loggers(folder: Path) -> None:
    rows = export.rows(folder)
    spent = [row.epsilon or 0.0 for row in rows]
    assert spent[1:] == sorted(spent[1:]) and spent[-1] == summary_of(folder).epsilon
    first, *lines = (line.split(",") for line in export.as_csv(rows).splitlines())
    assert [float(line[first.index("epsilon")] or 0) for line in lines[1:]] == spent[1:]
    assert [point.epsilon for point in history(folder).points] == [0.0, spent[2], spent[4]]
    begun = type("Begun", (), {"folder": folder, "rounds": 9, "entries": 99, "clients": 8})
    told = [point.values["privacy/epsilon"] for point in _recorded(begun, Written()) if not point.evaluated]  # type: ignore[arg-type]
    assert told == spent[1:]
