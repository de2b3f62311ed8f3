"""The log of queries, and the objectives that keep one.

A query is logged before its box is called and again with its value: a crash loses neither values nor counts.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Metrics, Readied, Separate

State = Literal["reserved", "done", "failed", "absent", "unused"]
"""reserved: about to be made, being made, or lost in a crash; absent: the box gave inf or NaN, it has no value there;
unused: given back, the box was never called."""

EVALUATION = -1
"""The ordinal of a query by an evaluation, before the round whose number it carries."""


class QueryFailed(FedzeroError):
    """A client's box gave no value in any attempt; the client does not take part in the round."""


class Waiting(Exception):
    """Values that others are to tell are not all there yet. No `FedzeroError`: nobody failed, and nobody sits out."""


class Unmeasured(FedzeroError):
    """There are no values yet to evaluate a model by."""


@dataclass(frozen=True)
class Query:
    """One attempt at the value of one point.

    ordinal: index of the point in the client's round, or `EVALUATION`; attempt: counts from 0 for every ordinal;
    digest: of the point as the box gets it; point: its coordinates, float64, while they may still be needed. sent,
    received: bytes over a network, of an attempt that has ended; they are not in the log.
    """

    client: int
    round: int
    ordinal: int
    attempt: int
    digest: bytes
    state: State = "reserved"
    value: float | None = None
    cause: str = ""
    point: bytes | None = None
    sent: int = field(default=0, compare=False)
    received: int = field(default=0, compare=False)

    @property
    def spent(self) -> bool:
        return self.state != "unused"


def digest_of(point: F64) -> bytes:
    """16 bytes of a hash of the point's bits."""
    return point_digest(np.ascontiguousarray(point, "<f8").tobytes())


def point_digest(point: bytes) -> bytes:
    return hashlib.sha256(point).digest()[:16]


Told = Callable[[Sequence[Query]], "list[float | str | None]"]
"""What was told of attempts, which have their points: a value, why there is none, or None: not told yet."""


class QueryLog(Protocol):
    """Attempts by client, round, ordinal and attempt. `write` is atomic, durable on return, and replaces equal ones."""

    def write(self, rows: Sequence[Query]) -> None: ...

    def spent(self, client: int) -> int:
        """The number of a client's attempts, in all rounds."""
        ...

    def tried(self, client: int, round: int, ordinal: int) -> Sequence[Query]:
        """The attempts at one point of a round, in order; of a client's latest round only."""
        ...

    def begun(self, client: int, round: int) -> Sequence[Query]:
        """Every attempt of a client's round, evaluations aside; of its latest round only."""
        ...

    def latest(self, client: int, before: int) -> Sequence[tuple[F64, float]]:
        """(point, value) pairs of the last round in which the client gave any; none unless that was `before`."""
        ...

    def best(self, clients: int, before: int) -> tuple[F64, dict[int, float]] | None:
        """Of the points of rounds `before` at which all clients gave a value, that with the smallest mean; by client.

        Without a ledger: of the latest round only."""
        ...

    def absent(self, client: int) -> Mapping[bytes, Query]:
        """By digest: the points of all rounds at which a client's box said that it has no value."""
        ...


class MemoryLog:
    """In memory, with or without a ledger: totals over all rounds, and the rows of each client's latest round."""

    def __init__(self) -> None:
        self._spent: Counter[int] = Counter()
        self._round: dict[int, int] = {}
        self._attempts: dict[int, dict[int, dict[int, Query]]] = {}
        """by client, ordinal and attempt, of the client's `_round`"""
        self._latest: dict[int, tuple[int, dict[int, tuple[F64, float]]]] = {}
        self._absent: dict[int, dict[bytes, Query]] = {}

    def write(self, rows: Sequence[Query]) -> None:
        for row in rows:
            if self._round.get(row.client, -1) < row.round:
                self._round[row.client], self._attempts[row.client] = row.round, {}
            attempts = self._attempts[row.client].setdefault(row.ordinal, {})
            before = attempts.get(row.attempt)
            self._spent[row.client] += row.spent - (before is not None and before.spent)
            attempts[row.attempt] = row
            if row.state == "absent":
                self._absent.setdefault(row.client, {}).setdefault(row.digest, row)
            self._keep(row)

    def _keep(self, row: Query) -> None:
        if row.value is None or row.point is None or row.ordinal == EVALUATION:
            return
        if self.latest_round(row.client) < row.round:
            self._latest[row.client] = row.round, {}
        self._latest[row.client][1][row.ordinal] = np.frombuffer(row.point, "<f8"), row.value

    def latest_round(self, client: int) -> int:
        """The last round in which a client gave a value; −1 if none."""
        return self._latest[client][0] if client in self._latest else -1

    def spent(self, client: int) -> int:
        return self._spent[client]

    def _rows(self, client: int, round: int) -> dict[int, dict[int, Query]]:
        return self._attempts[client] if self._round.get(client) == round else {}

    def tried(self, client: int, round: int, ordinal: int) -> Sequence[Query]:
        return [row for _, row in sorted(self._rows(client, round).get(ordinal, {}).items())]

    def begun(self, client: int, round: int) -> Sequence[Query]:
        rows = self._rows(client, round)
        return [row for ordinal, tries in rows.items() if ordinal != EVALUATION for row in tries.values()]

    def absent(self, client: int) -> Mapping[bytes, Query]:
        return self._absent.get(client, {})

    def latest(self, client: int, before: int) -> Sequence[tuple[F64, float]]:
        if not 0 <= self.latest_round(client) < before:
            return []
        return [pair for _, pair in sorted(self._latest[client][1].items())]

    def best(self, clients: int, before: int) -> tuple[F64, dict[int, float]] | None:
        asked: dict[bytes, dict[int, float]] = {}
        for client in range(clients):
            for point, value in self.latest(client, before):
                asked.setdefault(point.tobytes(), {}).setdefault(client, value)
        common = {point: values for point, values in asked.items() if len(values) == clients}
        if not common:
            return None
        lowest = min(common, key=lambda each: sum(common[each].values()))
        return np.frombuffer(lowest), common[lowest]


@runtime_checkable
class Metered(Separate, Readied, Protocol):
    """An objective whose every query is logged and may count against a budget."""

    def attach(self, log: QueryLog) -> None: ...

    def unable(self, round: int, needs: Mapping[int, int]) -> dict[int, str]:
        """Of clients with the number of queries each needs in a round: those whose budget is too small, and why."""
        ...

    def measure(self, params: Params, after: int, last: bool = False) -> Metrics:
        """`evaluate` after so many rounds; raises `Unmeasured` where there are no values. last: no round follows."""
        ...
