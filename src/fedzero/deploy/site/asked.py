"""The directions that a site was asked about, by data set: whatever the model is, and whatever a run is called.

Of a run, a row is in one part (`data_sets.part_of`), so what was asked about any row is at most the largest number of a
part; over runs, which deal rows out in other ways, these add up. Hours are those of `allowance`: 24 to 25 hours count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedzero.deploy.site.allowance import HOUR

TABLE = """
CREATE TABLE IF NOT EXISTS asked (
    data BLOB NOT NULL, run TEXT NOT NULL, part INTEGER NOT NULL, hour INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (data, run, part, hour)) WITHOUT ROWID;
"""
OF_RUN = "SELECT part, total(count), total(count * (hour >= ?)) FROM asked WHERE data = ? AND run = ? GROUP BY part"
OF_OTHERS = (
    "SELECT total(most) FROM (SELECT max(sum) AS most FROM (SELECT run, sum(count) AS sum FROM asked "
    "WHERE data = ? AND run != ? AND hour >= ? GROUP BY run, part) GROUP BY run)"
)


def hour_of(now: float) -> int:
    return int(now // HOUR)


def first_hour(now: float) -> int:
    """The first hour that still counts for a day."""
    return hour_of(now) - 24


@dataclass(frozen=True)
class Limits:
    """data: digest of the data set. run, day: directions at most, 0: no limit."""

    data: bytes
    now: float
    run: int
    day: int


@dataclass(frozen=True)
class Asked:
    """run, day: by part of this run, all directions and those of a day; others: of a day, by other runs."""

    run: Mapping[int, int] = field(default_factory=dict)
    day: Mapping[int, int] = field(default_factory=dict)
    others: int = 0

    def of_run(self, part: int) -> int:
        return self.run.get(part, 0)

    def of_day(self, part: int, more: int = 0) -> int:
        """What a row may have been asked about in a day, with so many directions more for a part."""
        return self.others + max([*self.day.values(), self.day.get(part, 0) + more])

    def fits(self, part: int, more: int, limits: Limits) -> bool:
        of_run = not limits.run or self.of_run(part) + more <= limits.run
        return of_run and (not limits.day or self.of_day(part, more) <= limits.day)

    def with_more(self, part: int, more: int) -> Asked:
        run = {**self.run, part: self.of_run(part) + more}
        return replace(self, run=run, day={**self.day, part: self.day.get(part, 0) + more})
