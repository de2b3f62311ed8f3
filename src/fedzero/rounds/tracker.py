"""A server's knowledge of its clients: the round of each client's model, and the updates that a client still needs."""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedzero.ledger.records import Round
from fedzero.ledger.turns import Turns
from fedzero.methods.contract import Federation

Earlier = Callable[[int, int], Iterable[Round]]
"""The records of rounds first … last − 1."""


class UpdateHistory:
    """Encoded updates in the order of their rounds, back to back in one buffer: the updates that a client missed are
    one piece of it. Rounds before the first one that is held are read from the ledger when somebody asks for them."""

    def __init__(self, first: int, earlier: Earlier):
        self._earlier = earlier
        self.first, self.next = first, first
        """rounds first … next − 1 are held"""
        self._data, self._rounds, self._ends = bytearray(), array("q"), array("q", [0])
        """the updates; their rounds; their offsets: the beginning of the first, then the end of each"""

    def __len__(self) -> int:
        return len(self._rounds) - self._stale

    def __iter__(self) -> Iterator[int]:
        return iter(self._rounds[self._stale :])

    @property
    def _stale(self) -> int:
        return bisect_right(self._rounds, self.first - 1)

    def append(self, round: int, update: bytes | None) -> None:
        """Add the outcome of the next round; None: it has no update that could be sent."""
        self.next = round + 1
        if update is not None:
            self._data += update
            self._rounds.append(round)
            self._ends.append(len(self._data))

    def between(self, first: int, last: int) -> list[bytes]:
        """The updates of rounds first … last − 1."""
        a, b = self._places(first, last)
        return [bytes(self._data[self._ends[i] : self._ends[i + 1]]) for i in range(a, b)]

    def joined(self, first: int, last: int) -> tuple[int, memoryview]:
        """The number of updates of rounds first … last − 1, and all of them back to back. Release the view before the
        next round is appended."""
        a, b = self._places(first, last)
        return b - a, memoryview(self._data)[self._ends[a] : self._ends[b]]

    def _places(self, first: int, last: int) -> tuple[int, int]:
        if first < self.first:
            self._extend(first)
        low = bisect_right(self._rounds, first - 1)
        return low, bisect_right(self._rounds, last - 1, low)

    def _extend(self, first: int) -> None:
        """Read earlier rounds, at least as many as are held, so that the buffer is copied a few times at most."""
        held = list(zip(self, self.between(self.first, self.next), strict=True))
        begin = max(0, min(first, 2 * self.first - self.next))
        end = self.next  # the last rounds may have no update
        read = [(record.round, record.update) for record in self._earlier(begin, self.first) if not record.dense]
        self._data, self._rounds, self._ends = bytearray(), array("q"), array("q", [0])
        for round, update in read + held:
            self.append(round, update)
        self.first, self.next = begin, end

    def forget(self, before: int) -> None:
        """Drop the rounds before this one. Memory is released once half of the buffer is unused."""
        self.first = max(self.first, min(before, self.next))
        stale = self._stale
        if 2 * self._ends[stale] > len(self._data):
            cut = self._ends[stale]
            del self._data[:cut], self._rounds[:stale]
            self._ends = array("q", (end - cut for end in self._ends[stale:]))


class ClientTracker:
    """The server's working set: the round of each client's model, when the client last counted, and the updates that
    some client still needs.

    `history` is pruned to the client that is furthest behind (or to `pull_after`); the ledger is not. A client costs 16
    bytes. all_follow: every client gets every update in its round, whether it took part or not, so that nobody sees who
    did.
    """

    def __init__(self, federation: Federation, turns: Turns, done: int, earlier: Earlier, all_follow: bool = False):
        self.turns, self._sync, self._all_follow = copy.deepcopy(turns), federation.sync, all_follow
        self.known: NDArray[np.int64] = np.maximum(self.turns.counted + federation.sync, 0)
        """the round of each client's model"""
        if all_follow:
            self.known[:] = max(done - 1, 0)
        rounds, counts = np.unique(self.known, return_counts=True)
        self._knowing = Counter(dict(zip(rounds.tolist(), counts.tolist(), strict=True)))
        """by round: how many clients have the model of that round"""
        self.oldest = int(rounds[0])
        """min(known), kept up to date, because searching many clients in every round would be slow"""
        self.history = UpdateHistory(done, earlier)

    def note(self, record: Round) -> None:
        """Update the working set after a round."""
        if self._all_follow:
            self._follow(record)
            return
        out = {client for client, _ in record.refused}
        counted = sorted(set(record.cohort) - out)
        self.turns.note(record)
        knows = self.turns.counted[counted] + self._sync  # a client has the updates before the question it answered
        self._move(counted, np.maximum(knows, self.known[counted]))
        self.history.append(record.round, None if record.dense else record.update)

    def reached(self, ready: Mapping[int, int]) -> None:
        """Clients that caught up in another way; by client, the round that its model is ready for."""
        further = sorted(client for client, round in ready.items() if round > self.known[client])
        self._move(further, np.array([ready[client] for client in further], np.int64))

    def _move(self, clients: Sequence[int], knows: NDArray[np.int64]) -> None:
        """The models of some clients have reached these rounds."""
        for before, count in Counter(self.known[clients].tolist()).items():
            self._knowing[before] -= count
            if not self._knowing[before]:
                del self._knowing[before]
        self._knowing.update(knows.tolist())
        self.known[clients] = knows
        while not self._knowing[self.oldest]:  # `known` only grows: on average one step per round
            self.oldest += 1

    def _follow(self, record: Round) -> None:
        """Every client has the updates before this round."""
        self.known[:] = self.oldest = record.round
        self._knowing = Counter({record.round: len(self.known)})
        self.history.append(record.round, None if record.dense else record.update)

    def prune(self, next_round: int, pull_after: int | None) -> None:
        self.history.forget(self.oldest if pull_after is None else max(self.oldest, next_round - pull_after))

    def missed(self, known: int, round: int) -> tuple[int, memoryview]:
        """The number of updates that a client with the model of round `known` has to fold before a round, and these
        updates back to back."""
        return self.history.joined(known, round)
