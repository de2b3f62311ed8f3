"""The memories of a site's clients, in the folder of its run."""

from __future__ import annotations

from pathlib import Path

from fedzero.engines.memories import Remembered
from fedzero.errors import Refused
from fedzero.model import files


class NotesOnDisk:
    """Memories of clients, one file each. size: bytes of all."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.size = sum(path.stat().st_size for path in folder.glob("client-*.notes"))

    def _path(self, client: int) -> Path:
        return self._folder / f"client-{client}.notes"

    def read(self, client: int) -> Remembered:
        path = self._path(client)
        return Remembered.of(files.read(path, files.memory())) if path.exists() else Remembered()

    def write(self, client: int, round: int, memory: Remembered) -> None:
        """Store a memory. A process that was suspended must not overwrite the memory that its successor wrote."""
        path, before, packed = self._path(client), b"", memory.packed()
        if path.exists() and (written := Remembered.of(before := files.read(path, files.memory())).latest) > round:
            raise Refused(f"a newer process already wrote round {written}")
        files.write(path, packed, durable=True)
        self.size += len(packed) - len(before)
