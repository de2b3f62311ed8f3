"""What a site has answered: one question for every client, round and exchange, and one evaluation after every round.

A server that lost an answer asks again, in a new epoch, after a restart, or from an older copy of its ledger. It is
sent the bytes that it was sent before. Another question in the same place is refused: a round is asked once.

An answer is on the disk before it leaves. Answers of rounds long over are dropped when there are too many; rounds up to
the last of those that were dropped are over for good.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedzero.deploy.site.traced import UNKNOWN
from fedzero.errors import FedzeroError
from fedzero.model import files

FILE = "answers.db"
"""In the folder for what outlasts a restart."""
EVALUATION = -1
"""In the place of a client: the evaluation after so many rounds."""
MOST_BYTES = 8 << 20
"""Of answers that are kept of a run, beside those of its last round."""
MOST_TURNS = 1 << 18
"""Turns whose directions are counted, some 30 MB; the oldest are dropped. A turn takes two evaluations at least, so who
would have turns forgotten needs days of `queries_per_day` for it."""
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
    run TEXT NOT NULL, round INTEGER NOT NULL, client INTEGER NOT NULL, exchange INTEGER NOT NULL,
    question BLOB NOT NULL, history BLOB NOT NULL, answer BLOB NOT NULL,
    PRIMARY KEY (run, round, client, exchange)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_of_clients ON answers (run, client, round);
CREATE TABLE IF NOT EXISTS dropped (run TEXT PRIMARY KEY, below INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS directions (
    number INTEGER PRIMARY KEY, model BLOB NOT NULL, client INTEGER NOT NULL, drawn BLOB NOT NULL,
    count INTEGER NOT NULL, UNIQUE (model, client, drawn));
"""


@dataclass(frozen=True)
class Place:
    """What is asked once: exchange of a round of a client, or the evaluation after `round` rounds."""

    round: int
    client: int
    exchange: int = 0


@dataclass(frozen=True)
class Answered:
    """question: SHA-256 of what was asked; history: of what the model was made of, see `traced`."""

    question: bytes
    history: bytes
    answer: bytes

    def same_model(self, history: bytes) -> bool:
        """Whether a model was made of the same; then another digest is damage to the replica, not another question."""
        return self.history == history != UNKNOWN

    def replaced_by(self, other: Answered) -> bool:
        return self.question == other.question and self.same_model(other.history)


@dataclass(frozen=True)
class Drawn:
    """Directions that a client was asked about at one model. most: in all at this model, 0: no limit."""

    model: bytes
    client: int
    drawn: bytes
    count: int
    most: int = 0


def question_of(instruction: bytes) -> bytes:
    return hashlib.sha256(instruction).digest()


