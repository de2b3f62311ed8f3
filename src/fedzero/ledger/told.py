"""Points that a run waits for, and the values that were told: a SQLite file beside the ledger, for many processes.

A point is in it from the moment that the method asks for it. Of its outcomes the first counts. Every change is one
transaction, on disk when it returns; connections last for one, so an open table may be used after a fork.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedzero.errors import FedzeroError
from fedzero.ledger import opening
from fedzero.ledger.database import Patience
from fedzero.oracles.blackbox import Query

PATIENCE = 60.0
"""Seconds to wait for other processes' transactions."""
_TABLE = (
    "CREATE TABLE points (id INTEGER PRIMARY KEY, client INTEGER NOT NULL, round INTEGER NOT NULL, "
    "ordinal INTEGER NOT NULL, attempt INTEGER NOT NULL, digest BLOB NOT NULL, point BLOB NOT NULL, "
    "leased_until REAL NOT NULL, value REAL, cause TEXT, UNIQUE (round, client, ordinal, attempt, digest)) STRICT"
)
_OPEN = "value IS NULL AND cause IS NULL"
_INDEX = f"CREATE INDEX open_points ON points (id) WHERE {_OPEN}"
_SCHEMA = (("table", "points", _TABLE), ("index", "open_points", _INDEX))


@dataclass(frozen=True)
class ToldTable:
    """The table in a file; `create` makes it, one process at a time."""

    path: Path

    def create(self, fresh: bool) -> None:
        """Where it is not there yet; fresh: of a new run, without what another one may have left."""
        with closing(self._connect("mode=rwc")) as db:
            opening.with_log(db)
            for kind, _, definition in _SCHEMA:
                create = f"CREATE {kind.upper()} "
                db.execute(definition.replace(create, f"{create}IF NOT EXISTS ", 1))
            if fresh:
                db.execute("DELETE FROM points")

    def _connect(self, options: str = "mode=rw") -> sqlite3.Connection:
        """A connection to what is a table of this kind, or empty."""
        opening.refuse_foreign(self.path)
        db = opening.connect(self.path, options, PATIENCE)
        Patience(db, [self.path])
        found = set(db.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL LIMIT 100"))
        if not found <= set(_SCHEMA):
            db.close()
            raise FedzeroError(f"{self.path} is damaged (other tables, views or triggers than its own): delete it")
        db.set_progress_handler(None, 0)
        return db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            yield db  # an exception closes the connection, which undoes everything
            db.execute("COMMIT")

    def outcomes(self, rows: Sequence[Query]) -> list[float | str | None]:
        """What was told of these attempts (see `Told`); those that are new are waited for from now on."""
        with self._transaction() as db:
            found: list[float | str | None] = []
            for row in rows:
                key = (row.round, row.client, row.ordinal, row.attempt, row.digest)
                db.execute(
                    "INSERT OR IGNORE INTO points (round, client, ordinal, attempt, digest, point, leased_until) "
                    "VALUES (?, ?, ?, ?, ?, ?, 0)",
                    (*key, row.point),
                )
                where = "round = ? AND client = ? AND ordinal = ? AND attempt = ? AND digest = ?"
                value, cause = db.execute(f"SELECT value, cause FROM points WHERE {where}", key).fetchone()
                found.append(value if cause is None else cause)
            return found

    def awaited(self) -> int:
        """How many points have no outcome yet."""
        with closing(self._connect()) as db:
            (count,) = db.execute(f"SELECT count(*) FROM points WHERE {_OPEN}").fetchone()
            return int(count)

    def lease(self, count: int, client: int | None, seconds: float) -> list[tuple[int, int, bytes]]:
        """(id, client, point) of points that nobody holds, held from now on for so many seconds, oldest first."""
        now = time.time()
        whose, arguments = ("", (now,)) if client is None else ("AND client = ?", (now, client))
        select = f"SELECT id, client, point FROM points WHERE {_OPEN} AND leased_until <= ? {whose} ORDER BY id LIMIT ?"
        with self._transaction() as db:
            rows = db.execute(select, (*arguments, count)).fetchall()
            db.executemany(
                "UPDATE points SET leased_until = ? WHERE id = ?", [(now + seconds, number) for number, _, _ in rows]
            )
            return rows

    def tell(self, number: int, outcome: float | str) -> None:
        """A value, or why there is none. The same again changes nothing; anything else is refused."""
        with self._transaction() as db:
            row = db.execute("SELECT value, cause FROM points WHERE id = ?", (number,)).fetchone()
            if row is None:
                raise FedzeroError(f"{self.path} has no point {number}: tell values of points that `ask` gave")
            value, cause = row
            known = value if cause is None else cause
            if known is None:
                column = "cause" if isinstance(outcome, str) else "value"
                db.execute(f"UPDATE points SET {column} = ? WHERE id = ?", (outcome, number))
            elif known != outcome:
                before, now = ("failed" if isinstance(each, str) else repr(each) for each in (known, outcome))
                if before != now:
                    raise FedzeroError(
                        f"point {number} was told {before} before and {now} now: the first counts, this one is not used"
                    )
