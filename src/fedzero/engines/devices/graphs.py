"""The graph of a run, as devices fetch it: pieces of a file that was compared with its SHA-256 when it was opened."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from fedzero.errors import FedzeroError

AT_ONCE = 1 << 20


class GraphFile:
    """sha256, size: of the content, which is read from the disk piece by piece."""

    def __init__(self, path: Path, sha256: bytes):
        self.path, self.sha256 = path, sha256
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        hasher, self.size = hashlib.sha256(), 0
        while data := os.pread(self._file, AT_ONCE, self.size):
            hasher.update(data)
            self.size += len(data)
        if hasher.digest() != sha256:
            self.close()
            raise FedzeroError(f"task.graph = '{path}' has changed since the run was prepared")

    def piece(self, offset: int, length: int) -> bytes | None:
        """So many bytes from an offset on, fewer at the end; None if there is no such offset."""
        return None if offset > self.size else os.pread(self._file, length, offset)

    def close(self) -> None:
        os.close(self._file)
