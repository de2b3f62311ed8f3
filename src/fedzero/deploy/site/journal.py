"""The answers of a site (`ledger.answers`), including its evaluations, and the number of directions that its clients
were asked about at each model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Directions that a client was asked about at one model. most: the limit at this model, 0: none."""

    model: bytes
    client: int
    drawn: bytes
    count: int
    most: int = 0


class Journal(Answers):
    """The journal of one run. The file is shared by all runs of a site, because runs share models."""

    tables = Answers.tables + _TABLES

    def directions(self, model: bytes, client: int, drawn: bytes) -> int:
        """How many directions a client was asked about at a model, without those of the current turn."""
        with self._reading():
            (count,) = self._one(
                "SELECT coalesce(sum(count), 0) FROM directions WHERE model = ? AND client = ? AND drawn != ?",
                *(model, client, drawn),
            )
        return count

    def record(
        self, answers: Sequence[tuple[Place, Answered]], drawn: Sequence[Drawn] = (), once: bool = False
    ) -> dict[Place, str]:
        """Make answers durable; returns the answers that must not leave, with reasons: another process answered
        differently. once: also refuse a different answer to the same question, for private draws."""
        if not answers:
            return {}
        with self._reading(), self._transaction():
            beyond = {each.client for each in drawn if self._beyond(each)}
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
        return said | {p: "was asked too much at this model meanwhile" for p, _ in answers if p.client in beyond}

    def _beyond(self, each: Drawn) -> bool:
        """Whether the limit is exceeded because another process was asked in the meantime."""
        return each.most > 0 and self.directions(each.model, each.client, each.drawn) + each.count > each.most
