"""One round of a federation, start to finish, seen from the server.

cohort ← sample                     a function of the keys and the round
instructions → engine → replies     bytes out, bytes in, both counted
admit each reply, or refuse it by name and go on with the others
update ← aggregate                  → ledger (durable) → only then does any state change
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from fedzero.algorithms.contract import Algorithm
from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.engines.contract import Engine
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.records import Round, Saved
from fedzero.ledger.store import Ledger
from fedzero.replica import Replica
from fedzero.updates import Dense, Update, encode_update, unpack
from fedzero.wire import Close, Snapshot, decode_reply, encode, encode_work

CHECKPOINT_EVERY = 10
"""Rounds between rolling checkpoints of a run with dense updates."""


class Federation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who takes part."""

    clients: Annotated[int, Meta(ge=1)]
    """N"""
    cohort: Annotated[int, Meta(ge=1)]
    """m, sampled uniformly without replacement each round"""
    private: bool = False
    """Mix the directions with a secret that the clients share and the server has not."""


def cohort_of(keys: Keys, round: int, clients: int, cohort: int) -> tuple[int, ...]:
    """C_r, sorted."""
    if cohort == clients:
        return tuple(range(clients))
    chosen = keys.generator("cohort", round).choice(clients, cohort, replace=False, shuffle=False)
    return tuple(sorted(int(client) for client in chosen))


@dataclass
class Books:
    """The server's working set: what each client knows, and the updates somebody still needs.

    `history` is pruned to the most lagged client (or to `pull_after`); the ledger is not.
    """

    known: list[int]
    history: dict[int, bytes]

    @staticmethod
    def empty(clients: int) -> Books:
        return Books([0] * clients, {})

    def note(self, record: Round, sync: bool) -> None:
        """Carry on after a round: who knows what, and what has to be kept."""
        out = {client for client, _ in record.refused}
        for client in record.cohort:
            if client not in out:
                self.known[client] = record.round + sync
        if record.update is not None and not record.dense:
            self.history[record.round] = record.update

    def prune(self, next_round: int, pull_after: int | None) -> None:
        keep_from = min(self.known)
        if pull_after is not None:
            keep_from = max(keep_from, next_round - pull_after)
        for round in [r for r in self.history if r < keep_from]:
            del self.history[round]

    def missed(self, client: int, round: int) -> list[bytes]:
        return [self.history[r] for r in range(self.known[client], round) if r in self.history]


@dataclass(frozen=True)
class Admitted:
    """A reply that counts, unpacked."""

    values: F32
    loss: float
    queries: int
    digest: bytes


