"""The folders that a site keeps, one for each run: the last model that it had, and what its clients remember.

A server may begin as many runs as it likes, so there is a limit to folders and to bytes. What goes is what was used
least lately; a run that goes on, in this process or another, is never touched.
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
"""In a folder: locked by every process that works on its run."""


class Held:
    """The folder of a run that goes on; nobody removes it meanwhile. Given up with the process, or this object."""

    def __init__(self, folder: Path):
        while True:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # removed a moment ago: it is made again
                self._file = (folder / LOCK).open("a")
                fcntl.flock(self._file, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(self._file.fileno()), (folder / LOCK).stat()):
                    break
        os.utime(folder)  # the last use

    def release(self) -> None:
        self._file.close()


def sizes(keep: Path) -> dict[Path, int]:
    """Bytes of every folder, those used least lately first."""
    found = [path for path in keep.iterdir() if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
    found.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    return {path: sum(_size(each) for each in path.iterdir()) for path in found}


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0


def surplus(folders: dict[str, int], most: int, most_bytes: int) -> list[str]:
    """Which of some folders have to go, in the order in which they should."""
    left, total = len(folders), sum(folders.values())
    gone = []
    for name, size in folders.items():
        if left <= most and total <= most_bytes:
            break
        gone.append(name)
        left, total = left - 1, total - size
    return gone


def tidy(keep: Path, most: int, most_bytes: int, answers: Mapping[str, int] = {}) -> list[str]:
    """Remove folders until no more than so many, of so many bytes, are there beside those in use; their names.

    answers: bytes of the answers that are kept of a run elsewhere."""
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
    """Whether no process works on the run of a folder, while this lasts."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)
