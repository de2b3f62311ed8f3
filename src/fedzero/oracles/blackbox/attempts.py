"""One attempt: a box called in a thread of its own, and a cancellation that stops its process.

Python cannot end a thread. An attempt that times out is therefore abandoned: its thread goes on, is not waited for when
the program ends, and its outcome is ignored.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from fedzero.lines import printable
from fedzero.oracles.contract import F64

LONGEST = 300
"""Characters kept of an error message."""
QUOTED = 80
"""Characters quoted of a value."""


class Unusable(Exception):
    """An attempt that returned no finite number; the text says what it returned."""


class Cancellation:
    """Kills the process that an attempt has started, if it has, with its children. sent, received: the bytes of the
    attempt over a network, so far."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def watch(self, process: subprocess.Popen[bytes] | None) -> None:
        """The process to kill, which leads a group of its own; None: there is none any more."""
        with self._lock:
            self._process = process
            if self._cancelled:
                self._kill()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            self._kill()

    def _kill(self) -> None:
        # Once it was waited for, its number may be another process's.
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


Call = Callable[[F64, float | None, Cancellation], Any]
"""(points (n, d), seconds that an attempt may take, cancellation) → n values, unchecked."""

Outcome = tuple[int, list[float] | str]
"""Number of an attempt; its values, not finite where the box has none, or why it failed."""


def launch(number: int, call: Call, points: F64, timeout: float | None, outcomes: SimpleQueue[Outcome]) -> Cancellation:
    """Begin an attempt, which puts its outcome into the queue."""
    cancellation = Cancellation()

    def run() -> None:
        try:
            outcomes.put((number, floats(call(points, timeout, cancellation), len(points))))
        except Unusable as error:
            outcomes.put((number, short(str(error))))
        except BaseException as error:  # whatever a user's function raises is its failure and not ours
            outcomes.put((number, short(f"it raised {type(error).__name__}: {error}")))

    threading.Thread(target=run, name=f"fedzero-attempt-{number}", daemon=True).start()
    return cancellation


def short(text: str, longest: int = LONGEST) -> str:
    """On one line, visible, and not too long."""
    return printable(text, longest)


def quoted(value: Any) -> str:
    return short(repr(value), QUOTED)


def numbers(values: Any, count: int) -> list[float]:
    """`count` finite numbers, or `Unusable`."""
    found = floats(values, count)
    for value in found:
        if not math.isfinite(value):
            raise Unusable(no_value(value))
    return found


def no_value(value: float) -> str:
    """Why a number is no value of a function."""
    return f"it gave {value}, which is not a finite number"


def floats(values: Any, count: int) -> list[float]:
    """`count` numbers, finite or not, or `Unusable`. Minus zero comes back as zero, as a database would read it."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise Unusable(f"it gave {quoted(values)}, which is no array of numbers ({error})") from None
    if array.dtype.kind not in "iuf":
        raise Unusable(f"it gave {quoted(values)}, which is no number")
    if array.shape != (count,) and (count, array.size) != (1, 1):
        raise Unusable(f"it gave an array of shape {array.shape} where {count} number(s) were asked for")
    return [float(value) for value in array.reshape(count).astype(np.float64) + 0.0]