class Server:
    """Plays rounds. `replica` is None for a server without a model; `size` is all it then knows of it.

    `saved` is the round of the last checkpoint.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        keys: Keys,
        size: int,
        replica: Replica | None,
        ledger: Ledger,
        books: Books,
        saved: int = 0,
    ):
        self.algorithm, self.federation, self.keys, self.size = algorithm, federation, keys, size
        self.replica, self.ledger, self.books = replica, ledger, books
        self.snapshots = algorithm.delivery(size) == "snapshot"
        self.saved = saved

    def play(self, round: int, engine: Engine, seconds: float) -> Round:
        """One round; returns when its record is durable and the model has moved on."""
        cohort = cohort_of(self.keys, round, self.federation.clients, self.federation.cohort)
        instructions = self._instructions(round, cohort)
        replies, refused, bytes_up = self._gather(round, engine, instructions)
        update = self._aggregate(round, replies)
        closings = self._closings(round, update, replies)
        losses = [reply.loss for _, reply in sorted(replies.items())]
        encoded = None if update is None else encode_update(update)
        dense = isinstance(update, Dense)
        record = Round(
            round=round,
            cohort=cohort,
            update=hashlib.sha256(encoded).digest() if encoded is not None and dense else encoded,
            dense=dense,
            bytes_up=bytes_up,
            bytes_down=sum(map(len, instructions.values())) + sum(map(len, closings.values())),
            queries=sum(reply.queries for reply in replies.values()),
            loss=float(np.mean(losses)) if losses else None,
            refused=tuple(sorted(refused.items())),
        )
        self.ledger.append([record], seconds, (round, encoded) if encoded is not None and dense else None)
        if update is not None and self.replica is not None:
            self.replica.follow([update])
        engine.close(round, update, closings)
        self.books.note(record, self.algorithm.sync)
        self.books.prune(round + 1, self.algorithm.pull_after)
        self.save_if_due(round + 1, seconds)
        return record

    def save_if_due(self, done: int, seconds: float) -> None:
        """The rolling checkpoint of a run with dense updates; also written on resume, if the crash came before it."""
        if self.replica is None or not self.snapshots or done == 0 or done % CHECKPOINT_EVERY or self.saved >= done:
            return
        state = self.replica.state
        content = state.to_bytes()
        record = Saved(done, state.steps, hashlib.sha256(content).digest())
        self.ledger.append([record], seconds, checkpoint=content)
        self.saved = done

    def _instructions(self, round: int, cohort: Sequence[int]) -> dict[int, bytes]:
        snapshot: bytes | None = None
        instructions = {}
        for client in cohort:
            lag, limit = round - self.books.known[client], self.algorithm.pull_after
            if self.snapshots or (limit is not None and lag > limit):
                if snapshot is None:
                    if self.replica is None:
                        raise FedzeroError("a server without a model cannot send one")
                    state = self.replica.state
                    snapshot = encode(Snapshot(round, 0, state.steps, state.to_bytes()))
                instructions[client] = snapshot
            else:
                instructions[client] = encode_work(round, 0, self.books.missed(client, round))
        return instructions

    def _gather(
        self, round: int, engine: Engine, instructions: dict[int, bytes]
    ) -> tuple[dict[int, Admitted], dict[int, str], int]:
        """Replies that count, reasons why others do not, and the bytes that came up."""
        replies: dict[int, Admitted] = {}
        refused: dict[int, str] = {}
        bytes_up, expected = 0, self.algorithm.expects(round, self.size)
        for client, data in engine.exchange(round, instructions):
            if isinstance(data, bytes):
                bytes_up += len(data)
            try:
                if client not in instructions:
                    raise Refused("was not asked")
                if isinstance(data, Exception):
                    raise Refused(f"failed: {data}")
                if client in replies:
                    raise Refused("answered twice; the first answer counts")
                replies[client] = self._admit(round, data, expected)
            except Refused as reason:
                if client not in replies:
                    refused[client] = str(reason)
        for client in instructions.keys() - replies.keys() - refused.keys():
            refused[client] = "did not answer"
        self._refuse_diverged(replies, refused)
        return replies, refused, bytes_up

    def _admit(self, round: int, data: bytes, expected: int) -> Admitted:
        reply = decode_reply(data, limit=4 * expected + 96)
        if reply.round != round or reply.exchange != 0:
            raise Refused(f"answered round {reply.round}, not round {round}")
        if len(reply.values) != 4 * expected:
            raise Refused(f"sent {len(reply.values) / 4:g} numbers where {expected} were expected")
        values, loss = unpack(reply.values), unpack(reply.loss)
        if loss.size != 1:
            raise Refused("sent no training loss")
        return Admitted(values, float(loss[0]), reply.queries, reply.digest)

    def _refuse_diverged(self, replies: dict[int, Admitted], refused: dict[int, str]) -> None:
        """Values computed on another model than ours (or, without a model, than most others') do not count."""
        if not replies:
            return
        if self.replica is not None:
            right = self.replica.digest()
        else:
            votes = Counter(reply.digest for reply in replies.values())
            right = max(votes, key=lambda digest: (votes[digest], digest))
        for client in [c for c, reply in replies.items() if reply.digest != right]:
            refused[client] = f"worked on model {replies.pop(client).digest.hex()}, not {right.hex()}: must rebuild"

    def _aggregate(self, round: int, replies: dict[int, Admitted]) -> Update | None:
        if not replies:
            return None
        return self.algorithm.aggregate(round, self.size, {c: reply.values for c, reply in replies.items()})

    def _closings(self, round: int, update: Update | None, replies: dict[int, Admitted]) -> dict[int, bytes]:
        if not self.algorithm.sync or update is None:
            return {}
        closing = encode(Close(round, update))
        return dict.fromkeys(replies, closing)
