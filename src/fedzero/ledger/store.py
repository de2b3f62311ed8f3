"""The ledger: a run in one SQLite file.

Entries form a hash chain, chain_n = SHA-256(chain_{n−1} ‖ seq ‖ body). Write-ahead log and full sync: an append that
returned is on disk, one that did not return is absent; nothing is ever half there. Wall-clock times are sealed to their
entry but stand outside the chain, so an interrupted run and an undisturbed one end in the same chain.
"""

from __future__ import annotations

import fcntl
import hashlib
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedzero.errors import FedzeroError
from fedzero.ledger.records import Record, Start, decode_record, encode_record, round_of

FORMAT = 1
_GENESIS = hashlib.sha256(b"fedzero ledger 1").digest()
_SCHEMA = """
CREATE TABLE entries (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, chain BLOB NOT NULL) STRICT;
CREATE TABLE clock (seq INTEGER PRIMARY KEY, at REAL NOT NULL, seconds REAL NOT NULL, seal BLOB NOT NULL) STRICT;
CREATE TABLE dense (round INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE checkpoint (round INTEGER NOT NULL, steps INTEGER NOT NULL, part INTEGER PRIMARY KEY, body BLOB NOT NULL)
  STRICT;
"""
_PART = 256 << 20
"""Checkpoints are cut into pieces of this many bytes: SQLite takes no blob above 1 GB."""


class Tampered(FedzeroError):
    """The file does not say what was written; `round` is the first bad one (−1: the start)."""

    def __init__(self, round: int, reason: str):
        where = "before the first round" if round < 0 else f"round {round}"
        super().__init__(f"{where}: {reason}")
        self.round = round


@dataclass(frozen=True)
class Entry:
    seq: int
    record: Record
    chain: bytes
    at: float
    seconds: float


@dataclass(frozen=True)
class Checkpoint:
    """State of a dense run: the model as of `round` rounds, and the dense updates since."""

    round: int
    steps: int
    state: bytes


def link(chain: bytes, seq: int, body: bytes) -> bytes:
    return hashlib.sha256(chain + struct.pack("<q", seq) + body).digest()


def _seal(chain: bytes, at: float, seconds: float) -> bytes:
    return hashlib.sha256(chain + struct.pack("<dd", at, seconds)).digest()[:8]


