"""Recipes that wait for a supervisor, and the supervisor they wait for: files in a project's folder.

PROJECT/queue/*.json    recipes in the order they came, each until its run has ended
PROJECT/serve.json      the supervisor's process, while there is one
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from fedzero.errors import FedzeroError
from fedzero.model import files
from fedzero.run import recipe as recipes
from fedzero.run.recipe import Recipe

QUEUE, SUPERVISOR = "queue", "serve.json"


class Process(Struct, frozen=True):
    """A process, told from a later one with the same number by when it began."""

    pid: int
    began: str


def submit(project: Path, recipe: Recipe) -> Path:
    """Put a recipe in the queue."""
    queue = project / QUEUE
    path = queue / f"{time.time_ns():020d}-{recipe.name}.json"
    files.write(path, recipes.canonical(recipe))
    return path


def first(project: Path) -> tuple[Path, Recipe] | None:
    """The recipe that is next."""
    for path in sorted((project / QUEUE).glob("*.json")):
        try:
            return path, recipes.from_canonical(path.read_bytes())
        except msgspec.DecodeError as error:
            raise FedzeroError(f"{path}: {error}; remove it") from error
    return None


def waiting(project: Path) -> list[str]:
    """Names of the recipes in the queue."""
    return [path.stem.split("-", 1)[1] for path in sorted((project / QUEUE).glob("*.json"))]


def supervisor(project: Path) -> int | None:
    """The process that serves a project, if one does."""
    try:
        found = msgspec.json.decode((project / SUPERVISOR).read_bytes(), type=Process)
    except (OSError, msgspec.DecodeError):
        return None
    return found.pid if _began(found.pid) == found.began else None


@contextmanager
def supervising(project: Path) -> Iterator[None]:
    """One supervisor at a time. It ends by SIGTERM as by Ctrl-C: what a shell starts behind an & does not hear that."""
    other = supervisor(project)
    if other is not None:
        raise FedzeroError(f"process {other} serves {project} already: `fedzero stop {project}` ends it")
    path = project / SUPERVISOR
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        path.write_bytes(msgspec.json.encode(Process(os.getpid(), _began(os.getpid()))))
        yield
    finally:
        path.unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, before)


def stop(project: Path, seconds: float = 30.0) -> bool:
    """End the supervisor as Ctrl-C would; whether there was one. Its run can be gone on with."""
    pid = supervisor(project)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + seconds
    while supervisor(project) is not None:
        if time.monotonic() > end:
            raise FedzeroError(f"process {pid} does not end; it may be in the middle of something long")
        time.sleep(0.1)
    return True


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
