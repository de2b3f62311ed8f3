"""What a server has to know of its clients: which round each knows, and the updates somebody still needs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fedzero.algorithms.contract import Federation
from fedzero.ledger.records import Round
from fedzero.ledger.replay import LedgerView


@dataclass
class ClientTracker:
    """The server's working set: what each client knows, when it last counted, and the updates somebody still needs.

    `history` is pruned to the most lagged client (or to `pull_after`); the ledger is not.
    """

    known: list[int]
    counted: list[int | None]
    history: dict[int, bytes]
    oldest: int = 0
    """min(known), kept up to date: of many clients it is not looked for in every round"""
    _knowing: Counter[int] = field(default_factory=Counter)
    """how many clients know as much, by what they know"""
    _kept_from: int = 0
    """no earlier round is in `history`"""

    def __post_init__(self) -> None:
        self.oldest, self._knowing = min(self.known), Counter(self.known)

    @staticmethod
    def of(view: LedgerView | None, federation: Federation) -> ClientTracker:
        """After the rounds of a ledger; None: before the first."""
        tracker, rounds = ClientTracker([0] * federation.clients, [None] * federation.clients, {}), []
        if view is not None:
            rounds = view.rounds
        for record in rounds:
            tracker.note(record, federation.sync)
        tracker.prune(len(rounds), federation.pull_after)
        return tracker

    def note(self, record: Round, sync: bool) -> None:
        """Carry on after a round: who knows what, and what has to be kept."""
        out = {client for client, _ in record.refused}
        for client in record.cohort:
            if client not in out:
                self._knows(client, record.round + sync)
                self.counted[client] = record.round
        if record.update is not None and not record.dense:
            self.history[record.round] = record.update

    def _knows(self, client: int, round: int) -> None:
        """What a client knows only grows, so all steps of `oldest` together are at most as many as there are rounds."""
        self._knowing[self.known[client]] -= 1
        self._knowing[round] += 1
        self.known[client] = round
        while not self._knowing[self.oldest]:
            del self._knowing[self.oldest]
            self.oldest += 1

    def prune(self, next_round: int, pull_after: int | None) -> None:
        keep_from = self.oldest
        if pull_after is not None:
            keep_from = max(keep_from, next_round - pull_after)
        for round in range(self._kept_from, keep_from):
            self.history.pop(round, None)
        self._kept_from = max(self._kept_from, keep_from)

    def missed(self, client: int, round: int) -> list[bytes]:
        return [self.history[r] for r in range(self.known[client], round) if r in self.history]
