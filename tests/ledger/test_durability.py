"""Who writes waits for the disk: what a round has told the clients survives a power cut."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe
from fedzero.recipe.environment import Environment
from fedzero.runs import session


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement of every connection, in order."""
    seen: list[str] = []

    class Listening(sqlite3.Connection):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.set_trace_callback(seen.append)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: connect(*given, **options, factory=Listening))
    return seen


def test_rounds_are_committed_with_full_synchronisation(tmp_path: Path, tiny: Path, quiet, statements) -> None:
    session.start(recipe.load(tiny), tmp_path / "run", Environment(), quiet)
    assert "PRAGMA synchronous = FULL" in statements
    assert not any("synchronous" in said and "FULL" not in said for said in statements)
    assert sum(said.startswith("COMMIT") for said in statements) > 12, "a transaction a round, at least"


def test_a_ledger_that_is_opened_to_write_is_synchronised(tmp_path: Path, tiny: Path, quiet) -> None:
    session.start(recipe.load(tiny), tmp_path / "run", Environment(), quiet)
    ledger = Ledger.open(tmp_path / "run" / LEDGER, writable=True)
    try:
        assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert ledger._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    finally:
        ledger.close()
