"""The file: entries, the hash chain, dense updates and the checkpoint (docs/ledger.md, "The file" and "Entries")."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np


@dataclass(frozen=True)
class File:
    entries: list[dict[str, Any]]
    dense: dict[int, bytes]
    checkpoint: bytes
    head: bytes

    @property
    def start(self) -> dict[str, Any]:
        return self.entries[0]

    @property
    def recipe(self) -> dict[str, Any]:
        """In force: that of the start, with what the last extension changes."""
        found: dict[str, Any] = json.loads(self.start["recipe"])
        for extended in self.of("extended"):
            counts = {name: extended[name] for name in ("rounds", "evaluate_every")}
            found |= counts | {"stop": json.loads(extended["stop"])}
        return found

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["type"] == kind]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["type"] in ("round", "private-round", "timed-round")]

    @property
    def marks(self) -> dict[int, bytes]:
        """Digests of the model on record, by the number of rounds before them."""
        return {entry["round"]: entry["model"] for entry in (*self.of("evaluation"), *self.of("end"))}


def read(path: Path) -> File:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)
        rows = db.execute("SELECT seq, body, chain, at, seconds, seal FROM entries JOIN clock USING (seq) ORDER BY seq")
        entries, head = [], hashlib.sha256(b"fedzero ledger 1").digest()
        for place, (seq, body, chain, at, seconds, seal) in enumerate(rows.fetchall()):
            head = hashlib.sha256(head + struct.pack("<q", seq) + body).digest()
            assert seq == place
            assert head == chain
            assert hashlib.sha256(head + struct.pack("<dd", at, seconds)).digest()[:8] == seal
            entries.append(msgspec.msgpack.decode(body))
        dense = dict(db.execute("SELECT round, body FROM dense").fetchall())
        parts = db.execute("SELECT body FROM checkpoint ORDER BY part").fetchall()
    return File(entries, dense, b"".join(body for (body,) in parts), head)


def floats(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f4")


def tensors_of(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """(type, shape, bytes) of the tensors of a safetensors file, in the order of its metadata where that has one."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    about, data = header.pop("__metadata__", {}), content[8 + length :]
    names = json.loads(about["order"]) if "order" in about else list(header)
    return {n: (header[n]["dtype"], header[n]["shape"], data[slice(*header[n]["data_offsets"])]) for n in names}
