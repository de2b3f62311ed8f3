"""What clients of this machine have answered: one question for every client, round and exchange.

A server that lost an answer asks again, in a new epoch, after a restart, or from an older copy of its ledger. It is
sent the bytes that it was sent before. Another question in the same place is refused: a round is asked once. So noise
that a link drew in private is drawn once, whatever is killed.

An answer is on the disk before it leaves. Answers of rounds long over are dropped when there are too many; rounds up to
the last of those that were dropped are over for good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.durable import Durable, parts_of

FILE = "answers.db"
"""In the folder of a run, or of all runs of a site."""
UNKNOWN = b""
"""The history of a model of which something was folded, and something not; or of one that nobody traces."""
OTHERWISE = "was asked before, by another question"
MOST_BYTES = 8 << 20
"""Of answers that are kept of a run, beside those of its last round."""
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
    run TEXT NOT NULL, round INTEGER NOT NULL, client INTEGER NOT NULL, exchange INTEGER NOT NULL,
    question BLOB NOT NULL, history BLOB NOT NULL, answer BLOB NOT NULL,
    PRIMARY KEY (run, round, client, exchange)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_of_clients ON answers (run, client, round);
CREATE TABLE IF NOT EXISTS notes (
    run TEXT NOT NULL, client INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (run, client, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dropped (run TEXT PRIMARY KEY, below INTEGER NOT NULL) WITHOUT ROWID;
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


def question_of(instruction: bytes) -> bytes:
    return hashlib.sha256(instruction).digest()


def files_of(folder: Path) -> list[Path]:
    """All that is left of the answers in a folder, also by a process that was killed."""
    return parts_of(folder / FILE)


class Answers(Durable):
    """Of one run; the file may be that of all runs of a site."""

    tables = _TABLES

    def __init__(self, folder: Path, run: str = ""):
        self.run = run
        super().__init__(folder / FILE)

    def _opened(self) -> None:
        self._size = self._counted()

    def find(self, place: Place) -> Answered | None:
        with self._reading():
            row = self._db.execute(
                "SELECT question, history, answer FROM answers "
                "WHERE run = ? AND round = ? AND client = ? AND exchange = ?",
                (self.run, place.round, place.client, place.exchange),
            ).fetchone()
        if row is not None and not all(isinstance(value, bytes) for value in row):
            raise FedzeroError(f"{self._path} is damaged: an answer there is not made of bytes")
        return None if row is None else Answered(*row)

    def of_exchange(self, round: int, exchange: int) -> dict[int, bytes]:
        """What clients answered in an exchange, by client."""
        with self._reading():
            found = self._db.execute(
                "SELECT client, answer FROM answers WHERE run = ? AND round = ? AND exchange = ? AND client >= 0",
                (self.run, round, exchange),
            ).fetchall()
        return dict(found)

    def rounds(self) -> set[int]:
        """Rounds of which answers of clients are kept."""
        query = "SELECT DISTINCT round FROM answers WHERE run = ? AND client >= 0"
        with self._reading():
            return {round for (round,) in self._db.execute(query, (self.run,))}

    def over(self, client: int) -> int:
        """The last round that a client answered, or that is over for everybody; −1: none."""
        with self._reading():
            (last,) = self._one(
                "SELECT coalesce(max(round), -1) FROM answers WHERE run = ? AND client = ?", self.run, client
            )
            (below,) = self._one("SELECT coalesce(max(below), 0) FROM dropped WHERE run = ?", self.run)
        return max(last, below - 1)

    def before(self, place: Place, instruction: bytes) -> bytes | None:
        """What was answered to this instruction before; another one in its place is `Refused`."""
        found, question = self.find(place), question_of(instruction)
        if found is not None and found.question != question:
            raise Refused(f"was asked exchange {place.exchange} of round {place.round} before, by another question")
        return None if found is None else found.answer

    def all_before(
        self, round: int, exchange: int, asked: Mapping[int, bytes]
    ) -> tuple[dict[int, bytes], dict[int, Refused]]:
        """By client: what was answered to its instruction before; or that this is another one."""
        answered: dict[int, bytes] = {}
        refused: dict[int, Refused] = {}
        for client, instruction in asked.items():
            try:
                if (found := self.before(Place(round, client, exchange), instruction)) is not None:
                    answered[client] = found
            except Refused as why:
                refused[client] = why
        return answered, refused

    def keep(
        self,
        round: int,
        exchange: int,
        asked: Mapping[int, bytes],
        answers: Mapping[int, bytes],
        notes: Mapping[tuple[int, str], bytes | None] | None = None,
    ) -> None:
        """Make what clients of this process answered durable, once for all of them. notes: by client and name, what is
        kept with the answers from now on; None: it is erased."""
        found = [
            (Place(round, client, exchange), Answered(question_of(asked[client]), UNKNOWN, data))
            for client, data in answers.items()
        ]
        with self._reading(), self._transaction():
            if conflicts := self._keep(found, once=True):
                raise FedzeroError(f"{self._path}: client {conflicts[0].client} {OTHERWISE}")
            self._note(notes or {})

    def _note(self, notes: Mapping[tuple[int, str], bytes | None]) -> None:
        for (client, name), value in notes.items():
            self._db.execute("DELETE FROM notes WHERE run = ? AND client = ? AND name = ?", (self.run, client, name))
            if value is not None:
                self._db.execute("INSERT INTO notes VALUES (?, ?, ?, ?)", (self.run, client, name, value))

    def notes(self, client: int) -> dict[str, bytes]:
        """What is kept of a client beside its answers, by name."""
        with self._reading():
            query = "SELECT name, value FROM notes WHERE run = ? AND client = ?"
            found = self._db.execute(query, (self.run, client)).fetchall()
        if not all(isinstance(name, str) and isinstance(value, bytes) for name, value in found):
            raise FedzeroError(f"{self._path} is damaged: a note there is not made of bytes")
        return dict(found)

    def change_notes(self, client: int, notes: Mapping[str, bytes | None]) -> None:
        """Change or erase notes, also what the write-ahead log still has of them."""
        with self._reading():
            with self._transaction():
                self._note({(client, name): value for name, value in notes.items()})
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _keep(self, answers: Sequence[tuple[Place, Answered]], once: bool) -> list[Place]:
        """Inside a transaction: the places where something else was answered before."""
        conflicts = [place for place, answered in answers if not self._put(place, answered, once)]
        if answers:
            self._drop(min(place.round for place, _ in answers))
        return conflicts

    def _put(self, place: Place, answered: Answered, once: bool) -> bool:
        """Whether it is the first answer there, or one in the place of a damaged replica's to the same question; once:
        no answer is ever replaced."""
        found = self.find(place)
        if found is not None and found.answer != answered.answer and (once or not found.replaced_by(answered)):
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
                self._db.execute("DELETE FROM notes WHERE run = ?", (run,))
