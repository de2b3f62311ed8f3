"""What a run has to know of its ledger, in memory that does not grow with the number of rounds.

A `LedgerSummary` is a fold over entries: `note` takes the next one. It also tells whether the order is one that a run
can have written, so a ledger is read in one pass and no entry is kept.
"""

from __future__ import annotations

import hashlib
import math
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, UnsetType

from fedzero.errors import FedzeroError
from fedzero.ledger.database import Tampered
from fedzero.ledger.records import (
    Asked,
    End,
    Evaluation,
    Extended,
    PrivateRound,
    Record,
    Round,
    Saved,
    Start,
    TimedRound,
    spent_of,
)
from fedzero.methods.contract import MOST_CLIENTS
from fedzero.model.decoding import decoded
from fedzero.model.numbers import PositiveInt

GENESIS = hashlib.sha256(b"fedzero ledger 1").digest()
"""chain(−1)"""


class EvaluationHistory(Struct):
    """Evaluations so far: how many, the first, the last, the one with the lowest loss, and how many came after it."""

    count: int = 0
    first: Evaluation | None = None
    last: Evaluation | None = None
    best: Evaluation | None = None
    since_best: int = 0

    def note(self, evaluation: Evaluation) -> None:
        self.count += 1
        self.first = self.first or evaluation
        self.last = evaluation
        if self.best is None or _merit(evaluation) < _merit(self.best):
            self.best, self.since_best = evaluation, 0
        else:
            self.since_best += 1


def _merit(evaluation: Evaluation) -> float:
    loss = evaluation.metrics.loss
    return loss if math.isfinite(loss) else math.inf


class _Clients(Struct, frozen=True):
    clients: Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]
    """arrays of them are made before the recipe is decoded"""


class _Frame(Struct, frozen=True):
    """What of a recipe its ledger is checked against, whatever else the release that wrote it put in."""

    rounds: PositiveInt
    federation: _Clients


ACCOUNTANTS = 1e-3
"""The largest relative difference between the figures of two releases of an accountant."""

_frames = msgspec.json.Decoder(_Frame)


