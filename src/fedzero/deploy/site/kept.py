"""The folders that a site keeps, one for each run: the latest model, and the memories of clients.

A server may begin as many runs as it likes, so folders and bytes are limited. The least recently used folder is removed
first; a run in progress, in this process or another, is never touched.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile("[0-9a-f]{24}")
LOCK = ".running"
"""The file in a folder that every process working on its run locks."""


class Held:
    """The folder of a run in progress, protected from removal until `release` or the end of the process."""

    def __init__(self, folder: Path):
        while True:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # it was removed a moment ago: make it again
                self._file = (folder / LOCK).open("a")
                fcntl.flock(self._file, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(self._file.fileno()), (folder / LOCK).stat()):
                    break
        os.utime(folder)  # the last use

    def release(self) -> None:
        self._file.close()


def sizes(keep: Path) -> dict[Path, int]:
    """Bytes of every folder, the least recently used first."""
    found = [path for path in keep.iterdir() if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
    found.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    return {path: _whole_size(path) for path in found}


def _whole_size(path: Path) -> int:
    """Bytes of a folder and its subfolders; links are not followed."""
    return sum(_size(Path(at, name)) for at, folders, files in os.walk(path) for name in (*folders, *files))


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0


def surplus(folders: dict[str, int], most: int, most_bytes: int) -> list[str]:
    """The folders to remove, in order, so that no more than `most` folders and `most_bytes` bytes remain."""
    left, total = len(folders), sum(folders.values())
    gone = []
    for name, size in folders.items():
        if left <= most and total <= most_bytes:
            break
        gone.append(name)
        left, total = left - 1, total - size
    return gone


def tidy(keep: Path, most: int, most_bytes: int, answers: Mapping[str, int] = {}) -> list[str]:
    """Remove idle folders until at most so many, of at most so many bytes, remain; returns the removed names.

    answers: by name, bytes of the run's answers, which are stored elsewhere."""
    folders, removed = sizes(keep), []
    idle = {path.name: size + answers.get(path.name, 0) for path, size in folders.items() if not _in_use(path)}
    for name in surplus(idle, most, most_bytes):
        with _alone(keep / name) as alone:
            if alone:
                shutil.rmtree(keep / name, ignore_errors=True)
                removed.append(name)
    return removed


def _in_use(path: Path) -> bool:
    with _alone(path) as alone:
        return not alone


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether no process works on the run of a folder; if so, none can begin inside the block."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)
