"""The log of queries on a worker: it knows the slice's part of the driver's log, and writes through the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedzero.oracles.blackbox import MemoryLog, Query
from fedzero.oracles.contract import F64


class SliceLog:
    """A `QueryLog` of one turn. spent: number of attempts of each client in the run; tried: rows of earlier rounds in
    which a box had no value, then the rows of this round; write: returns when rows are on the ledger."""

    def __init__(self, spent: Mapping[int, int], tried: Sequence[Query], write: Callable[[Sequence[Query]], None]):
        self._round, self._write = MemoryLog(), write
        self._round.write(tried)
        self._before = {client: count - self._round.spent(client) for client, count in spent.items()}

    def write(self, rows: Sequence[Query]) -> None:
        self._write(rows)
        self._round.write(rows)

    def spent(self, client: int) -> int:
        return self._before.get(client, 0) + self._round.spent(client)

    def tried(self, client: int, round: int, ordinal: int) -> Sequence[Query]:
        return self._round.tried(client, round, ordinal)

    def begun(self, client: int, round: int) -> Sequence[Query]:
        return self._round.begun(client, round)

    def absent(self, client: int) -> Mapping[bytes, Query]:
        return self._round.absent(client)

    def latest(self, client: int, before: int) -> Sequence[tuple[F64, float]]:
        return self._round.latest(client, before)

    def best(self, clients: int, before: int) -> tuple[F64, dict[int, float]] | None:
        return self._round.best(clients, before)