class LedgerSummary(Struct):
    """Entries read so far: where the chain stands, what they come to, and what may come next."""

    entries: int = 0
    chain: bytes = GENESIS
    seconds: float = 0.0
    """that the run had been computed"""
    planned: int = 0
    """rounds of the recipe, or of the last extension"""
    clients: int = 0
    """N"""
    done: int = 0
    """rounds made"""
    moved: int = 0
    """the rounds up to the last that had an update"""
    dense: bool = False
    """whether an update was dense"""
    bytes_up: int = 0
    bytes_down: int = 0
    queries: int = 0
    turns: int = 0
    """of all clients together"""
    refused: int = 0
    bounded: int = 0
    loss: float | None = None
    """the last training loss"""
    evaluations: EvaluationHistory = msgspec.field(name="course", default_factory=EvaluationHistory)
    evaluated: int = -1
    """rounds before the last evaluation, or the last queries of one"""
    logged: bool = False
    """whether queries are on record"""
    saved: Saved | None = None
    """the last checkpoint of a dense run"""
    moved_when_saved: int = 0
    """`moved` at that time"""
    stopped: str = ""
    """why the last round is the last; empty: it need not be"""
    end: End | None = None
    extended: Extended | None = None
    """the last extension"""
    ended: End | None = None
    """the end before it"""
    spent: tuple[float, float | None] | None = None
    """ε after the last round, see `PrivateRound.spent`"""
    time: float | None = None
    """simulated seconds to the last step; None: the run has no simulated clock"""

    def note(self, record: Record, chain: bytes, seconds: float) -> None:
        """The next entry; raises `Tampered` where no run can have written it there.

        A start, then rounds 0, 1, 2, … with what belongs to each behind it, then at most an end; behind an end nothing,
        or an extension and more rounds; and no client that the recipe does not have.
        """
        if self.end is not None and not isinstance(record, Extended):
            raise Tampered(self.done, "there are entries after the end of the run")
        if isinstance(record, Start) != (self.entries == 0):
            raise Tampered(self.done if self.entries else -1, "the start of the run is not the first entry")
        if isinstance(record, Round):
            self._add(record)
        elif isinstance(record, Start):
            frame = decoded(_frames.decode, record.recipe, "the recipe of a run", FedzeroError)
            self.planned, self.clients = frame.rounds, frame.federation.clients
        elif record.round != self.done:
            raise Tampered(self.done, f"an entry of round {record.round} follows round {self.done - 1}")
        elif isinstance(record, Evaluation):
            self.evaluations.note(record)
            self.evaluated = record.round
        elif isinstance(record, Asked):
            self.evaluated, self.logged = record.round, True
        elif isinstance(record, Saved):
            self.saved, self.moved_when_saved = record, self.moved
        elif isinstance(record, End):
            if self.stopped and record.reason != self.stopped:
                raise Tampered(self.done, "the run ended for another reason than its last round has")
            self.end = record
        elif isinstance(record, Extended):
            self._extend(record)
        self.entries, self.chain, self.seconds = self.entries + 1, chain, seconds

    def _add(self, record: Round) -> None:
        if record.round != self.done:
            raise Tampered(self.done, f"round {record.round} follows instead")
        if self.stopped:
            raise Tampered(self.done, "a round follows the one after which the run was stopped")
        self.stopped = "" if isinstance(record.stopped, UnsetType) else record.stopped
        _check_clients(record, self.clients)
        self.done += 1
        if record.update is not None:
            self.moved = self.done
        self.dense = self.dense or record.dense
        self.bytes_up += record.bytes_up
        self.bytes_down += record.bytes_down
        self.queries += record.queries
        self.turns += len(set(record.cohort))
        self.refused += len(record.refused)
        self.bounded += len(record.bounded or ())
        self.logged = self.logged or bool(record.queried)
        self.loss = self.loss if record.loss is None else record.loss
        self._spend(record)
        self._tick(record)

    def _tick(self, record: Round) -> None:
        """Simulated time never goes back, and nobody is asked after the step."""
        if not isinstance(record, TimedRound):
            if self.time is not None:
                raise Tampered(record.round, "it does not say when it was made")
            return
        before, asked_at = self.time or 0.0, record.asked_at
        if not (before <= record.time < math.inf) or (self.time is None and self.done > 1):
            raise Tampered(record.round, f"its simulated time is {record.time:g}, after {before:g}")
        if asked_at and len(asked_at) != len(record.asked or ()):
            raise Tampered(record.round, "it has more or fewer times than clients that were asked")
        if not all(before <= at <= record.time for at in asked_at):
            raise Tampered(record.round, "a client was asked before the step began, or after it was made")
        self.time = record.time

    def _spend(self, record: Round) -> None:
        """A budget that was spent is never returned."""
        spent = spent_of(record)
        before = self.spent or (0.0, 0.0)
        for now, then in zip(spent or (), before, strict=False):
            if now is not None and not now >= (then or 0.0) * (1 - ACCOUNTANTS):
                raise Tampered(record.round, f"its ε is {now:g} after {then:g} in an earlier round")
        if spent is None and self.spent is not None:
            raise Tampered(record.round, "it does not say how much of the privacy budget is spent")
        if spent is not None and self.spent is None and self.done > 1:
            raise Tampered(record.round, "it is private, and earlier rounds are not")
        self.spent = spent

    def _extend(self, record: Extended) -> None:
        if self.end is None:
            raise Tampered(self.done, "the run was extended before its end")
        self._check_end()
        if record.rounds <= self.done or record.rounds < self.planned:
            made = f"{self.done} of {self.planned}"
            raise Tampered(self.done, f"the run was extended to {record.rounds} rounds when it had made {made}")
        self.planned, self.extended, self.ended, self.end = record.rounds, record, self.end, None
        self.stopped = ""

    def finish(self) -> None:
        """All entries were read: there is a start, and an end only where one may be."""
        if not self.entries:
            raise Tampered(-1, "the ledger has no start")
        self._check_end()

    def _check_end(self) -> None:
        if self.end is not None and self.done != self.planned and not (self.end.reason and self.done < self.planned):
            raise Tampered(self.done, "the ledger ends before the last round of the recipe")
        if self.end is not None and self.end.reason and self.done == self.planned:
            raise Tampered(self.done, "the ledger says that the run ended early, but has all of its rounds")


def _check_clients(record: Round, clients: int) -> None:
    named = record.cohort
    if isinstance(record, PrivateRound):
        others = record.refused, record.asked, record.bounded, record.remembered, record.queried
        if named or any(others) or record.loss is not None:
            raise Tampered(record.round, "it is private, and names clients or a loss")
    if record.refused or record.remembered or record.queried:
        named = (*named, *(client for of in (record.refused, record.remembered, record.queried) for client, _ in of))
    asked = () if isinstance(record.asked, UnsetType) else record.asked
    if any(a >= b for a, b in pairwise(asked)):
        raise Tampered(record.round, "it names clients who were asked twice, or not in order")
    if asked:
        named = (*named, *asked)
    if named and (client := max(named)) >= clients:
        raise Tampered(record.round, f"it names client {client}, but the run has {clients} clients")
    if record.bounded:
        for client in set(record.bounded) - set(record.cohort):
            raise Tampered(record.round, f"it names client {client} as scaled down, who was not asked")
