"""What a log of queries holds, and what an objective is that keeps one.

A query is written down before its box is called and again when its value is there, so that a crash at any instant loses
no value that was paid for and no count of what was spent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Metrics, Separate

State = Literal["reserved", "done", "failed", "unused"]
"""reserved: about to be made, being made, or lost in a crash; unused: given back, the box was never called."""

EVALUATION = -1
"""Stands for the ordinal of a query that an evaluation made, before the round whose number it carries."""


class QueryFailed(FedzeroError):
    """A client's box gave no value, however often it was asked; the client sits the round out."""


class Unmeasured(FedzeroError):
    """Nothing is known yet of how good the model is."""


@dataclass(frozen=True)
class Query:
    """One attempt at the value of one point.

    ordinal: the how-manieth point of the client's round, or `EVALUATION`; attempt: counts from 0 for every ordinal;
    digest: of the point as the box sees it; point: its coordinates, float64, while they may still be needed.
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

    @property
    def spent(self) -> bool:
        return self.state != "unused"


def digest_of(point: F64) -> bytes:
    """16 bytes that tell one point from another, bit by bit."""
    return point_digest(np.ascontiguousarray(point, "<f8").tobytes())


def point_digest(point: bytes) -> bytes:
    return hashlib.sha256(point).digest()[:16]


class QueryLog(Protocol):
    """Where attempts are written down. `write` returns when all of its rows are safe, all or none of them.

    A row that is there already (same client, round, ordinal and attempt) is replaced.
    """

    def write(self, rows: Sequence[Query]) -> None: ...

    def spent(self, client: int) -> int:
        """How many attempts a client has paid for, in all rounds."""
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


@runtime_checkable
class Metered(Separate, Protocol):
    """An objective whose every query is logged, and may have to be paid from a budget."""

    def ready(self) -> None:
        """Find all boxes, or raise `FedzeroError`. Replay and verify never need them."""
        ...

    def attach(self, log: QueryLog) -> None: ...

    def unable(self, round: int, needs: Mapping[int, int]) -> dict[int, str]:
        """Of clients that would have to ask so many queries in a round: who cannot pay, and why."""
        ...

    def measure(self, params: Params, after: int) -> Metrics:
        """`evaluate` after so many rounds; raises `Unmeasured` where nothing is known."""
        ...
