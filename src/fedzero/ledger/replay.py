"""From a ledger back to a model: resume, rebuild any round, verify."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from fedzero.errors import FedzeroError
from fedzero.ledger.records import End, Evaluation, Round
from fedzero.ledger.store import Entry, Ledger, Tampered
from fedzero.replica import Replica
from fedzero.updates import Update, decode_update

BURST = 256
"""Rounds folded in one pass."""


@dataclass(frozen=True)
class Story:
    """A ledger read to its end."""

    entries: tuple[Entry, ...]

    @property
    def rounds(self) -> list[Round]:
        return [e.record for e in self.entries if isinstance(e.record, Round)]

    @property
    def evaluations(self) -> list[Evaluation]:
        return [e.record for e in self.entries if isinstance(e.record, Evaluation)]

    @property
    def end(self) -> End | None:
        last = self.entries[-1].record
        return last if isinstance(last, End) else None

    @property
    def seconds(self) -> float:
        return self.entries[-1].seconds

    @property
    def dense(self) -> bool:
        return any(record.dense for record in self.rounds)


def read(ledger: Ledger) -> Story:
    return Story(tuple(ledger.entries()))


def check_base(ledger: Ledger, replica: Replica) -> None:
    if replica.digest() != ledger.start().base:
        raise FedzeroError(
            f"this ledger starts from model {ledger.start().base.hex()}, but the base here is "
            f"{replica.digest().hex()}: give the base model (and data) the run was started with"
        )


def updates_of(ledger: Ledger, story: Story, upto: int | None = None) -> Iterator[Update]:
    """The updates of rounds before `upto`; dense ones only as far as the ledger still has them."""
    dense = ledger.dense_updates() if story.dense else {}
    for record in story.rounds:
        if record.update is None or (upto is not None and record.round >= upto):
            continue
        if not record.dense:
            yield decode_update(record.update)
        elif record.round in dense:
            body = dense[record.round]
            if hashlib.sha256(body).digest() != record.update:
                raise Tampered(record.round, "the dense update does not match its digest")
            yield decode_update(body)


def rebuild(ledger: Ledger, story: Story, replica: Replica, upto: int | None = None) -> None:
    """Bring a replica of the base model to where it stood before round `upto` (default: the end)."""
    check_base(ledger, replica)
    if story.dense:
        checkpoint = ledger.checkpoint()
        start = 0 if checkpoint is None else checkpoint.round
        if upto is not None and upto < start:
            raise FedzeroError(
                f"round {upto} cannot be replayed: this run's updates are dense, and of those the ledger keeps a "
                f"rolling checkpoint only (from round {start}); runs with seeded updates replay any round"
            )
        if checkpoint is not None:
            replica.state = replica.state.restored(checkpoint.state, checkpoint.round, checkpoint.steps)
    pending: list[Update] = []
    for update in updates_of(ledger, story, upto):
        pending.append(update)
        if len(pending) == BURST:
            replica.follow(pending)
            pending = []
    replica.follow(pending)


def verify(ledger: Ledger, replica: Replica | None) -> Story:
    """Check everything that can be checked; raises `Tampered` with the first bad round.

    File and chain always; with a replica of the base also that the updates lead to the digests on record.
    """
    story = read(ledger)
    ledger.integrity()
    _check_order(story)
    if replica is None:
        return story
    check_base(ledger, replica)
    if story.dense:
        rebuild(ledger, story, replica)
        marks = [(m.round, m.model) for m in story.evaluations if m.round == len(story.rounds)]
    else:
        marks = [(m.round, m.model) for m in story.evaluations]
        if story.end is not None:
            marks.append((story.end.round, story.end.model))
    updates = [] if story.dense else list(updates_of(ledger, story))
    good = 0
    for round, digest in marks:
        if not story.dense:
            replica.follow([u for u in updates if u.round < round])
        if replica.digest() != digest:
            raise Tampered(good, f"the updates of rounds {good} to {round - 1} do not lead to the model on record")
        good = round
    return story


def _check_order(story: Story) -> None:
    for expected, record in enumerate(story.rounds):
        if record.round != expected:
            raise Tampered(expected, f"the ledger goes on with round {record.round}")
