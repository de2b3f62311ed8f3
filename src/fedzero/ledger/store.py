"""The ledger: a run in one SQLite file.

Entries form a hash chain, chain_n = SHA-256(chain_{n−1} ‖ seq ‖ body). Write-ahead log and full sync: an append that
returned is on disk, one that did not return is absent; nothing is ever half there. Wall-clock times are sealed to their
entry but stand outside the chain, so an interrupted run and an undisturbed one end in the same chain.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from weakref import WeakSet

import msgspec

from fedzero.errors import FedzeroError, Refused
from fedzero.ledger import opening
from fedzero.ledger.database import DAMAGE, TABLES, Patience, reading, trouble, writing
from fedzero.ledger.database import FORMAT as FORMAT
from fedzero.ledger.database import Tampered as Tampered
from fedzero.ledger.database import Unwritable as Unwritable
from fedzero.ledger.folder import LEDGER, folder_of
from fedzero.ledger.outline import GENESIS
from fedzero.ledger.records import Extended, Record, Round, Saved, Start, decode_record, encode_record
from fedzero.ledger.turns import Turns
from fedzero.model import files
from fedzero.protocol.messages import MemoryChange, chunk_digest, memory_digest

_PART = 256 << 20
"""Checkpoints are cut into pieces of this many bytes: SQLite takes no blob above 1 GB."""
_GLANCE = 0.1
"""Seconds for which a reader may hold a folder at most."""
_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Seconds between attempts to leave one plain file behind."""


class Claimed(FedzeroError):
    """Another process writes in the folder."""


@dataclass(frozen=True)
class Entry:
    seq: int
    record: Record
    chain: bytes
    at: float
    seconds: float


def link(chain: bytes, seq: int, body: bytes) -> bytes:
    return hashlib.sha256(chain + struct.pack("<q", seq) + body).digest()


def _seal(chain: bytes, at: float, seconds: float) -> bytes:
    return hashlib.sha256(chain + struct.pack("<dd", at, seconds)).digest()[:8]


def rounds_after(record: Record) -> int:
    """How many rounds were made when an entry was there."""
    return 0 if isinstance(record, Start) else record.round + isinstance(record, Round)


def _memory(client: int, rows: Sequence[tuple[int, int, bytes]], turns: Turns) -> tuple[bytes, ...]:
    """A client's memory from its rows, found to be the one on record."""
    if [piece for _, piece, _ in rows] != list(range(len(rows))):
        raise Tampered(-1, f"part of the memory of client {client} is missing")
    chunks = tuple(body for _, _, body in rows)
    known = 0 <= client < len(turns.counted)
    if not known or memory_digest(list(map(chunk_digest, chunks))) != turns.memory(client):
        round = int(turns.counted[client]) if known else -1
        raise Tampered(round, f"the memory of client {client} does not match its digest")
    return chunks


class Claim:
    """The right to write in a folder, held by one process at a time and given up when that process dies.

    The lock is on the folder, not on the ledger: closing a second descriptor of a database file would drop SQLite's
    own locks on it.
    """

    def __init__(self, folder: Path):
        self._descriptor, until = os.open(folder, os.O_RDONLY), time.monotonic() + _GLANCE
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() < until:  # a reader who looks whether anybody writes
                    time.sleep(0.005)
                    continue
                os.close(self._descriptor)
                raise Claimed(f"{folder} is being written by another process: wait for it to end, or stop it") from None

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise Unwritable(f"{path} cannot be replaced ({error.strerror}): remove it") from error


@contextmanager
def closed_on_failure(ledger: Ledger) -> Iterator[Ledger]:
    """Close a ledger if the block fails, so that the next attempt may write."""
    try:
        yield ledger
    except BaseException:
        ledger.close()
        raise


@contextmanager
def ledger_in(folder: Path) -> Iterator[Ledger]:
    """The ledger of the run in a folder, for reading."""
    with closing(Ledger.open(folder_of(folder) / LEDGER)) as ledger:
        yield ledger


def _check_log(path: Path) -> None:
    """Of a run that was killed, before SQLite writes it into the ledger: its entries go on from those of the file."""
    with closing(Ledger(path, None, unwritten=True)) as ledger:
        for _ in ledger.entries(ledger._whole):
            pass


