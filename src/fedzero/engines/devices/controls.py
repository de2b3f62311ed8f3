"""What an operator tells a gateway that runs, and what it tells the operator: tables beside places and tickets.

controls   paused: why, if the run is to stop asking
builds     patterns of builds that are not let in
traffic    by place: bytes of this day and of all days, when it was last here, and which build it is
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fedzero.ledger.durable import Durable
from fedzero.ledger.folder import DEVICES as FILE

DAY = 86_400


@dataclass(frozen=True)
class Traffic:
    """Of a place. today: bytes of `day` (days since 1970, UTC); up, down: of all days; seen: seconds since 1970."""

    place: int
    day: int
    today: int
    up: int
    down: int
    seen: float
    build: str
    here: bool


def day_of(seconds: float) -> int:
    return int(seconds // DAY)


class Controls(Durable):
    """Opened by the gateway and by commands. folder: of the run."""

    tables = """
CREATE TABLE IF NOT EXISTS controls (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS builds (pattern TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS traffic (place INTEGER PRIMARY KEY, day INTEGER NOT NULL, today INTEGER NOT NULL,
  up INTEGER NOT NULL, down INTEGER NOT NULL, seen REAL NOT NULL, build TEXT NOT NULL, here INTEGER NOT NULL) STRICT;
"""

    def __init__(self, folder: Path):
        super().__init__(folder / FILE)

    @property
    def paused(self) -> str:
        """Why the run does not ask; empty: it does."""
        row = self._db.execute("SELECT value FROM controls WHERE name = 'paused'").fetchone()
        return "" if row is None else str(row[0])

    def pause(self, why: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO controls VALUES ('paused', ?)", (why,))

    def go_on(self) -> None:
        self._db.execute("DELETE FROM controls WHERE name = 'paused'")

    @property
    def blocked(self) -> list[str]:
        return [pattern for (pattern,) in self._db.execute("SELECT pattern FROM builds ORDER BY pattern")]

    def block(self, pattern: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO builds VALUES (?)", (pattern,))

    def unblock(self, pattern: str) -> bool:
        """Whether it was blocked."""
        return bool(self._db.execute("DELETE FROM builds WHERE pattern = ?", (pattern,)).rowcount)

    def traffic(self) -> dict[int, Traffic]:
        rows = self._db.execute("SELECT place, day, today, up, down, seen, build, here FROM traffic")
        found = (
            Traffic(p, day, today, up, down, seen, build, bool(here))
            for p, day, today, up, down, seen, build, here in rows
        )
        return {each.place: each for each in found}

    def write(self, found: Iterable[Traffic]) -> None:
        rows = [(t.place, t.day, t.today, t.up, t.down, t.seen, t.build, t.here) for t in found]
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO traffic VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def nobody_is_here(self) -> None:
        """A gateway begins, or ends."""
        self._db.execute("UPDATE traffic SET here = 0")


def blocks(patterns: Iterable[str], build: str) -> bool:
    """Whether a build is one of those: `fedzero-client/0.1.*`; capital letters count."""
    return any(fnmatchcase(build, pattern) for pattern in patterns)


class Meter:
    """The bytes of places while a gateway runs. budget: bytes of a place in a day, 0: any."""

    def __init__(self, before: dict[int, Traffic], budget: int):
        self.budget, self._now, self._changed = budget, dict(before), set[int]()

    def note(self, place: int, up: int, down: int, build: str, here: bool) -> None:
        now = time.time()
        old = self._now.get(place) or Traffic(place, 0, 0, 0, 0, 0.0, "", False)
        today = (old.today if old.day == day_of(now) else 0) + up + down
        found = Traffic(place, day_of(now), today, old.up + up, old.down + down, now, build or old.build, here)
        self._now[place] = found
        self._changed.add(place)

    def spent(self, place: int) -> bool:
        """Whether the place has used what it may have today."""
        found = self._now.get(place)
        return bool(self.budget and found and found.day == day_of(time.time()) and found.today >= self.budget)

    def changed(self) -> list[Traffic]:
        """Since the last call."""
        found, self._changed = [self._now[place] for place in sorted(self._changed)], set()
        return found
