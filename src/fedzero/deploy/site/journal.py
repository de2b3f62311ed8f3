"""The answers of a site (`ledger.answers`), including its evaluations, and the number of directions that its clients
were asked about: at each model, and about each data set (`asked`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedzero.deploy.site import asked
from fedzero.deploy.site.asked import Asked, Limits
from fedzero.ledger.answers import OTHERWISE, Answered, Answers, Place

EVALUATION = -1
"""The client number under which evaluations are kept, by the number of rounds before them."""
MOST_TURNS = 1 << 18
"""The most turns whose directions are counted, some 30 MB; the oldest are dropped. A turn takes at least two
evaluations, so a server that wants turns to be forgotten needs days of `queries_per_day`."""
_TABLES = """
CREATE TABLE IF NOT EXISTS directions (
    number INTEGER PRIMARY KEY, model BLOB NOT NULL, client INTEGER NOT NULL, drawn BLOB NOT NULL,
    count INTEGER NOT NULL, UNIQUE (model, client, drawn));
"""


@dataclass(frozen=True)
class Drawn:
    """Directions that a client was asked about at one model. most: the limit at this model, 0: none. part: of the
    data set; asked: the directions that count for it."""

    model: bytes
    client: int
    drawn: bytes
    count: int
    most: int = 0
    part: int = 0
    asked: int = 0


class Journal(Answers):
    """The journal of one run. The file is shared by all runs of a site, because runs share models."""

    tables = Answers.tables + _TABLES + asked.TABLE

    def directions(self, model: bytes, client: int, drawn: bytes) -> int:
        """How many directions a client was asked about at a model, without those of the current turn."""
        with self._reading():
            (count,) = self._one(
                "SELECT coalesce(sum(count), 0) FROM directions WHERE model = ? AND client = ? AND drawn != ?",
                *(model, client, drawn),
            )
        return count

    def asked(self, data: bytes, now: float) -> Asked:
        """The directions that were asked about a data set, by this run and by others."""
        since = asked.first_hour(now)
        with self._reading():
            mine = self._db.execute(asked.OF_RUN, (since, data, self.run)).fetchall()
            (others,) = self._one(asked.OF_OTHERS, data, self.run, since)
        run, day = ({row[0]: int(row[which]) for row in mine} for which in (1, 2))
        return Asked(run, day, int(others))

    def record(
        self,
        answers: Sequence[tuple[Place, Answered]],
        drawn: Sequence[Drawn] = (),
        once: bool = False,
        limits: Limits | None = None,
    ) -> dict[Place, str]:
        """Make answers durable; returns the answers that must not leave, with reasons: another process answered
        differently. once: also refuse a different answer to the same question, for private draws. limits: of the
        directions that are asked about the data set."""
        if not answers:
            return {}
        with self._reading(), self._transaction():
            beyond = {each.client for each in drawn if self._beyond(each)}
            if limits is not None:
                known = {place.client for place, answered in answers if self._known(place, answered)}
                beyond |= self._count([each for each in drawn if each.client not in beyond | known], limits)
            kept = [(place, answered) for place, answered in answers if place.client not in beyond]
            conflicts = self._keep(kept, once)
            for each in drawn:
                if each.client in beyond:
                    continue
                self._db.execute(
                    "INSERT OR IGNORE INTO directions (model, client, drawn, count) VALUES (?, ?, ?, ?)",
                    (each.model, each.client, each.drawn, each.count),
                )
            if drawn:
                self._db.execute(
                    "DELETE FROM directions WHERE number <= (SELECT max(number) FROM directions) - ?", (MOST_TURNS,)
                )
        said = dict.fromkeys(conflicts, OTHERWISE)
        return said | {p: "was asked too much meanwhile" for p, _ in answers if p.client in beyond}

    def _known(self, place: Place, answered: Answered) -> bool:
        """Whether the same bytes were answered there before, and so were counted."""
        before = self.find(place)
        return before is not None and before.answer == answered.answer

    def _count(self, drawn: Sequence[Drawn], limits: Limits) -> set[int]:
        """Count directions by data set; the clients for which they are too many."""
        hour = asked.hour_of(limits.now)
        self._add("SELECT data, run, part, ?, count FROM asked WHERE hour > ?", hour, hour)  # the clock was ahead
        self._db.execute("DELETE FROM asked WHERE hour > ?", (hour,))
        before, beyond = self.asked(limits.data, limits.now), set()
        for each in drawn:
            if before.fits(each.part, each.asked, limits):
                before = before.with_more(each.part, each.asked)
                self._add("SELECT ?, ?, ?, ?, ?", limits.data, self.run, each.part, hour, each.asked)
            else:
                beyond.add(each.client)
        return beyond

    def _add(self, rows: str, *values: object) -> None:
        add = f"INSERT INTO asked {rows} {'' if 'WHERE' in rows else 'WHERE true'} ON CONFLICT DO UPDATE SET "
        self._db.execute(f"{add} count = count + excluded.count", values)

    def forget(self, runs: Sequence[str]) -> None:
        """What was asked in the last day still counts."""
        super().forget(runs)
        with self._reading(), self._transaction():
            for run in runs:
                self._db.execute(
                    "DELETE FROM asked WHERE run = ? AND hour < (SELECT max(hour) FROM asked) - 24", (run,)
                )

    def _beyond(self, each: Drawn) -> bool:
        """Whether the limit is exceeded because another process was asked in the meantime."""
        return each.most > 0 and self.directions(each.model, each.client, each.drawn) + each.count > each.most
