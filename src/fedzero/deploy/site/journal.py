"""What a site has answered (`ledger.answers`), an evaluation after every round with it, and how many directions its
clients were asked about at a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedzero.ledger.answers import OTHERWISE, Answered, Answers, Place

EVALUATION = -1
"""In the place of a client: the evaluation after so many rounds."""
MOST_TURNS = 1 << 18
"""Turns whose directions are counted, some 30 MB; the oldest are dropped. A turn takes two evaluations at least, so who
would have turns forgotten needs days of `queries_per_day` for it."""
_TABLES = """
CREATE TABLE IF NOT EXISTS directions (
    number INTEGER PRIMARY KEY, model BLOB NOT NULL, client INTEGER NOT NULL, drawn BLOB NOT NULL,
    count INTEGER NOT NULL, UNIQUE (model, client, drawn));
"""


@dataclass(frozen=True)
class Drawn:
    """Directions that a client was asked about at one model. most: in all at this model, 0: no limit."""

    model: bytes
    client: int
    drawn: bytes
    count: int
    most: int = 0


class Journal(Answers):
    """Of one run; the file is that of all runs of a site, because models are."""

    tables = Answers.tables + _TABLES

    def directions(self, model: bytes, client: int, drawn: bytes) -> int:
        """How many directions a client was asked about at a model, beside those that are drawn now."""
        with self._reading():
            (count,) = self._one(
                "SELECT coalesce(sum(count), 0) FROM directions WHERE model = ? AND client = ? AND drawn != ?",
                *(model, client, drawn),
            )
        return count

    def record(
        self, answers: Sequence[tuple[Place, Answered]], drawn: Sequence[Drawn] = (), once: bool = False
    ) -> dict[Place, str]:
        """Make answers durable; those that must not leave, and why: another process answered something else. once: also
        to the same question, since what was drawn in private is drawn once."""
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
        """Whether another process was asked meanwhile, and both together are too many."""
        return each.most > 0 and self.directions(each.model, each.client, each.drawn) + each.count > each.most
