"""The SQLite file of a ledger: its tables, and how it is read when somebody else may have made it (opened: opening.py).

A file is data, but its schema is code: a view named `entries` may count for ever, a trigger or a generated column may
run when a table is touched. Nothing but the schema is read before it is found to be that of a ledger, word for word.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedzero.errors import FedzeroError
from fedzero.model.decoding import MALFORMED

FORMAT = 3
TABLES = {
    "entries": "CREATE TABLE entries (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, chain BLOB NOT NULL) STRICT",
    "clock": "CREATE TABLE clock (seq INTEGER PRIMARY KEY, at REAL NOT NULL, seconds REAL NOT NULL, "
    "seal BLOB NOT NULL) STRICT",
    "dense": "CREATE TABLE dense (round INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT",
    "checkpoint": "CREATE TABLE checkpoint (part INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT",
    "memory": "CREATE TABLE memory (client INTEGER, piece INTEGER, body BLOB NOT NULL, "
    "PRIMARY KEY (client, piece)) STRICT",
}
LOG_OF_QUERIES = (
    "CREATE TABLE queries (client INTEGER NOT NULL, round INTEGER NOT NULL, ordinal INTEGER NOT NULL, "
    "attempt INTEGER NOT NULL, digest BLOB NOT NULL, state TEXT NOT NULL, value REAL, cause TEXT NOT NULL, point BLOB, "
    "PRIMARY KEY (round, client, ordinal, attempt)) STRICT, WITHOUT ROWID"
)
"""Made when the first query is to be logged (see query_log.py): most runs have none."""
DAMAGE = (sqlite3.Error, TypeError, struct.error, *MALFORMED)
"""What reading a damaged file may raise."""
_UNREADY = {
    sqlite3.SQLITE_FULL: "make room on the disk; a run resumes from its last completed round",
    sqlite3.SQLITE_IOERR: "make room on the disk; a run resumes from its last completed round",
    sqlite3.SQLITE_READONLY: "make file and folder writable, or copy the folder to where they are",
    sqlite3.SQLITE_PERM: "make file and folder writable, or copy the folder to where they are",
    sqlite3.SQLITE_CANTOPEN: "make room on the disk, and make file and folder writable",
    sqlite3.SQLITE_BUSY: "wait until no other process holds it",
}
"""What a disk or another process does to a file that is in order, by SQLite's codes; and what to do."""
_STEPS = 100_000
"""Steps of SQLite's machine between two looks at how many there were."""
_SCHEMA = 1_000_000
"""Steps in which a schema is read: few, since behind a step there may be a statement to parse."""
_FREE, _STEPS_A_BYTE = 100_000_000, 100
"""Steps that any query may take (a second or two), and more for every byte of the file."""


class Tampered(FedzeroError):
    """The file does not say what was written; `round` is the first bad one (−1: the start)."""

    def __init__(self, round: int, reason: str):
        where = "before the first round" if round < 0 else f"round {round}"
        super().__init__(f"{where}: {reason}")
        self.round = round


class Unwritable(FedzeroError):
    """The disk takes no more, or takes nothing at all; what was appended before is there."""


class Unreadable(FedzeroError):
    """The file cannot be read where it is; nothing is known to be wrong with it."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        what = _UNREADY.get(_code(error), _UNREADY[sqlite3.SQLITE_FULL])
        raise Unwritable(f"{path} cannot be written ({error}): {what}") from error


@contextmanager
def reading(path: Path, round: int = -1) -> Iterator[None]:
    """A file that does not hold what it should is `Tampered` in a round."""
    try:
        yield
    except DAMAGE as error:
        raise trouble(path, error, round) from error


def trouble(path: Path, error: Exception, round: int = -1) -> FedzeroError:
    """What a failure to read means."""
    if (code := _code(error)) in _UNREADY:
        return Unreadable(f"{path} cannot be read ({error}): {_UNREADY[code]}")
    if code == sqlite3.SQLITE_INTERRUPT:
        return Tampered(round, f"{path} is damaged (it takes longer to read than any file of its size)")
    return Tampered(round, f"{path} is damaged ({error})")


def _code(error: BaseException) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def check_format(db: sqlite3.Connection, path: Path) -> None:
    """That a file is a ledger of this format; comes before anything else is read."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version != FORMAT:
        raise FedzeroError(f"{path} has ledger format {version}; this release reads format {FORMAT}")
    check_schema(db)


def check_schema(db: sqlite3.Connection) -> None:
    """The tables of a ledger and nothing else: no views, no triggers, no indexes of anybody's own."""
    found = set(db.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL LIMIT 100"))
    wanted = {("table", name, sql) for name, sql in TABLES.items()}
    if found not in (wanted, wanted | {("table", "queries", LOG_OF_QUERIES)}):
        raise Tampered(-1, "the file is damaged (other tables, views or triggers than those of a ledger)")


class Patience:
    """Ends queries that take longer than the size of the file explains: pages that point to each other in a circle
    would be read for ever."""

    def __init__(self, db: sqlite3.Connection, paths: Sequence[Path]):
        """The first to be read is the schema: SQLite goes on behind a row that is wrong, and parses every one."""
        self._paths, self._left = paths, _SCHEMA
        db.set_progress_handler(self._look, _STEPS)

    def again(self) -> None:
        """Another query begins."""
        self._left = _FREE + _STEPS_A_BYTE * sum(path.stat().st_size for path in self._paths if path.exists())

    def _look(self) -> bool:
        self._left -= _STEPS
        return self._left < 0
