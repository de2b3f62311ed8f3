"""The journal of what differential privacy was spent on each data set of a site, over all runs.

A round is *reserved*, on the disk, before its first answer leaves; a round that was begun is spent, whether it ended or
not. The same question about the same round is reserved once. Entries are a chain of hashes; the last of them is also in
a file beside the journal:

    budget.db       number, data set, run, round, question, charge, time, SHA-256 over the entry before and this one
    budget.head     the last number and hash

So entries that were changed, removed or exchanged are found, and a journal that is an older copy than the file beside
it, or than the site's answers. Where all files of the folder are older copies, nobody here can tell: a site that
restores its folder from a backup has to set `privacy.epsilon` lower by what was spent since. Times are for people.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fedzero.errors import FedzeroError, Sendable
from fedzero.ledger.durable import Durable
from fedzero.model import files
from fedzero.model.decoding import MALFORMED
from fedzero.runs.spending.charges import SETTINGS, Charge, Policy, Said, check_room, epsilon_of

FILE, HEAD = "budget.db", "budget.head"
TABLE = (
    "CREATE TABLE charges (number INTEGER PRIMARY KEY, data BLOB NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, "
    "question BLOB NOT NULL, body BLOB NOT NULL, alpha INTEGER NOT NULL, at REAL NOT NULL, chain BLOB NOT NULL) STRICT"
)
BEGIN = hashlib.sha256(b"fedzero budget, version 1").digest()
ASIDE = "the site's log has the reason"


class Tampered(FedzeroError):
    """The journal is not what was written."""


class Head(Struct, frozen=True, forbid_unknown_fields=True):
    """number: of the last entry, −1: none."""

    number: Annotated[int, Meta(ge=-1)] = -1
    chain: str = BEGIN.hex()


@dataclass(frozen=True)
class Spent:
    """Of a data set. attempts: rounds that were begun, those that were begun again included."""

    data: str
    unit: str
    epsilon: float
    attempts: int
    runs: int


class Budget(Durable):
    """Of one run; the file is that of all runs of a site."""

    def __init__(self, keep: Path, policy: Policy, data: bytes = b"", run: str = "", said: Said = SETTINGS):
        self.policy, self.data, self.run, self.said = policy, data, run, said
        self._head = keep / HEAD
        self._last: tuple[int, bytes] = (-1, b"")
        """the round that was reserved last, and its question"""
        keep.mkdir(0o700, parents=True, exist_ok=True)
        with files.locked(keep / FILE):
            super().__init__(keep / FILE)

    def _opened(self) -> None:
        """Inside the lock: check the chain, and that the journal is no older than the file beside it."""
        if not self._db.execute("SELECT 1 FROM sqlite_schema").fetchone():
            self._db.execute(TABLE)
        found = self._db.execute("SELECT type, sql FROM sqlite_schema WHERE sql IS NOT NULL LIMIT 9").fetchall()
        if found != [("table", TABLE)]:
            raise self._tampered("has other tables, views or triggers than a journal")
        chains, before = {-1: BEGIN}, BEGIN
        for number, *row, chain in self._db.execute("SELECT * FROM charges ORDER BY number"):
            if number != len(chains) - 1 or (before := _chained(before, number, row)) != chain:
                raise self._tampered(f"has entries that were changed or removed (number {number})")
            chains[number] = before
        head = self._expect_newest(len(chains) - 2, before)
        if chains[head.number].hex() != head.chain:
            raise self._tampered(f"is not that of {HEAD}")

    def _expect_tables_only(self) -> None:
        try:
            super()._expect_tables_only()
        except FedzeroError:
            raise self._tampered("has other tables, views or triggers than a journal") from None

    def _tampered(self, why: str) -> Tampered:
        return Tampered(
            f"{self._path} {why}: restore the newest copy of its folder, or move it away with {HEAD} and lower "
            "privacy.epsilon by what was spent"
        )

    def _expect_newest(self, number: int, chain: bytes) -> Head:
        """Compare the last entry with the file beside the journal."""
        head = self._written()
        if head.number > number or (head.number == number and head.chain != chain.hex()):
            raise self._tampered(f"is an older copy, or of another site: {HEAD} knows other entries")
        if number - head.number > 1:  # a process that was killed between the two leaves one
            raise self._tampered(f"has more entries than {HEAD} knows: that is an older copy, or was deleted")
        return head

    def _written(self) -> Head:
        if not self._head.exists():
            return Head()
        try:
            return msgspec.json.decode(files.read(self._head, files.SMALL), type=Head)
        except MALFORMED as error:
            raise self._tampered(f"cannot be checked ({HEAD} is damaged)") from error

    # ---- what is spent

    def reserve(self, charge: Charge, round: int, question: bytes) -> None:
        """Make a round spent before its first answer leaves; `Sendable` where the policy does not allow it."""
        if self._last == (round, question):
            return
        with files.locked(self._path), self._reading(), self._transaction_and_head():
            if not self._reserved(round, question):
                self._expect_newest(*self._end())
                self._append(round, question, charge, self._checked(charge, 1))
        self._last = round, question

    def begun(self) -> set[int]:
        """The rounds of this run that were reserved."""
        with self._reading():
            rows = self._db.execute("SELECT DISTINCT round FROM charges WHERE data = ? AND run = ?", self._mine)
            return {round for (round,) in rows}

    def expect_room(self, charge: Charge, rounds: int, answered: Collection[int]) -> None:
        """Refuse a run before it begins, if its rounds do not fit. answered: rounds whose answers this site has."""
        begun = self.begun()
        if missing := set(answered) - begun:
            raise Sendable(f"its budget does not know of a round that it answered: {ASIDE}") from self._tampered(
                f"is an older copy: it has no entry of round {min(missing)}, which was answered"
            )
        if left := max(0, rounds - len(begun)):
            self._checked(charge, left)

    def _checked(self, charge: Charge, rounds: int) -> int:
        """Refuse rounds that do not fit; the order in which they are counted."""
        spent, first = self._spent(self.data)
        order = first or self.policy.order(charge)
        check_room(spent, charge, rounds, self.policy, order, self.said)
        return order

    @property
    def _mine(self) -> tuple[bytes, str]:
        return self.data, self.run

    def _reserved(self, round: int, question: bytes) -> bool:
        query = "SELECT 1 FROM charges WHERE data = ? AND run = ? AND round = ? AND question = ?"
        return self._db.execute(query, (*self._mine, round, question)).fetchone() is not None

    def _spent(self, data: bytes) -> tuple[list[tuple[Charge, int]], int]:
        """Charges of a data set, each with how often; and the order of divergences that its first one fixed, or 0."""
        with self._reading():
            rows = self._db.execute(
                "SELECT body, count(*) FROM charges WHERE data = ? GROUP BY body", (data,)
            ).fetchall()
            first = self._db.execute(
                "SELECT alpha FROM charges WHERE data = ? ORDER BY number LIMIT 1", (data,)
            ).fetchone()
        spent = [(msgspec.json.decode(body, type=Charge), count) for body, count in rows]
        return spent, 0 if first is None else first[0]

    def _append(self, round: int, question: bytes, charge: Charge, order: int) -> None:
        number, before = self._end()
        row = [*self._mine, round, question, msgspec.json.encode(charge), order, time.time()]
        chain = _chained(before, number + 1, row)
        self._db.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (number + 1, *row, chain))

    def _end(self) -> tuple[int, bytes]:
        found = self._db.execute("SELECT number, chain FROM charges ORDER BY number DESC LIMIT 1").fetchone()
        return found or (-1, BEGIN)

    @contextmanager
    def _transaction_and_head(self) -> Iterator[None]:
        """The head follows the entry; whoever has the lock next finds it at most one behind."""
        with self._transaction():
            yield
        number, chain = self._end()
        if number >= 0:
            files.write(self._head, msgspec.json.encode(Head(number, chain.hex())), durable=True, private=True)

    def totals(self) -> list[Spent]:
        """What is spent, by data set."""
        with self._reading():
            rows = self._db.execute(
                "SELECT data, count(*), count(DISTINCT run) FROM charges GROUP BY data ORDER BY min(number)"
            ).fetchall()
        found = []
        for data, attempts, runs in rows:
            spent, order = self._spent(data)
            found.append(
                Spent(data.hex()[:12], spent[0][0].unit, epsilon_of(spent, self.policy, order), attempts, runs)
            )
        return found


def _chained(before: bytes, number: int, row: Sequence[object]) -> bytes:
    return hashlib.sha256(before + msgspec.msgpack.encode((number, *row))).digest()


def lines(keep: Path, policy: Policy) -> list[str]:
    """What is spent, for people; nothing where no run had [privacy]."""
    if not (keep / FILE).exists():
        return []
    budget = Budget(keep, policy)
    try:
        limit = "no limit" if policy.epsilon is None else f"of {policy.epsilon:g}"
        return [
            f"privacy of data set {one.data}: ε = {one.epsilon:.4g} {limit} (δ = {policy.delta:g}, against "
            f"{policy.adversary}, unit {one.unit}), {one.attempts:,} rounds of {one.runs:,} runs"
            for one in budget.totals()
        ]
    finally:
        budget.close()
