"""What must outlast the process, in one SQLite file: the key, the place, the plan, answers, the model.

An answer is on disk before it leaves, so the same order gets the same bytes after a crash. The model is written now and
then: what it lacks after a crash, the gateway sends again.
"""

from __future__ import annotations

import os
import sqlite3
from hashlib import sha256
from pathlib import Path

from fedzero_client.errors import ClientError

FILE = "device.db"
KEPT = 64
"""Rounds whose answers are kept."""
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS answers (round INTEGER, exchange INTEGER, attempt INTEGER, asked BLOB NOT NULL,"
    " body BLOB NOT NULL, signature BLOB NOT NULL, PRIMARY KEY (round, exchange, attempt)) STRICT",
    "CREATE TABLE IF NOT EXISTS model (id INTEGER PRIMARY KEY CHECK (id = 1), round INTEGER NOT NULL,"
    " digest BLOB NOT NULL, state BLOB NOT NULL) STRICT",
)


class Store:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = sqlite3.connect(path, timeout=1, isolation_level=None)
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA synchronous = FULL")
            for each in SCHEMA:
                self._db.execute(each)
            self._db.execute("BEGIN EXCLUSIVE")
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise ClientError(f"{path}: {error}; is another client at work in this folder?") from error

    def close(self) -> None:
        self._db.close()

    def get(self, name: str) -> bytes | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def put(self, **values: bytes) -> None:
        """All of them, or none."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", values.items())
        self._db.execute("COMMIT")

    @property
    def seed(self) -> bytes:
        """The secret key; made at the first call."""
        found = self.get("seed")
        if found is None:
            found = os.urandom(32)
            self.put(seed=found)
        return found

    def answer(self, round: int, exchange: int, attempt: int) -> tuple[bytes, bytes, bytes] | None:
        """(SHA-256 of the order, body, signature) of an answer that was given."""
        where = "WHERE round = ? AND exchange = ? AND attempt = ?"
        clause = f"SELECT asked, body, signature FROM answers {where}"
        found: tuple[bytes, bytes, bytes] | None = self._db.execute(clause, (round, exchange, attempt)).fetchone()
        return found

    def keep(
        self, round: int, exchange: int, attempt: int, order: bytes, body: bytes, signature: bytes, most: int = KEPT
    ) -> None:
        row = round, exchange, attempt, sha256(order).digest(), body, signature
        self._db.execute("BEGIN")
        self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?)", row)
        self._db.execute("DELETE FROM answers WHERE round < ?", (round - most,))
        self._db.execute("COMMIT")

    # ---- graphs: files beside the database, by their SHA-256

    def _graph(self, sha256: bytes, whole: bool = True) -> Path:
        return self.folder / f"{sha256.hex()}.{'onnx' if whole else 'part'}"

    def graph(self, sha: bytes, size: int) -> bytes | None:
        """The content of a graph that is here as a whole. A file that is another one is deleted."""
        part, whole = self._graph(sha, False), self._graph(sha)
        if self.graph_length(sha) == size:
            part.replace(whole)
        try:
            content = whole.read_bytes() if whole.stat().st_size == size else b""
        except OSError:
            return None
        if sha256(content).digest() == sha:
            return content
        whole.unlink()
        return None

    def graph_length(self, sha: bytes) -> int:
        """Bytes of a graph that have come."""
        try:
            return self._graph(sha, False).stat().st_size
        except OSError:
            return 0

    def add_to_graph(self, sha: bytes, data: bytes) -> None:
        with self._graph(sha, False).open("ab") as file:
            file.write(data)

    def forget_graph(self, sha: bytes) -> None:
        self._graph(sha, False).unlink(missing_ok=True)

    def model(self) -> tuple[int, bytes, bytes] | None:
        """(round, digest, state)"""
        found: tuple[int, bytes, bytes] | None
        found = self._db.execute("SELECT round, digest, state FROM model").fetchone()
        return found

    def write_model(self, round: int, digest: bytes, state: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO model VALUES (1, ?, ?, ?)", (round, digest, state))
