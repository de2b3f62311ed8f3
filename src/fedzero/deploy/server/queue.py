"""The queue of recipes that wait for a supervisor, and the supervisor's process: files in a project's folder.

PROJECT/queue/*.json    recipes in the order they came, each until its run has ended
PROJECT/serve.json      the supervisor's process, while there is one
PROJECT/serve.lock      locked by it
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from fedzero.errors import FedzeroError
from fedzero.model import files
from fedzero.model.decoding import MALFORMED
from fedzero.recipe import recipe as recipes
from fedzero.recipe.recipe import Recipe

QUEUE, SUPERVISOR, LOCK = "queue", "serve.json", "serve.lock"


class Process(Struct, frozen=True):
    """A process; its start time distinguishes it from a later process with the same number."""

    pid: int
    began: float

    @staticmethod
    def of(pid: int) -> Process | None:
        """`began` counts from the start of the machine: it does not change when the clock is set."""
        try:
            return Process(pid, round(psutil.Process(pid).create_time() - psutil.boot_time(), 2))
        except (psutil.NoSuchProcess, ValueError, OverflowError):  # a file may hold any number
            return None


class Supervisor(Process, frozen=True):
    """The content of `serve.json`: the process, and the folder of the run that it plays."""

    run: str | None = None


def submit(project: Path, recipe: Recipe) -> None:
    """Put a recipe in the queue."""
    files.write(project / QUEUE / f"{time.time_ns():020d}-{recipe.name}.json", recipes.canonical(recipe))


def entries(project: Path) -> list[Path]:
    """The recipes in the queue, the next one first."""
    return sorted((project / QUEUE).glob("*.json"))


def name_of(entry: Path) -> str:
    return entry.stem.split("-", 1)[-1]


def supervisor(project: Path) -> Supervisor | None:
    """The process that serves a project, if one does."""
    try:
        found = msgspec.json.decode(files.read(project / SUPERVISOR, files.SMALL), type=Supervisor)
    except (OSError, *MALFORMED):
        return None
    return found if Process.of(found.pid) == Process(found.pid, found.began) else None


@contextmanager
def supervising(project: Path) -> Iterator[Callable[[Path | None], None]]:
    """Be the only supervisor of a project inside the block; yields a function to record the run in progress."""
    with _locked(project):
        yield from _recording(project)


@contextmanager
def _locked(project: Path) -> Iterator[None]:
    """The lock ends with the process, so nobody has to remove it; its file stays."""
    with (project / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _served(project, supervisor(project)) from None
        if (other := supervisor(project)) is not None:  # of a release that had no lock
            raise _served(project, other)
        yield


def _served(project: Path, other: Supervisor | None) -> FedzeroError:
    who = "another process" if other is None else f"process {other.pid}"
    return FedzeroError(f"{who} already serves {project}: `fedzero stop {project}` ends it")


def _recording(project: Path) -> Iterator[Callable[[Path | None], None]]:
    path = project / SUPERVISOR
    me = Process.of(os.getpid())
    assert me is not None

    def playing(folder: Path | None) -> None:
        run = None if folder is None else str(folder.resolve())
        files.write(path, msgspec.json.encode(Supervisor(me.pid, me.began, run)))

    try:
        playing(None)
        yield playing
    finally:
        path.unlink(missing_ok=True)


def stop(project: Path, seconds: float = 30.0) -> bool:
    """End the supervisor as Ctrl-C would; returns whether there was one. Its run can be resumed."""
    found = supervisor(project)
    if found is None:
        return False
    os.kill(found.pid, signal.SIGTERM)
    end = time.monotonic() + seconds
    while supervisor(project) is not None:
        if time.monotonic() > end:
            raise FedzeroError(f"process {found.pid} has not ended after {seconds:g} s: try again later, or kill it")
        time.sleep(0.1)
    return True
