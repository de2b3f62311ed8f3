"""A log of queries in memory: for use without a ledger, and the working set of one in a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedzero.oracles.blackbox.contract import EVALUATION, Query
from fedzero.oracles.contract import F64


class MemoryLog:
    """Totals over all rounds, and the rows of each client's latest round only: earlier ones are never needed."""

    def __init__(self) -> None:
        self._spent: Counter[int] = Counter()
        self._round: dict[int, int] = {}
        self._attempts: dict[int, dict[int, dict[int, Query]]] = {}
        """by client, ordinal and attempt, of the client's `_round`"""
        self._latest: dict[int, tuple[int, dict[int, tuple[F64, float]]]] = {}

    def write(self, rows: Sequence[Query]) -> None:
        for row in rows:
            if self._round.get(row.client, -1) < row.round:
                self._round[row.client], self._attempts[row.client] = row.round, {}
            attempts = self._attempts[row.client].setdefault(row.ordinal, {})
            before = attempts.get(row.attempt)
            self._spent[row.client] += row.spent - (before is not None and before.spent)
            attempts[row.attempt] = row
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

    def latest(self, client: int, before: int) -> Sequence[tuple[F64, float]]:
        if not 0 <= self.latest_round(client) < before:
            return []
        return [pair for _, pair in sorted(self._latest[client][1].items())]
