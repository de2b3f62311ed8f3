"""The queries that a site makes in a day: at most so many in any 24 hours, whatever its clock does.

    at(spent, now)        the queries that still count at a time
    wait(spent, …)        the time until more queries fit

Queries are kept by the hour. An hour counts until 24 hours after its end, so granted queries count for 24 to 25 hours.
Within a process the monotonic clock is used: setting the clock of the machine changes nothing. A process that starts
counts queries with a time in the future as spent now, so a clock that was ahead for a while locks the site for at most
a day.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from fedzero.errors import Sendable
from fedzero.model import files
from fedzero.model.numbers import Natural

HOUR, DAY = 3600, 86400
SPENT = "spent.json"
"""The file with the queries of a day, in the folder that outlasts a restart."""
AHEAD = 100
"""One in so many of a day's queries is recorded ahead."""
T = TypeVar("T", bound=Hashable)


class Spent(Struct, frozen=True, omit_defaults=True):
    """The content of the file: queries by hours since 1970. day, queries: the same by days, as 0.2.0 wrote it."""

    hours: tuple[tuple[Natural, Natural], ...] = ()
    day: Natural = 0
    queries: Natural = 0

    @property
    def total(self) -> int:
        return sum(queries for _, queries in self.hours)


def at(spent: Spent, now: float) -> Spent:
    """The queries that count at a time: none older than a day, and those of the future as if they were made now."""
    hour, counting = int(now // HOUR), dict[int, int]()
    by_days = ((24 * spent.day + 23, spent.queries),) if spent.queries else ()
    for then, queries in (*spent.hours, *by_days):
        when = min(then, hour)
        if _free(when) > now:
            counting[when] = counting.get(when, 0) + queries
    return Spent(tuple(sorted(counting.items())))


def _free(hour: int) -> int:
    """The time from which the queries of an hour no longer count."""
    return (hour + 1) * HOUR + DAY


def with_queries(spent: Spent, queries: int, now: float) -> Spent:
    return at(Spent((*spent.hours, (int(now // HOUR), queries))), now)


def wait(spent: Spent, queries: int, most: int, now: float) -> float:
    """Seconds until so many queries fit into `most`, besides the queries that are spent."""
    left = spent.total + queries - most
    for hour, of_hour in spent.hours:
        if left <= 0:
            break
        left -= of_hour
        if left <= 0:
            return _free(hour) - now
    return 0.0


class Clock:
    """The time of day at the start of this process, advanced by the monotonic clock."""

    def __init__(self) -> None:
        self._wall, self._began = time.time(), time.monotonic()

    def __call__(self) -> float:
        return self._wall + time.monotonic() - self._began


class Allowance:
    """The remaining queries of a day. Spent queries are on disk before the work begins, and outlast processes and runs.

    A part is recorded ahead, so that not every order waits for the disk. The share that a process does not use in the
    same hour is given back; it is lost if the process is killed.

    most: queries in 24 hours, 0: no limit. clock: one per process, for all its runs."""

    def __init__(self, most: int, folder: Path, clock: Clock):
        self.most, self._path, self._clock = most, folder / SPENT, clock
        self._ahead, self._hour = 0, 0
        """queries that are recorded but not made; and their hour"""

    def now(self) -> float:
        return self._clock()

    def spend(self, costs: Mapping[T, int]) -> dict[T, str]:
        """Spend the queries of several clients, in their order; by client that cannot be paid for: the reason."""
        if not self.most or not any(costs.values()):
            return {}
        total = sum(costs.values())
        if total <= self._ahead and self._hour == int(self._clock() // HOUR):
            self._ahead -= total
            return {}
        unpaid: dict[T, str] = {}
        with files.locked(self._path):
            before = files.decoded(self._path, Spent) if self._path.exists() else Spent()
            now = self._clock()
            spent = at(self._returned(before), now)
            for who, queries in costs.items():
                if spent.total + queries <= self.most:
                    spent = with_queries(spent, queries, now)
                else:
                    unpaid[who] = self._said(spent, queries, now)
            self._hour = int(now // HOUR)
            if not unpaid:
                self._ahead = min(self.most // AHEAD, self.most - spent.total)
                spent = with_queries(spent, self._ahead, now) if self._ahead else spent
            if spent != before:  # even if nothing was granted: queries of the future are now recorded as of now
                files.write(self._path, msgspec.json.encode(spent), durable=True, private=True)
        return unpaid

    def pay(self, who: T, queries: int) -> None:
        """Spend queries, or refuse with the reason."""
        if unpaid := self.spend({who: queries}):
            raise Sendable(unpaid[who])

    def _returned(self, spent: Spent) -> Spent:
        """`spent` without the queries that were recorded ahead but not made."""
        ahead, self._ahead = self._ahead, 0
        hours = [(hour, max(0, queries - ahead * (hour == self._hour))) for hour, queries in spent.hours]
        return structs.replace(spent, hours=tuple((hour, queries) for hour, queries in hours if queries))

    def close(self) -> None:
        if self._ahead:
            with files.locked(self._path):
                spent = self._returned(files.decoded(self._path, Spent))
                files.write(self._path, msgspec.json.encode(spent), durable=True, private=True)

    def _said(self, spent: Spent, queries: int, now: float) -> str:
        terms = f"its terms allow queries_per_day = {self.most:,}, of which {self.most - spent.total:,} are left"
        if queries > self.most:
            change = f"fedzero join KIT --queries-per-day {queries}"
            return f"{terms}, and this takes {queries:,}: the site can allow more, `{change}`"
        hours = max(1, round(wait(spent, queries, self.most, now) / HOUR))
        return f"{terms}, and this takes {queries:,}: it takes part again in about {hours} h"
