"""Sites whose failures cost the others time: each failure in a row doubles the pause until the site is tried again.

A failure is forgiven for every `WELL` seconds (and its own pause) that a site has answered since, so one that answers
once between two failures gains nothing by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 1280.0
"""Seconds until a site that failed is tried again: twice as long after each failure in a row."""
WELL = 300.0
LEFT_OUT_AFTER = 2
"""Failures in a row after which a site is left out of an epoch that begins during its pause."""


@dataclass(frozen=True)
class Failing:
    count: int
    """in a row"""
    at: float
    """when it last failed, or was last forgiven"""
    until: float

    @property
    def pause(self) -> float:
        return min(FIRST_PAUSE * 2.0 ** min(self.count - 1, 60), LONGEST_PAUSE)


class BackOff:
    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._failing: dict[str, Failing] = {}

    def failed(self, site: str) -> Failing:
        before, now = self._failing.get(site), self._clock()
        count = 1 if before is None else before.count + 1
        self._failing[site] = Failing(count, now, now + Failing(count, now, now).pause)
        return self._failing[site]

    def answered(self, site: str) -> None:
        found = self._failing.get(site)
        if found is None or (now := self._clock()) - found.at < found.pause + WELL:
            return
        del self._failing[site]
        if found.count > 1:
            self._failing[site] = Failing(found.count - 1, now, now)

    def may_return(self, site: str) -> bool:
        found = self._failing.get(site)
        return found is None or self._clock() >= found.until

    def left_out(self, sites: Collection[str]) -> set[str]:
        """Who of some sites is not to take part in an epoch that begins now."""
        return {s for s in sites if not self.may_return(s) and self._failing[s].count >= LEFT_OUT_AFTER}
