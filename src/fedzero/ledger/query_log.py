"""The log of queries in a ledger's file: what every attempt at a black box was, and what came of it.

A row is written before the box is called and again when there is a value, each in a durable transaction. When a round
is recorded, its `queried` puts the rows on the chain: a SHA-256 for every client. Coordinates are kept of the points at
which models were evaluated, and of those of each client's latest round; digests of all points are kept for good.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np

from fedzero.ledger.records import Asked, Round
from fedzero.ledger.store import LOG_OF_QUERIES, Ledger, Tampered
from fedzero.oracles.blackbox import EVALUATION, MemoryLog, Query, point_digest
from fedzero.oracles.contract import F64

_COLUMNS = "client, round, ordinal, attempt, digest, state, value, cause, point"
_ORDER = "ORDER BY round, client, ordinal, attempt"
Queried = tuple[tuple[int, bytes], ...]


@dataclass(frozen=True)
class Meter:
    """What a run whose queries cost something needs: where they are logged, and who cannot pay for a turn, and why."""

    log: LedgerLog
    unable: Callable[[int, Mapping[int, int]], Mapping[int, str]]


class LedgerLog:
    """A `QueryLog` that survives a crash. Used from one thread, as its ledger is."""

    def __init__(self, ledger: Ledger):
        self._ledger, self._memory = ledger, MemoryLog()
        if not _exists(ledger):
            with ledger.transaction() as db:
                db.execute(LOG_OF_QUERIES)
        self._memory.write(list(_read(ledger)))

    def write(self, rows: Sequence[Query]) -> None:
        with self._ledger.transaction() as db:
            for row in rows:
                values = [getattr(row, column) for column in _COLUMNS.split(", ")]
                db.execute(f"INSERT OR REPLACE INTO queries ({_COLUMNS}) VALUES ({', '.join('?' * 9)})", values)
            probes = [row for row in rows if row.point is not None and row.ordinal != EVALUATION]
            for client, round in {(row.client, row.round) for row in probes}:
                stale = self._memory.latest_round(client)
                if stale < round:
                    forget = "UPDATE queries SET point = NULL WHERE round = ? AND client = ? AND ordinal >= 0"
                    db.execute(forget, (stale, client))
        self._memory.write(rows)

    def spent(self, client: int) -> int:
        return self._memory.spent(client)

    def tried(self, client: int, round: int, ordinal: int) -> Sequence[Query]:
        return self._memory.tried(client, round, ordinal)

    def begun(self, client: int, round: int) -> Sequence[Query]:
        return self._memory.begun(client, round)

    def latest(self, client: int, before: int) -> Sequence[tuple[F64, float]]:
        return self._memory.latest(client, before)

    def queried(self, round: int) -> Queried:
        """What the record of a round says of its queries."""
        return _digests(_read(self._ledger, f"WHERE round = {round} AND ordinal >= 0"))

    def asked(self, after: int) -> Queried:
        """The same of the evaluation before a round."""
        return _digests(_read(self._ledger, f"WHERE round = {after} AND ordinal = {EVALUATION}"))


@dataclass(frozen=True, eq=False)
class AtModel:
    """What boxes gave at the model after so many rounds: values by client, and where that was, (d,).

    point: None in ledgers of 0.1, and where client 0 gave no value.
    """

    round: int
    values: Mapping[int, float]
    point: F64 | None


def at_models(ledger: Ledger) -> list[AtModel]:
    """Of all evaluations that made queries of their own and got a value."""
    rows = _read(ledger, f"WHERE ordinal = {EVALUATION} AND value IS NOT NULL")
    found = []
    for round, of_round in groupby(rows, lambda row: row.round):
        kept = list(of_round)
        point = next((np.frombuffer(row.point, "<f8") for row in kept if row.point is not None), None)
        found.append(AtModel(round, {row.client: row.value for row in kept if row.value is not None}, point))
    return found


def spent(ledger: Ledger) -> int:
    """Attempts of all clients together."""
    return sum(row.spent for row in _read(ledger))


def spent_before(ledger: Ledger) -> Callable[[int], int]:
    """The same before the round of a given number, its evaluation included."""
    counts = Counter(row.round + (row.ordinal != EVALUATION) for row in _read(ledger) if row.spent)
    rounds = sorted(counts)
    totals = [0, *accumulate(counts[round] for round in rounds)]
    return lambda round: totals[bisect_right(rounds, round)]


def check(ledger: Ledger, rounds: Sequence[Round], asked: Sequence[Asked], ended: bool) -> None:
    """That the log is what the chain says; raises `Tampered` with the first bad round.

    Rows of a round (or an evaluation) that is not on the chain yet can only be of the one that was interrupted.
    """
    right: dict[tuple[int, bool], Queried] = {(record.round, False): record.queried for record in rounds}
    right |= {(record.round, True): record.queried for record in asked}
    found: dict[tuple[int, bool], Queried] = {}
    for (round, evaluation), rows in groupby(
        sorted(_read(ledger), key=lambda row: (row.round, row.ordinal >= 0)), lambda row: (row.round, row.ordinal < 0)
    ):
        kept = list(rows)
        for row in kept:
            if row.point is not None and point_digest(row.point) != row.digest:
                raise Tampered(
                    round, f"the log of client {row.client}'s queries has a point whose digest differs from its record"
                )
        found[round, evaluation] = _digests(kept)
    open_ = set() if ended else {(len(rounds), False), (len(rounds), True)}
    for place in sorted(right.keys() | found.keys(), key=lambda place: (place[0], not place[1])):
        if place not in right and place in open_:
            continue
        if found.get(place, ()) != right.get(place, ()):
            raise Tampered(place[0], "the log of its queries does not match its digest")


def _exists(ledger: Ledger) -> bool:
    return bool(ledger.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'queries'", -1))


def _read(ledger: Ledger, where: str = "") -> Iterator[Query]:
    if _exists(ledger):
        for row in ledger.rows(f"SELECT {_COLUMNS} FROM queries {where} {_ORDER}", -1):
            yield Query(*row)


def _digests(rows: Iterable[Query]) -> Queried:
    """(client, SHA-256 of its rows) for every client that has any; rows come in order."""
    return tuple(
        (client, hashlib.sha256(b"".join(map(_packed, of_client))).digest())
        for client, of_client in groupby(rows, lambda row: row.client)
    )


def _packed(row: Query) -> bytes:
    """Everything of a row but the coordinates, which its digest stands for."""
    state, cause = row.state.encode(), row.cause.encode()
    value = b"" if row.value is None else struct.pack("<d", row.value)
    parts = [row.digest, state, value, cause]
    lengths = struct.pack("<4q", *map(len, parts))
    return struct.pack("<4q", row.client, row.round, row.ordinal, row.attempt) + lengths + b"".join(parts)