class Ledger:
    """An open ledger; who writes holds the claim on its folder, readers need none."""

    def __init__(self, path: Path, claim: Claim | None, unwritten: bool = False):
        """unwritten: see `for_reading`."""
        self.path, self._claim = path, claim
        self._seq, self._chain = -1, GENESIS
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()
        self._patience: Patience | None = None
        if claim is None:
            with reading(path):
                found = opening.for_reading(path, unwritten)
            self._db, self._patience, self._whole = found.db, found.patience, found.whole
            return
        with ExitStack() as undo:
            undo.callback(claim.release)
            with reading(path), writing(path):
                self._db = opening.for_writing(path)
                undo.callback(self._db.close)
                row = self._db.execute("SELECT seq, chain FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
            undo.pop_all()
        if row is not None:
            self._seq, self._chain = row

    @staticmethod
    def create(path: Path, start: Start, claim: Claim | None = None, replaced: Sequence[Path] = ()) -> Ledger:
        """A new ledger with its first entry. Appears under its name only when both are on disk; then `replaced`, and
        what belongs to an earlier ledger of that name, are gone."""
        claim, draft = claim or Claim(path.parent), path.with_suffix(".new")
        try:
            _unlink(path.parent.glob(f"{draft.name}*"))
            if start.secret is not None:  # SQLite gives the files beside it the same permissions
                files.hide(draft)
            with writing(path), closing(opening.connect(draft, "mode=rwc")) as db:
                db.execute("PRAGMA journal_mode = MEMORY")
                db.execute(f"PRAGMA user_version = {FORMAT}")
                for definition in TABLES.values():
                    db.execute(definition)
            ledger = Ledger(draft, claim)
            try:
                ledger.append([start], 0.0)
                with writing(path):
                    ledger._settle()
            finally:
                ledger._db.close()
            _unlink([*replaced, *path.parent.glob(f"{path.name}-*")])
            draft.replace(path)
        except BaseException:
            _unlink(path.parent.glob(f"{draft.name}*"))
            claim.release()
            raise
        return Ledger(path, claim)

    def hide(self) -> None:
        """From everybody but the owner: 0.1 let others read the fingerprint of a secret."""
        for suffix in ("", opening.LOG, opening.INDEX):
            with suppress(OSError):
                opening.named(self.path, suffix).chmod(0o600)

    @staticmethod
    def open(path: Path, writable: bool = False) -> Ledger:
        if not path.exists():
            raise FedzeroError(f"{path} does not exist: give a folder made by `fedzero run`")
        if not writable:
            return Ledger(path, None)
        claim = Claim(path.parent)
        try:
            if opening.has_log(path):
                _check_log(path)
        except BaseException:
            claim.release()
            raise
        return Ledger(path, claim)

    def _settle(self) -> None:
        """Leave one plain file behind: no write-ahead log, readable on a read-only disk."""
        opening.without_log(self._db)

    def close(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()
        for pause in () if self._claim is None else _PAUSES:
            time.sleep(pause)
            with suppress(sqlite3.OperationalError):  # a reader, a full disk: the log beside it is durable
                self._settle()
                break
        self._db.close()
        if self._claim is not None:
            self._claim.release()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and durable when it is left."""
        with writing(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has rolled it back already
                    self._db.execute("ROLLBACK")
                raise

    def append(
        self,
        records: Sequence[Record],
        seconds: float,
        dense: tuple[int, bytes] | None = None,
        checkpoint: bytes | None = None,
        memories: Mapping[int, MemoryChange] | None = None,
    ) -> None:
        """Write entries in one durable transaction.

        With a dense round goes its update, with a `Saved` record the checkpoint it describes, with any round what
        clients of this process remember of it.
        """
        seq, chain, at = self._seq, self._chain, time.time()
        with self.transaction():
            for record in records:
                seq, body = seq + 1, encode_record(record)
                chain = link(chain, seq, body)
                self._db.execute("INSERT INTO entries VALUES (?, ?, ?)", (seq, body, chain))
                self._db.execute("INSERT INTO clock VALUES (?, ?, ?, ?)", (seq, at, seconds, _seal(chain, at, seconds)))
                if isinstance(record, Saved) and checkpoint is not None:
                    self._replace_checkpoint(record.round, checkpoint)
            if dense is not None:
                self._db.execute("INSERT INTO dense VALUES (?, ?)", dense)
            for client, kept in (memories or {}).items():
                self._db.execute("DELETE FROM memory WHERE client = ? AND piece >= ?", (client, kept.count))
                rows = [(client, chunk, body) for chunk, body in kept.changed.items()]
                self._db.executemany("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", rows)
        self._seq, self._chain = seq, chain

    def _replace_checkpoint(self, round: int, state: bytes) -> None:
        self._db.execute("DELETE FROM checkpoint")
        for part in range(max(1, -(-len(state) // _PART))):
            self._db.execute("INSERT INTO checkpoint VALUES (?, ?)", (part, state[part * _PART : (part + 1) * _PART]))
        self._db.execute("DELETE FROM dense WHERE round < ?", (round,))

    def rows(self, query: str, bad: int, kind: Any = Any) -> list[Any]:
        """What a query finds; a file that cannot be read is `Tampered` in round `bad`.

        kind: of a row. SQLite checks types when it writes, and believes a file that it reads.
        """
        self._begin()
        with reading(self.path, bad):
            return msgspec.convert(self._db.execute(query).fetchall(), list[kind])

    def _stream(self, query: str, kind: Any) -> Iterator[Any]:
        """As `rows`, one at a time: for tables that memory may not hold."""
        self._begin()
        with reading(self.path):
            for row in self._reading(query):
                yield msgspec.convert(row, kind)

    def _reading(self, query: str) -> sqlite3.Cursor:
        """Rows that are read one at a time. `close` ends it: a traceback may hold on to who reads, and to his lock."""
        cursor = self._db.execute(query)
        self._cursors.add(cursor)
        return cursor

    def _begin(self) -> None:
        if self._patience is not None:
            self._patience.again()

    def checkpoint(self, saved: Saved | None) -> bytes | None:
        """The state that the last `Saved` record describes."""
        bad = -1 if saved is None else saved.round
        rows = self.rows("SELECT part, body FROM checkpoint ORDER BY part", bad, tuple[int, bytes])
        if saved is None:
            if rows:
                raise Tampered(-1, "there is a checkpoint without an entry")
            return None
        state = b"".join(body for _, body in rows)
        whole = [part for part, _ in rows] == list(range(len(rows)))
        if not whole or hashlib.sha256(state).digest() != saved.state:
            raise Tampered(saved.round, "the checkpoint does not match its digest")
        return state

    def memories(self, turns: Turns) -> Iterator[tuple[int, tuple[bytes, ...]]]:
        """What clients remember, in pieces, client by client, each checked against the digest on the chain.

        Nothing where the clients were in other processes, which keep it themselves.
        """
        missing = turns.remembering
        query, expected = "SELECT client, piece, body FROM memory ORDER BY client, piece", missing.sum()
        for client, rows in groupby(self._stream(query, tuple[int, int, bytes]), lambda row: row[0]):
            yield client, _memory(client, list(rows), turns)
            missing[client] = False
        if 0 < missing.sum() < expected:
            _memory(int(missing.argmax()), [], turns)

    def memory(self, client: int, turns: Turns) -> tuple[bytes, ...]:
        """What one client remembers; nothing where it has no memory, or keeps it elsewhere."""
        query = f"SELECT client, piece, body FROM memory WHERE client = {client:d} ORDER BY piece"
        rows = self.rows(query, -1, tuple[int, int, bytes])
        if not rows and (not turns.memory(client) or not self.rows("SELECT 1 FROM memory LIMIT 1", -1)):
            return ()
        return _memory(client, rows, turns)

    def dense_updates(self, expected: dict[int, bytes]) -> dict[int, bytes]:
        """Dense updates since the checkpoint, by round; `expected` has their SHA-256."""
        query, bad = "SELECT round, body FROM dense ORDER BY round", min(expected, default=-1)
        rows = dict(self.rows(query, bad, tuple[int, bytes]))
        for round in sorted(expected.keys() | rows.keys()):
            if round not in rows or round not in expected:
                raise Tampered(round, "its dense update is missing" if round in expected else "no such dense update")
            if hashlib.sha256(rows[round]).digest() != expected[round]:
                raise Tampered(round, "the dense update does not match its digest")
        return rows

    @property
    def head(self) -> bytes:
        """The last link of the chain: two ledgers with the same head tell the same story."""
        rows = self.rows("SELECT chain FROM entries ORDER BY seq DESC LIMIT 1", -1, tuple[bytes])
        return bytes(rows[0][0]) if rows else GENESIS

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        """Entries first … last − 1 in order, each checked against the chain and the clock's seal as it is read.

        The chain of the entry before `first` is taken as it stands: who does not read from the start has its value from
        elsewhere, or trusts the file so far.
        """
        chain, bad, expected = self.chain_before(first), self._done_at(first - 1) if first else -1, first
        self._begin()
        query = "SELECT e.seq, e.body, e.chain, c.at, c.seconds, c.seal FROM entries e LEFT JOIN clock c USING (seq) "
        query += f"WHERE e.seq >= {first:d} " if last is None else f"WHERE e.seq >= {first:d} AND e.seq < {last:d} "
        try:
            for seq, body, stored, at, seconds, seal in self._reading(query + "ORDER BY e.seq"):
                if seq != expected:
                    raise Tampered(bad, f"entry {expected} is missing")
                chain, expected = link(chain, seq, body), expected + 1
                if chain != stored:
                    raise Tampered(bad, "the entry does not match the hash chain")
                if seal is None or _seal(chain, at, seconds) != seal:
                    raise Tampered(bad, "the time of the entry was changed")
                record = decode_record(body)
                bad = rounds_after(record)
                yield Entry(seq, record, chain, at, seconds)
        except Refused as error:
            raise Tampered(bad, str(error)) from error
        except DAMAGE as error:
            raise trouble(self.path, error, bad) from error

    def chain_before(self, seq: int) -> bytes:
        """The chain up to an entry, as it is in the file."""
        if seq == 0:
            return GENESIS
        rows = self.rows(f"SELECT chain FROM entries WHERE seq = {seq - 1:d}", -1, tuple[bytes])
        if not rows:
            raise Tampered(-1, f"entry {seq - 1} is missing")
        chain: bytes = rows[0][0]
        return chain

    def place_of(self, round: int) -> int:
        """The number of the entry of a round, found by halving: what an entry says of its round only grows."""
        low, ((high,),) = 0, self.rows("SELECT coalesce(max(seq), -1) + 1 FROM entries", -1, tuple[int])
        while low < high:
            middle = (low + high) // 2
            if self._done_at(middle) > round:
                high = middle
            else:
                low = middle + 1
        return low

    @property
    def done(self) -> int:
        """How many rounds were made, by the last entry."""
        ((last,),) = self.rows("SELECT coalesce(max(seq), -1) FROM entries", -1, tuple[int])
        done: int = self._done_at(last) if last >= 0 else 0
        return done

    def _done_at(self, seq: int) -> int:
        rows = self.rows(f"SELECT body FROM entries WHERE seq = {seq:d}", -1, tuple[bytes])
        if not rows:
            raise Tampered(-1, f"entry {seq} is missing")
        try:
            return rounds_after(decode_record(rows[0][0]))
        except Refused as error:
            raise Tampered(-1, str(error)) from error

    def rounds(self, first: int = 0, last: int | None = None, before: int | None = None) -> Iterator[Round]:
        """The records of rounds first … last − 1, in order; before: of the first so many entries."""
        for entry in self.entries(self.place_of(first) if first else 0, before):
            if isinstance(entry.record, Round):
                if last is not None and entry.record.round >= last:
                    return
                yield entry.record

    def integrity(self, rounds: int) -> None:
        """SQLite's own check of the file, and no times without an entry."""
        ((verdict,),) = self.rows("PRAGMA integrity_check(1)", -1)
        if verdict != "ok":
            raise Tampered(-1, f"the file is damaged ({verdict})")
        ((strays,),) = self.rows("SELECT count(*) FROM clock WHERE seq NOT IN (SELECT seq FROM entries)", -1)
        if strays:
            raise Tampered(rounds, f"there are {strays} timestamps without an entry")

    def extended(self) -> Extended | None:
        """The last extension. SQLite looks for the type's name in all entries, which is quicker than to decode them."""
        query = f"SELECT body FROM entries WHERE instr(body, x'{b'extended'.hex()}') ORDER BY seq DESC"
        try:
            found = (decode_record(body) for (body,) in self._stream(query, tuple[bytes]))
            return next((record for record in found if isinstance(record, Extended)), None)
        except Refused as error:
            raise Tampered(-1, str(error)) from error

    def start(self) -> Start:
        first = next(self.entries(), None)
        if first is None or not isinstance(first.record, Start):
            raise Tampered(-1, "the ledger has no start")
        return first.record
