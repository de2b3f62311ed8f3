"""A small SQLite file that several processes of one machine write, and whose every commit is on the disk.

Somebody else may have made the folder: nothing that SQLite would run or write elsewhere is accepted (`opening`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedzero.errors import FedzeroError
from fedzero.ledger import opening
from fedzero.model import files

SECONDS = 30.0
"""To wait for another process that writes."""


def parts_of(path: Path) -> list[Path]:
    """All that is left of such a file, also by a process that was killed."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]


class Durable:
    """tables: statements that make what is not there yet."""

    tables = ""

    def __init__(self, path: Path):
        self._path = path
        opening.refuse_foreign(path)
        files.hide(path)  # SQLite gives the files beside it the same permissions
        with self._reading():
            self._db = opening.connect(path, "mode=rw", seconds=SECONDS, threads=True)
            try:
                self._expect_tables_only()
                opening.with_log(self._db)
                self._db.execute("PRAGMA secure_delete = ON")  # what is deleted may be keys
                self._db.executescript(self.tables)
                self._opened()
            except BaseException:
                self._db.close()
                raise

    def _opened(self) -> None:
        """The tables are there; nothing was read yet."""

    def _expect_tables_only(self) -> None:
        query = "SELECT name FROM sqlite_schema WHERE type NOT IN ('table', 'index')"
        if self._db.execute(query).fetchone() is not None:
            raise FedzeroError(f"{self._path} has views or triggers, which fedzero never makes: delete it")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # what SQLite says of a damaged file may be no UTF-8
            raise FedzeroError(f"{self._path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")  # fails where the disk is full
        except BaseException:
            if self._db.in_transaction:  # SQLite itself may have rolled back
                self._db.execute("ROLLBACK")
            raise

    def _one(self, query: str, *values: object) -> tuple[int, ...]:
        row: tuple[int, ...] = self._db.execute(query, values).fetchone()
        return row

    def close(self) -> None:
        self._db.close()
