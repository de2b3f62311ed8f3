"""The answers in the folder of a run that somebody else sent: SQLite obeys nothing there, and nothing is believed."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.ledger.answers import FILE, Answers, Place
from fedzero.methods import DeComFL
from fedzero.methods.contract import Federation
from fedzero.recipe.plan import Plan
from fedzero.recipe.sampling import BATCHES, COHORT, PrivateBatches, PrivateCohorts

PLAN = Plan(DeComFL(rate=0.1), Federation(clients=6, cohort=3), Keys.of_seed(0), size=1)
MAGIC = bytes.fromhex("d9d505f920a163d7")
PAGE = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run whose cohort of round 0 is drawn."""
    (tmp_path / "run").mkdir()
    PrivateCohorts(tmp_path / "run", PLAN)(0)
    return tmp_path / "run"


def changed(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / FILE)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def hot_journal(folder: Path, mine: Path) -> None:
    """A rollback journal; who plays it back deletes the file that it names."""
    changed(folder, "PRAGMA journal_mode = DELETE")
    name = os.fsencode(mine)
    header = (MAGIC + struct.pack(">IIIII", 0, 7, 4, 512, PAGE)).ljust(512, b"\0")
    tail = struct.pack(">II", len(name), sum(name)) + MAGIC
    (folder / f"{FILE}-journal").write_bytes(header + struct.pack(">I", (1 << 30) // PAGE + 1) + name + tail)


def hard_link(folder: Path, mine: Path) -> None:
    (folder / FILE).unlink()
    os.link(mine, folder / FILE)


def link(folder: Path, mine: Path) -> None:
    (folder / FILE).unlink()
    (folder / FILE).symlink_to(mine)


def linked_log(folder: Path, mine: Path) -> None:
    (folder / f"{FILE}-wal").symlink_to(mine)


def pipe(folder: Path, mine: Path) -> None:
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)


@pytest.mark.parametrize("lay", [hot_journal, hard_link, link, linked_log, pipe], ids=lambda lay: lay.__name__)
def test_no_other_file_is_written_or_deleted(folder: Path, tmp_path: Path, lay: Callable[[Path, Path], None]) -> None:
    mine = tmp_path / "mine"
    mine.touch(0o644)
    lay(folder, mine)
    before = mine.stat().st_mode, mine.read_bytes()
    with pytest.raises(FedzeroError, match=r"belong|link|pipe"):
        Answers(folder)
    assert (mine.stat().st_mode, mine.read_bytes()) == before


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON answers BEGIN DELETE FROM answers; END",
        "CREATE VIEW more AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    ],
)
def test_a_file_that_does_something_is_refused(folder: Path, statement: str) -> None:
    changed(folder, statement)
    with pytest.raises(FedzeroError, match="views or triggers"):
        Answers(folder)


@pytest.mark.parametrize("size", [0, 1, 50, 100, PAGE, 5000, 2 * PAGE])
def test_a_file_that_ends_early(folder: Path, size: int) -> None:
    changed(folder, "PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(folder / FILE, size)
    cohorts = PrivateCohorts(folder, PLAN)
    if size <= 1:  # SQLite takes it for an empty one
        assert len(cohorts(0)) == 3
        return
    with pytest.raises(FedzeroError, match=FILE):
        cohorts(0)


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (msgspec.msgpack.encode((0, 1, 6)), "nobody can have drawn"),
        (msgspec.msgpack.encode((-1, 0, 1)), "nobody can have drawn"),
        (msgspec.msgpack.encode((0, 0, 0)), "nobody can have drawn"),
        (msgspec.msgpack.encode(()), "nobody can have drawn"),
        (b"\xc1", "not the cohort of round 0"),
        ("text", "not made of bytes"),
    ],
)
def test_a_cohort_that_nobody_can_have_drawn(folder: Path, kept: bytes | str, why: str) -> None:
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute("UPDATE answers SET answer = ? WHERE client = ?", (kept, COHORT))
    with pytest.raises(FedzeroError, match=why):
        PrivateCohorts(folder, PLAN)(0)


def test_a_root_of_batches_that_is_too_short(folder: Path) -> None:
    with closing(Answers(folder)) as answers:
        answers.keep(0, 0, {BATCHES - 2: b""}, {BATCHES - 2: b""})
        assert answers.find(Place(0, BATCHES - 2)) is not None
    with pytest.raises(FedzeroError, match="batches of client 2 in round 0 is damaged"):
        PrivateBatches(lambda: Answers(folder), close=True).begin(0, [1, 2])