class Ledger:
    """An open ledger. Writers hold a lock on the file; readers need none."""

    def __init__(self, path: Path, writable: bool):
        self.path = path
        self._lock = path.open("rb") if writable else None
        if self._lock is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FedzeroError(f"{path} is being written by another process: wait for it or stop it") from None
        self._db = sqlite3.connect(path, isolation_level=None)
        if writable:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
        self._seq, self._chain = -1, _GENESIS
        if writable:
            row = self._db.execute("SELECT seq, chain FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
            if row is not None:
                self._seq, self._chain = row

    @staticmethod
    def create(path: Path, start: Start) -> Ledger:
        """A new ledger with its first entry. Appears under its name only when both are on disk."""
        draft = path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        db = sqlite3.connect(draft, isolation_level=None)
        db.executescript(f"PRAGMA user_version = {FORMAT}; {_SCHEMA}")
        db.close()
        ledger = Ledger(draft, writable=True)
        ledger.append([start], 0.0)
        ledger.close()
        draft.replace(path)
        return Ledger(path, writable=True)

    @staticmethod
    def open(path: Path, writable: bool = False) -> Ledger:
        if not path.exists():
            raise FedzeroError(f"{path} does not exist: name a folder made by `fedzero run`")
        try:
            with sqlite3.connect(path) as probe:
                (version,) = probe.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError as error:
            raise Tampered(-1, f"{path} is not a readable ledger ({error})") from error
        if version != FORMAT:
            raise FedzeroError(f"{path} has ledger format {version}; this release reads format {FORMAT}")
        return Ledger(path, writable)

    def close(self) -> None:
        """Fold the write-ahead log into the one file and let go of the lock."""
        if self._lock is not None:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._db.close()
            self._lock.close()
        else:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def append(
        self,
        records: Sequence[Record],
        seconds: float,
        dense: tuple[int, bytes] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Write entries (with a dense update or a checkpoint, if any) in one durable transaction."""
        seq, chain, at = self._seq, self._chain, time.time()
        with self._transaction():
            for record in records:
                seq, body = seq + 1, encode_record(record)
                chain = link(chain, seq, body)
                self._db.execute("INSERT INTO entries VALUES (?, ?, ?)", (seq, body, chain))
                self._db.execute("INSERT INTO clock VALUES (?, ?, ?, ?)", (seq, at, seconds, _seal(chain, at, seconds)))
            if dense is not None:
                self._db.execute("INSERT INTO dense VALUES (?, ?)", dense)
            if checkpoint is not None:
                self._write_checkpoint(checkpoint)
        self._seq, self._chain = seq, chain

    def _write_checkpoint(self, c: Checkpoint) -> None:
        self._db.execute("DELETE FROM checkpoint")
        for part in range(max(1, -(-len(c.state) // _PART))):
            piece = c.state[part * _PART : (part + 1) * _PART]
            self._db.execute("INSERT INTO checkpoint VALUES (?, ?, ?, ?)", (c.round, c.steps, part, piece))
        self._db.execute("DELETE FROM dense WHERE round < ?", (c.round,))

    def checkpoint(self) -> Checkpoint | None:
        rows = self._db.execute("SELECT round, steps, body FROM checkpoint ORDER BY part").fetchall()
        return Checkpoint(rows[0][0], rows[0][1], b"".join(row[2] for row in rows)) if rows else None

    def dense_updates(self) -> dict[int, bytes]:
        """Dense updates not yet in the checkpoint, by round."""
        return dict(self._db.execute("SELECT round, body FROM dense ORDER BY round").fetchall())

    @property
    def head(self) -> bytes:
        """The last link of the chain: two ledgers with the same head tell the same story."""
        row = self._db.execute("SELECT chain FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        return row[0] if row else _GENESIS

    def entries(self) -> Iterator[Entry]:
        """All entries in order, each checked against the chain and the clock's seal as it is read."""
        chain, last, expected = _GENESIS, -1, 0
        query = "SELECT e.seq, e.body, e.chain, c.at, c.seconds, c.seal FROM entries e LEFT JOIN clock c USING (seq) "
        try:
            for seq, body, stored, at, seconds, seal in self._db.execute(query + "ORDER BY e.seq"):
                bad = last + 1 if expected > 0 else -1
                if seq != expected:
                    raise Tampered(bad, f"entry {expected} is missing")
                chain, expected = link(chain, seq, body), expected + 1
                if chain != stored:
                    raise Tampered(self._claimed_round(body, bad), "the entry does not match the hash chain")
                record = decode_record(body)
                last = round_of(record)
                if seal is None or _seal(chain, at, seconds) != seal:
                    raise Tampered(last, "the time of the entry was changed")
                yield Entry(seq, record, chain, at, seconds)
        except (sqlite3.DatabaseError, msgspec.DecodeError) as error:
            raise Tampered(last + 1, f"the file is damaged ({error})") from error

    @staticmethod
    def _claimed_round(body: bytes, fallback: int) -> int:
        try:
            return round_of(decode_record(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return fallback

    def integrity(self) -> None:
        """SQLite's own check of the file, and that no table holds rows the entries do not know of."""
        try:
            (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            strays = self._db.execute(
                "SELECT count(*) FROM clock WHERE seq NOT IN (SELECT seq FROM entries)"
            ).fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise Tampered(-1, f"the file is damaged ({error})") from error
        if verdict != "ok":
            raise Tampered(-1, f"the file is damaged ({verdict})")
        if strays:
            raise Tampered(-1, f"{strays} times belong to no entry")

    def start(self) -> Start:
        first = next(self.entries(), None)
        if first is None or not isinstance(first.record, Start):
            raise Tampered(-1, "the ledger has no start")
        return first.record
