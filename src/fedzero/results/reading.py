"""What a report needs of a ledger, folded entry by entry, in memory that does not grow with the rounds.

Whoever follows a run keeps a `Reading` and goes on with it: what was read is not read again. Of long runs the curves
are thinned.
"""

from __future__ import annotations

import math
import struct
from collections import deque

from fedzero.ledger import replay
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import Evaluation, PrivateRound, Round, Said, Shown, Start
from fedzero.ledger.store import Entry, Ledger
from fedzero.model.updates import Dense, decode_update, parts_of
from fedzero.oracles import Pictures, Sample
from fedzero.report.history import Point
from fedzero.results.attendance import Attendance
from fedzero.results.measures import Measures
from fedzero.results.thinning import Thinned

MOST_SAMPLES = 20
"""Samples of what a language model says: of the first entry and of the last."""
MOST_EVENTS = 1000
"""Events that are listed one by one: the last ones."""


class Reading:
    """A ledger as far as it was read: points are its evaluations, losses and slopes (round, value)."""

    def __init__(self) -> None:
        self.outline = LedgerSummary()
        self.points: Thinned[Point] = Thinned(lambda first, second: second)
        self.losses: Thinned[tuple[float, float]] = Thinned(_halfway)
        self.slopes: Thinned[tuple[float, float]] = Thinned(_halfway)
        self.events: deque[str] = deque(maxlen=MOST_EVENTS)
        self.pictures: Pictures | None = None
        self.said: dict[int, tuple[Sample, ...]] = {}
        self._measures = Measures()
        self._start: Start | None = None
        self._attendance: Attendance | None = None

    @property
    def start(self) -> Start:
        assert self._start is not None, "a ledger begins with its start"
        return self._start

    @property
    def attendance(self) -> Attendance:
        assert self._attendance is not None, "a ledger begins with its start"
        return self._attendance

    def more(self, ledger: Ledger) -> None:
        """Read what is new; raises `Tampered` where it is not the ledger that was read before."""
        for entry in replay.grown(ledger, self.outline):
            self._note(entry)
        self.outline.finish()

    def _note(self, entry: Entry) -> None:
        record = entry.record
        self.outline.note(record, entry.chain, entry.seconds)
        if isinstance(record, Round):
            if not isinstance(record, PrivateRound):  # which names nobody
                self.attendance.note(record, entry.at)
            if record.loss is not None:
                self.losses.add((record.round, record.loss))
            if (slope := slope_of(record)) is not None:
                self.slopes.add((record.round, slope))
            self.events.extend(f"round {record.round}: client {client} {why}" for client, why in record.refused)
        elif isinstance(record, Evaluation):
            self.points.add(self._point(record))
        elif isinstance(record, Shown):
            self.pictures = record.pictures
        elif isinstance(record, Said):
            self.said = {0: self.said.get(0, ()), record.round: record.rows[:MOST_SAMPLES]}
        elif isinstance(record, Start):
            self._start, self._attendance = record, Attendance(self.outline.clients)

    def _point(self, evaluation: Evaluation) -> Point:
        so_far = self.outline
        return Point(
            round=evaluation.round,
            loss=evaluation.metrics.loss,
            accuracy=evaluation.metrics.accuracy,
            bytes_up=so_far.bytes_up / so_far.clients,
            bytes_down=so_far.bytes_down / so_far.clients,
            queries=so_far.queries,
            others=self._measures.of(evaluation.metrics.others),
            seconds=so_far.seconds,
            epsilon=so_far.spent[0] if so_far.spent else 0.0,
            time=so_far.time or 0.0,
        )


def _halfway(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    return (first[0] + second[0]) / 2, (first[1] + second[1]) / 2


def slope_of(record: Round) -> float | None:
    """√(mean of g²) over the scalars g of a round's update, where it is made of scalars of directions; of several
    groups, which are parts of one sum, the root of the sum of squares."""
    if record.update is None or record.dense:
        return None
    update = decode_update(record.update)
    parts = [] if isinstance(update, Dense) else [scalars for _, scalars in parts_of(update)]
    if not all(scalars and len(scalars) % 4 == 0 for scalars in parts) or not parts:
        return None
    return math.hypot(*(_mean_square_root(scalars) for scalars in parts))


def _mean_square_root(scalars: bytes) -> float:
    numbers = struct.unpack(f"<{len(scalars) // 4}f", scalars)
    return math.hypot(*numbers) / math.sqrt(len(numbers))
