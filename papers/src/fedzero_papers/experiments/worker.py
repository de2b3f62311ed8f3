"""A worker: a process of its own that makes one run after the other and says how far it is.

It lives as long as its parent. A kill of either loses nothing but the round in progress: every run is a ledger.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from msgspec import Struct

from fedzero.errors import FedzeroError
from fedzero.ledger.records import Evaluation, Round
from fedzero.run import recipe as recipes
from fedzero.run import session
from fedzero.run.recipe import Recipe

SPOKEN_EVERY = 0.25
"""Seconds between two words about progress."""


class Order(Struct, frozen=True):
    """Make this run, or go on with it."""

    folder: str
    recipe: bytes
    resume: bool
    data: str | None


class Progress(Struct, frozen=True):
    """So many of all rounds are done; `begun` is how many were there before this process came."""

    done: int
    rounds: int
    begun: int


class Done(Struct, frozen=True):
    """The run is finished."""


class Failed(Struct, frozen=True):
    """It cannot be made; `trace` is empty if the sentence says it all."""

    sentence: str
    trace: str = ""


Message = Progress | Done | Failed


class Speaking:
    """A watch that tells the parent."""

    def __init__(self, line: Connection):
        self._line, self._last, self._rounds, self._begun = line, 0.0, 0, 0

    def begin(self, recipe: Recipe, parameters: int, done: Sequence[Round]) -> None:
        self._rounds, self._begun = recipe.rounds, len(done)
        self._line.send(Progress(len(done), self._rounds, self._begun))

    def round(self, record: Round) -> None:
        if time.monotonic() - self._last >= SPOKEN_EVERY:
            self._last = time.monotonic()
            self._line.send(Progress(record.round + 1, self._rounds, self._begun))

    def evaluation(self, record: Evaluation) -> None: ...

    def end(self) -> None: ...


def serve(line: Connection) -> None:
    """Take orders until the parent hangs up."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while True:
        try:
            order: Order = line.recv()
        except EOFError:
            return
        line.send(_obey(order, line))


def _obey(order: Order, line: Connection) -> Message:
    folder, environment = Path(order.folder), session.Environment(Path(order.data) if order.data else None)
    try:
        if order.resume:
            session.resume(folder, environment, Speaking(line))
        else:
            session.start(recipes.from_canonical(order.recipe), folder, environment, Speaking(line))
    except FedzeroError as error:
        return Failed(str(error))
    except Exception as error:  # a bug, or a full disk: the parent writes the trace down and stops
        return Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
    return Done()


def _die_with_parent() -> None:
    """A parent that was killed cannot say so, and an orphan would keep its run's folder locked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
