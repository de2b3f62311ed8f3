"""A worker: a process of its own that makes one run after the other and says how far it is.

It lives as long as its parent. A kill of either loses nothing but the round in progress: every run is a ledger.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from fedzero.errors import FedzeroError
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import Round
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs import session
from fedzero.runs.progress import Silent

REPORT_EVERY = 0.25
"""Seconds between two reports of progress."""


@dataclass(frozen=True)
class Order:
    """Make this run, or resume it."""

    recipe: Recipe
    folder: Path
    resume: bool
    data: Path | None


@dataclass(frozen=True)
class Progress:
    """So many of all rounds are done; `begun` is how many were there before this process came."""

    done: int
    rounds: int
    begun: int


@dataclass(frozen=True)
class Done:
    """The run is finished."""


@dataclass(frozen=True)
class Failed:
    """It cannot be made; `trace` is empty if the sentence says it all."""

    sentence: str
    trace: str = ""


Message = Progress | Done | Failed
Send = Callable[[Progress], None]


class ProgressSender(Silent):
    """A watch that tells the parent."""

    def __init__(self, send: Send):
        self._send, self._last, self._rounds, self._begun = send, 0.0, 0, 0

    def begin(self, recipe: Recipe, parameters: int, done: LedgerSummary) -> None:
        self._rounds, self._begun = recipe.rounds, done.done
        self._send(Progress(done.done, self._rounds, self._begun))

    def round(self, record: Round) -> None:
        if time.monotonic() - self._last >= REPORT_EVERY:
            self._last = time.monotonic()
            self._send(Progress(record.round + 1, self._rounds, self._begun))


def serve(connection: Connection) -> None:
    """Take orders until the parent closes the connection."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            order: Order = connection.recv()
        except EOFError:
            return
        connection.send(execute(order, connection.send))


def execute(order: Order, send: Send) -> Message:
    environment, watch = Environment(order.data), ProgressSender(send)
    try:
        if order.resume:
            session.resume(order.folder, environment, watch)
        else:
            session.start(order.recipe, order.folder, environment, watch)
    except FedzeroError as error:
        return Failed(str(error))
    except Exception as error:  # a bug, or a full disk: the parent writes the trace down and stops
        return Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
    return Done()


def _end_with_parent() -> None:
    """A parent that was killed cannot say so, and an orphan would keep its run's folder locked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
