"""One attempt: a box called in a thread of its own, and a leash to stop it by.

Python cannot end a thread. An attempt that does not come back in time is therefore abandoned: its thread goes on behind
the scenes, is not waited for when the program ends, and what it says later is not listened to.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from fedzero.oracles.contract import F64

LONGEST = 300
"""Characters that are kept of what a box complained about."""
QUOTED = 80
"""Characters that are quoted of what it gave."""


class Unusable(Exception):
    """An attempt that brought no finite number; the text says what it brought instead."""


class Cancellation:
    """Stops the process that an attempt has started, if it has, with everything that process started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cut = False

    def hold(self, process: subprocess.Popen[bytes] | None) -> None:
        """Take hold of a process that leads a group of its own, or let go."""
        with self._lock:
            self._process = process
            if self._cut:
                self._kill()

    def cut(self) -> None:
        with self._lock:
            self._cut = True
            self._kill()

    def _kill(self) -> None:
        # Once it was waited for, its number may belong to somebody else.
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


Call = Callable[[F64, float | None, Cancellation], Any]
"""(points (n, d), seconds that an attempt may take, leash) → n values, unchecked."""

Landed = tuple[int, list[float] | str]
"""Number of an attempt; its values, or why it has none."""


def launch(number: int, call: Call, points: F64, timeout: float | None, landed: SimpleQueue[Landed]) -> Cancellation:
    """Begin an attempt; what comes of it is put into `landed`."""
    leash = Cancellation()

    def run() -> None:
        try:
            landed.put((number, numbers(call(points, timeout, leash), len(points))))
        except BaseException as error:  # whatever somebody's function raises is its failure and not ours
            landed.put((number, cause_of(error)))

    threading.Thread(target=run, name=f"fedzero-attempt-{number}", daemon=True).start()
    return leash


def cause_of(error: BaseException) -> str:
    """One line that says why an attempt failed."""
    text = str(error) if isinstance(error, Unusable) else f"it raised {type(error).__name__}: {error}"
    return short(text)


def short(text: str, longest: int = LONGEST) -> str:
    """On one line, and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def quoted(value: Any) -> str:
    return short(repr(value), QUOTED)


def numbers(values: Any, count: int) -> list[float]:
    """`count` finite numbers, or `Unusable`. Minus zero comes back as zero, as a database would read it."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise Unusable(f"it gave {quoted(values)}, which is no array of numbers ({error})") from None
    if array.dtype.kind not in "iuf":
        raise Unusable(f"it gave {quoted(values)}, which is no number")
    if array.shape != (count,) and (count, array.size) != (1, 1):
        raise Unusable(f"it gave an array of shape {array.shape} where {count} number(s) were asked for")
    result = array.reshape(count).astype(np.float64) + 0.0
    for value in result[~np.isfinite(result)][:1]:
        raise Unusable(f"it gave {value}, which is not a finite number")
    return [float(value) for value in result]
