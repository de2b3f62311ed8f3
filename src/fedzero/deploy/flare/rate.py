"""How often something may happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class Rate:
    """So many at once, and so many a second."""

    def __init__(self, at_once: float, a_second: float, clock: Callable[[], float] = time.monotonic):
        self._most, self._a_second, self._clock = at_once, a_second, clock
        self._left, self._looked, self._lock = at_once, clock(), Lock()

    def wait(self) -> float:
        """0: it may happen now, and is counted. Otherwise the seconds until it may."""
        with self._lock:
            now = self._clock()
            self._left = min(self._most, self._left + (now - self._looked) * self._a_second)
            self._looked = now
            if self._left < 1:
                return (1 - self._left) / self._a_second
            self._left -= 1
            return 0.0
