"""The log of queries in a ledger's file: what every attempt at a black box was, and what came of it.

A row is written before the box is called and again when there is a value, each in a durable transaction. When a round
is recorded, its `queried` puts the rows on the chain: a SHA-256 for every client. Coordinates are kept of the points at
which models were evaluated, of those of each client's latest round, and of the best one of earlier rounds at which all
clients were asked; digests of all points are kept for good.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from bisect import bisect_right
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Annotated

import numpy as np
from msgspec import Meta

from fedzero.ledger import traffic
from fedzero.ledger.database import LOG_OF_QUERIES
from fedzero.ledger.records import Asked, Evaluation, Round
from fedzero.ledger.store import Ledger, Tampered
from fedzero.model.numbers import Natural
from fedzero.oracles.blackbox import ESTIMATED, EVALUATION, MemoryLog, Query, digest_of, mean, point_digest
from fedzero.oracles.contract import F64

_COLUMNS = "client, round, ordinal, attempt, digest, state, value, cause, point"
_ORDER = "ORDER BY round, client, ordinal, attempt"
Queried = tuple[tuple[int, bytes], ...]
_Ordinal = Annotated[int, Meta(ge=EVALUATION)]
_Row = tuple[Natural, Natural, _Ordinal, Natural, bytes, str, float | None, str, bytes | None]
"""A row as a run may have written it."""


PARTLY = 100_000
"""Points that some clients have not answered are remembered up to this many: most methods ask each client elsewhere."""


@dataclass(frozen=True)
class Meter:
    """What a run whose queries cost something needs: where they are logged, and who cannot pay for a turn, and why."""

    log: LedgerLog
    unable: Callable[[int, Mapping[int, int]], Mapping[int, str]]


class LedgerLog:
    """A `QueryLog` that survives a crash. Used from one thread, as its ledger is."""

    def __init__(self, ledger: Ledger, clients: int):
        self._ledger, self._memory = ledger, MemoryLog()
        self.traffic = traffic.Counter(ledger.path.parent)
        if not exists(ledger):
            with ledger.transaction() as db:
                db.execute(LOG_OF_QUERIES)
        rows = list(_read(ledger))
        self._common = Common(clients, _places(rows))
        self._remember(rows)
        self._located: dict[int, set[int]] = {}
        """by client: rounds of which its rows have coordinates, its latest one aside"""
        for row in rows:
            if row.point is not None and row.ordinal != EVALUATION:
                self._located.setdefault(row.client, set()).add(row.round)

    def _remember(self, rows: Sequence[Query]) -> None:
        self._memory.write(rows)
        self._common.add([row for row in rows if row.ordinal != EVALUATION])

    def write(self, rows: Sequence[Query]) -> None:
        with self._ledger.transaction() as db:
            for row in rows:
                values = [getattr(row, column) for column in _COLUMNS.split(", ")]
                db.execute(f"INSERT OR REPLACE INTO queries ({_COLUMNS}) VALUES ({', '.join('?' * 9)})", values)
            probes = [row for row in rows if row.point is not None and row.ordinal != EVALUATION]
            for client, round in {(row.client, row.round) for row in probes}:
                stale = self._memory.latest_round(client)
                if 0 <= stale < round:
                    self._forget(db, client, stale, round)
        self._remember(rows)
        self.traffic.note(rows)

    def _forget(self, db: sqlite3.Connection, client: int, stale: int, now: int) -> None:
        """The coordinates of a round that is over, but for those of the best point: whichever client gave the last
        value there has them."""
        best = self._common.best(now)
        rounds, kept = {stale} | self._located.get(client, set()), b"" if best is None else digest_of(best.point)
        where = "round = ? AND client = ? AND ordinal >= 0"
        for round in rounds:
            db.execute(f"UPDATE queries SET point = NULL WHERE {where} AND digest != ?", (round, client, kept))
        left = f"SELECT 1 FROM queries WHERE {where} AND digest = ? AND point IS NOT NULL"
        here = {round for round in rounds if db.execute(left, (round, client, kept)).fetchone()}
        self._located[client] = here | {now}

    def spent(self, client: int) -> int:
        return self._memory.spent(client)

    def tried(self, client: int, round: int, ordinal: int) -> Sequence[Query]:
        return self._memory.tried(client, round, ordinal)

    def begun(self, client: int, round: int) -> Sequence[Query]:
        return self._memory.begun(client, round)

    def known(self, client: int, round: int) -> list[Query]:
        """What another process needs to carry on with a client's round: where its box has no value, and what it was
        asked in that round."""
        return [*self.absent(client).values(), *self.begun(client, round)]

    def latest(self, client: int, before: int) -> Sequence[tuple[F64, float]]:
        return self._memory.latest(client, before)

    def best(self, clients: int, before: int) -> tuple[F64, dict[int, float]] | None:
        found = self._common.best(before)
        return None if found is None else (found.point, dict(found.values))

    def absent(self, client: int) -> Mapping[bytes, Query]:
        return self._memory.absent(client)

    def queried(self, round: int) -> Queried:
        """What the record of a round says of its queries."""
        return _digests(_read(self._ledger, f"WHERE round = {round} AND ordinal >= 0"))

    def asked(self, after: int) -> Queried:
        """The same of the evaluation before a round."""
        return _digests(_read(self._ledger, f"WHERE round = {after} AND ordinal = {EVALUATION}"))


@dataclass(frozen=True, eq=False)
class Best:
    """A point (d,), the mean over clients there, and what each of them gave."""

    point: F64
    mean: float
    values: Mapping[int, float]


class Common:
    """The smallest mean over clients of all points at which every client gave a value.

    In one round; or, where some did not answer in the first round that asked them, in several: the first value of each
    counts. Rows come by round, those of one round in any order. Of points, those count whose coordinates are known:
    beforehand (`places`, by digest), or from the round that gave the last value.
    """

    def __init__(self, clients: int, places: Mapping[bytes, bytes]):
        self._clients, self._places = clients, dict(places)
        self._open: dict[int, dict[bytes, dict[int, Query]]] = {}
        """by round that is not settled, digest and client: the row of the first value"""
        self._points: dict[int, dict[bytes, bytes]] = {}
        self._partly: dict[bytes, dict[int, float]] = {}
        """by digest: values of settled rounds at points that some clients have not answered yet, the latest ones"""
        self._found: list[tuple[int, Best]] = []
        """each better than those before, with the round that settled it"""

    def add(self, rows: Iterable[Query]) -> None:
        for row in rows:
            if row.point is not None:
                self._points.setdefault(row.round, {})[row.digest] = row.point
            if row.value is not None and row.client < self._clients:
                of = self._open.setdefault(row.round, {}).setdefault(row.digest, {})
                before = of.get(row.client)
                if before is None or (row.ordinal, row.attempt) <= (before.ordinal, before.attempt):
                    of[row.client] = row

    def best(self, before: int | None = None) -> Best | None:
        """Of rounds `before`, which are over."""
        for round in sorted({*self._open, *self._points}):
            if before is None or round < before:
                self._settle(round)
        return next((best for round, best in reversed(self._found) if before is None or round < before), None)

    def _settle(self, round: int) -> None:
        points, best = ChainMap(self._points.pop(round, {}), self._places), None
        for digest, rows in sorted(self._open.pop(round, {}).items()):
            values = {client: row.value for client, row in rows.items() if row.value is not None}
            if len(values) < self._clients:
                values |= self._partly.pop(digest, {})
            if len(values) < self._clients:
                self._partly[digest] = values
            elif digest in points:
                value = mean([values[client] for client in range(self._clients)])
                if best is None or value < best.mean:
                    best = Best(np.frombuffer(points[digest], "<f8"), value, values)
        for digest in [*self._partly][: max(0, len(self._partly) - PARTLY)]:
            del self._partly[digest]
        if best is not None and (not self._found or best.mean < self._found[-1][1].mean):
            self._found.append((round, best))


def _places(rows: Iterable[Query]) -> dict[bytes, bytes]:
    return {row.digest: row.point for row in rows if row.point is not None}


def at_models(ledger: Ledger) -> dict[int, dict[int, float]]:
    """What evaluations that made queries of their own were given, by number of rounds and client."""
    found: dict[int, dict[int, float]] = {}
    for row in _read(ledger, f"WHERE ordinal = {EVALUATION}"):
        if row.value is not None:
            found.setdefault(row.round, {})[row.client] = row.value
    return found


def estimated(ledger: Ledger, evaluation: Evaluation, clients: int, evaluate: str) -> bool:
    """Whether an evaluation in a run with a log had to do without values of some clients at the model."""
    if not exists(ledger):
        return False
    if evaluate == "shared":
        return ESTIMATED in evaluation.metrics.others
    return len(at_models(ledger).get(evaluation.round, {})) < clients


def best(ledger: Ledger, clients: int) -> Best | None:
    """The best point at which all clients gave a value, evaluations included."""
    rows = list(_read(ledger))
    common = Common(clients, _places(rows))
    common.add(rows)
    return common.best()


def values_at(ledger: Ledger, point: F64) -> dict[int, float]:
    """What clients gave at a point, to the last bit, by client; the first value where there are several."""
    found: dict[int, float] = {}
    for row in _read(ledger):
        if row.value is not None and row.digest == digest_of(point):
            found.setdefault(row.client, row.value)
    return found


def located(ledger: Ledger) -> dict[int, list[tuple[F64, float]]]:
    """By client: (point, value) wherever the coordinates are still on record, each point once."""
    found: dict[int, dict[bytes, tuple[F64, float]]] = {}
    for row in _read(ledger):
        if row.point is not None and row.value is not None:
            found.setdefault(row.client, {})[row.digest] = np.frombuffer(row.point, "<f8"), row.value
    return {client: list(of.values()) for client, of in found.items()}


def silent(rows: Iterable[Query]) -> bool:
    """Whether a box was asked, and neither gave a value nor said that it has none. rows: of a round."""
    states = {row.state for row in rows}
    return "failed" in states and not states & {"done", "absent"}


@dataclass(frozen=True)
class Answers:
    """What became of a client's queries.

    failed: attempts that failed; unanswered: points without an answer after all attempts; nowhere: points at which the
    box said that it has no value; valued: points with a value; silent: rounds in a row, up to the last one in which it
    was asked, without any answer; cause: of the last failure.
    """

    failed: int = 0
    unanswered: int = 0
    nowhere: int = 0
    valued: int = 0
    silent: int = 0
    cause: str = ""


def answers(ledger: Ledger, clients: int) -> tuple[Answers, ...]:
    """Of all clients."""
    rows: list[list[Query]] = [[] for _ in range(clients)]
    for row in _read(ledger):
        if row.client < clients:
            rows[row.client].append(row)
    return tuple(map(_answers, rows))


def _answers(rows: Sequence[Query]) -> Answers:
    """Rows of one client, by round and point."""
    states: dict[tuple[int, int], set[str]] = {}
    for row in rows:
        states.setdefault((row.round, row.ordinal), set()).add(row.state)
    quiet = 0
    for _, of_round in groupby((row for row in rows if row.ordinal != EVALUATION), lambda row: row.round):
        asked = [row for row in of_round if row.spent]
        quiet = (quiet + 1 if silent(asked) else 0) if asked else quiet
    return Answers(
        failed=sum(row.state == "failed" for row in rows),
        unanswered=sum("failed" in of and not of & {"done", "absent"} for of in states.values()),
        nowhere=len({row.digest for row in rows if row.state == "absent"}),
        valued=sum("done" in of for of in states.values()),
        silent=quiet,
        cause=next((row.cause for row in reversed(rows) if row.state == "failed"), ""),
    )


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


def exists(ledger: Ledger) -> bool:
    return bool(ledger.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'queries'", -1))


def _read(ledger: Ledger, where: str = "") -> Iterator[Query]:
    if exists(ledger):
        for row in ledger.rows(f"SELECT {_COLUMNS} FROM queries {where} {_ORDER}", -1, _Row):
            if row[-1] is not None and len(row[-1]) % 8:
                raise Tampered(row[1], f"the log of client {row[0]}'s queries has {len(row[-1])} bytes for a point")
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