class Journal:
    """Of one run; the file is that of all runs of a site, because models are."""

    def __init__(self, folder: Path, run: str):
        self.run, self._path = run, folder / FILE
        files.hide(self._path)  # SQLite gives the files beside it the same permissions
        with self._reading():
            self._db = sqlite3.connect(self._path, timeout=30.0, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_TABLES)
            self._size = self._counted()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise FedzeroError(f"{self._path}: {error}") from error

    def _one(self, query: str, *values: object) -> tuple[int, ...]:
        row: tuple[int, ...] = self._db.execute(query, values).fetchone()
        return row

    def find(self, place: Place) -> Answered | None:
        with self._reading():
            row = self._db.execute(
                "SELECT question, history, answer FROM answers "
                "WHERE run = ? AND round = ? AND client = ? AND exchange = ?",
                (self.run, place.round, place.client, place.exchange),
            ).fetchone()
        return None if row is None else Answered(*row)

    def over(self, client: int) -> int:
        """The last round that a client answered, or that is over for everybody; −1: none."""
        with self._reading():
            (last,) = self._one(
                "SELECT coalesce(max(round), -1) FROM answers WHERE run = ? AND client = ?", self.run, client
            )
            (below,) = self._one("SELECT coalesce(max(below), 0) FROM dropped WHERE run = ?", self.run)
        return max(last, below - 1)

    def directions(self, model: bytes, client: int, drawn: bytes) -> int:
        """How many directions a client was asked about at a model, beside those that are drawn now."""
        with self._reading():
            (count,) = self._one(
                "SELECT coalesce(sum(count), 0) FROM directions WHERE model = ? AND client = ? AND drawn != ?",
                *(model, client, drawn),
            )
        return count

    def record(self, answers: Sequence[tuple[Place, Answered]], drawn: Sequence[Drawn] = ()) -> dict[Place, str]:
        """Make answers durable; those that must not leave, and why: another process answered something else."""
        if not answers:
            return {}
        with self._reading(), self._transaction():
            beyond = {each.client for each in drawn if self._beyond(each)}
            kept = [(place, answered) for place, answered in answers if place.client not in beyond]
            conflicts = [place for place, answered in kept if not self._put(place, answered)]
            for each in drawn:
                if each.client in beyond:
                    continue
                self._db.execute(
                    "INSERT OR IGNORE INTO directions (model, client, drawn, count) VALUES (?, ?, ?, ?)",
                    (each.model, each.client, each.drawn, each.count),
                )
            if drawn:
                self._db.execute(
                    "DELETE FROM directions WHERE number <= (SELECT max(number) FROM directions) - ?", (MOST_TURNS,)
                )
            self._drop(min(place.round for place, _ in answers))
        said = dict.fromkeys(conflicts, "was asked before, by another question")
        return said | {p: "was asked too much at this model meanwhile" for p, _ in answers if p.client in beyond}

    def _beyond(self, each: Drawn) -> bool:
        """Whether another process was asked meanwhile, and both together are too many."""
        return each.most > 0 and self.directions(each.model, each.client, each.drawn) + each.count > each.most

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _put(self, place: Place, answered: Answered) -> bool:
        """Whether it is the first answer there, or one in the place of a damaged replica's to the same question."""
        found = self.find(place)
        if found is not None and found.answer != answered.answer and not found.replaced_by(answered):
            return False
        self._size += len(answered.answer) - (0 if found is None else len(found.answer))
        self._db.execute(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self.run, place.round, place.client, place.exchange, answered.question, answered.history, answered.answer),
        )
        return True

    def _drop(self, now: int) -> None:
        """The oldest rounds, where there are too many bytes; not the one that is being asked, nor what follows it.
        A part of them at once, so that not every answer has all of them counted."""
        if self._size <= MOST_BYTES:
            return
        self._size = self._counted()
        query = "SELECT round, total(length(answer)) FROM answers WHERE run = ? AND round < ? GROUP BY round"
        last = None
        for round, size in self._db.execute(query, (self.run, now)):
            if self._size <= MOST_BYTES - MOST_BYTES // 4:
                break
            last, self._size = round, self._size - int(size)
        if last is not None:
            self._db.execute("DELETE FROM answers WHERE run = ? AND round <= ?", (self.run, last))
            self._db.execute("INSERT OR REPLACE INTO dropped VALUES (?, ?)", (self.run, last + 1))

    def _counted(self) -> int:
        return int(self._one("SELECT total(length(answer)) FROM answers WHERE run = ?", self.run)[0])

    def sizes(self) -> dict[str, int]:
        """Bytes of the answers of every run."""
        with self._reading():
            found = self._db.execute("SELECT run, total(length(answer)) FROM answers GROUP BY run").fetchall()
        return {run: int(size) for run, size in found}

    @property
    def size(self) -> int:
        """Bytes of the answers of this run."""
        return self._size

    def forget(self, runs: Sequence[str]) -> None:
        """What was answered in runs of which nothing is kept."""
        with self._reading(), self._transaction():
            for run in runs:
                self._db.execute("DELETE FROM answers WHERE run = ?", (run,))
                self._db.execute("DELETE FROM dropped WHERE run = ?", (run,))

    def close(self) -> None:
        self._db.close()
