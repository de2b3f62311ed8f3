"""Who answered and when, what was refused and why, folded over the rounds of a ledger: 44 bytes a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedzero.ledger.records import Round
from fedzero.ledger.turns import NEVER
from fedzero.report.history import Party

MOST = 40
"""Parties that are listed; those with refusals first, then those that have been silent for longest."""
MOST_REASONS = 10_000
"""Reasons that are told apart: some name a number, so that there may be as many as refusals."""
MOST_WAITING = 1 << 14
"""Turns, or rounds, that are entered together: an array is slow to change in one place."""
OTHER = "was refused for another reason"


class Attendance:
    """Arrays over clients, (N,): turns; the last round in which an answer counted, and when it was on disk; refusals,
    the last reason and the round it is of."""

    def __init__(self, clients: int):
        self._turns, self._refused = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
        self._answered, self._reason_round = np.full(clients, NEVER, np.int64), np.full(clients, NEVER, np.int64)
        self._at, self._reason = np.zeros(clients, np.float64), np.zeros(clients, np.int32)
        self._numbers: dict[str, int] = {}
        """of reasons, in the order in which they were first given"""
        self._times: list[int] = []
        self._asked: list[int] = []
        self._counted: list[int] = []
        self._rounds: list[tuple[int, float, int]] = []
        """rounds that are not in the arrays yet: who was asked, whose answer counted; (round, at, how many counted)"""

    def note(self, record: Round, at: float) -> None:
        cohort = counted = set(record.cohort)
        if record.refused:
            refused = dict(record.refused)
            for client, why in refused.items():
                number = self._count(why)
                if client in cohort:
                    self._refused[client] += 1
                    self._reason[client], self._reason_round[client] = number, record.round
            counted = cohort - refused.keys()
        self._asked += cohort
        self._counted += counted
        self._rounds.append((record.round, at, len(counted)))
        if max(len(self._asked), len(self._rounds)) >= MOST_WAITING:
            self._enter()

    def _enter(self) -> None:
        """What waits, into the arrays."""
        if not self._rounds:
            return
        rounds, at, many = (np.array(column) for column in zip(*self._rounds, strict=True))
        np.add.at(self._turns, np.array(self._asked, np.int64), 1)
        last = dict(zip(self._counted, np.repeat(np.arange(len(many)), many).tolist(), strict=True))  # the later counts
        clients, places = np.array([*last], np.int64), np.array([*last.values()], np.int64)
        self._answered[clients], self._at[clients] = rounds[places], at[places]
        self._asked, self._counted, self._rounds = [], [], []

    def _count(self, why: str) -> int:
        if why not in self._numbers and len(self._numbers) >= MOST_REASONS:
            why = OTHER
        number = self._numbers.setdefault(why, len(self._numbers))
        if number == len(self._times):
            self._times.append(0)
        self._times[number] += 1
        return number

    def reasons(self) -> tuple[tuple[str, int], ...]:
        """Why replies were refused, and how often, most frequent first."""
        found = zip(self._numbers, self._times, strict=True)
        return tuple(sorted(found, key=lambda pair: -pair[1]))

    def parties(self, sites: Mapping[str, Sequence[int]] | None = None) -> tuple[Party, ...]:
        """Sites with the clients they have, or clients where there are no sites."""
        self._enter()
        if not sites:
            silent = np.lexsort((self._answered, -self._refused))[:MOST]
            return tuple(self._party(f"client {client}", [client]) for client in sorted(silent.tolist()))
        listed = [self._party(name, mine) for name, mine in sites.items()]
        order = sorted(
            range(len(listed)), key=lambda i: (-listed[i].refused, NEVER if (a := listed[i].answered) is None else a)
        )
        return tuple(listed[i] for i in sorted(order[:MOST]))

    def _party(self, name: str, clients: Sequence[int]) -> Party:
        mine = np.array([client for client in clients if client < len(self._turns)], np.int64)
        last, worst = _latest(mine, self._answered), _latest(mine, self._reason_round)
        return Party(
            name=name,
            clients=len(clients),
            turns=int(self._turns[mine].sum()),
            answered=None if last is None else int(self._answered[last]),
            at=None if last is None else float(self._at[last]),
            refused=int(self._refused[mine].sum()),
            reason="" if worst is None else list(self._numbers)[self._reason[worst]],
        )


def _latest(clients: NDArray[np.int64], rounds: NDArray[np.int64]) -> int | None:
    """Of some clients the one with the last round."""
    if not len(clients) or rounds[clients].max() == NEVER:
        return None
    return int(clients[rounds[clients].argmax()])
