"""The questions that an engine has sent and that have no answer yet.

A client has one open question at most: the last one that it was sent. A question stays open until its client arrives or
leaves, or until no reply to it may count any more (`may_count`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import structs

from fedzero.protocol.engine import Arrival

W = TypeVar("W")


def may_count(round: int, exchange: int, asked: int, later: int, oldest: int) -> bool:
    """Whether replies to an exchange of a round may count once exchange `later` of the round `asked` begins: those to
    the same exchange do, and those to rounds of up to `oldest` before."""
    return (round, exchange) == (asked, later) or 0 < asked - round <= oldest


@dataclass(eq=False)
class Batch(Generic[W]):
    """The open questions of one `send`. awaited: by client, its message; work: what the engine knows of them."""

    asked: int
    exchange: int
    awaited: dict[int, bytes]
    work: W

    def arrived(self, arrival: Arrival) -> Arrival | None:
        """The arrival with the round of its question, which ends with it; None: its client is not awaited here."""
        if self.awaited.pop(arrival.client, None) is None:
            return None
        return arrival if arrival.asked == self.asked else structs.replace(arrival, asked=self.asked)

    def left(self, clients: Iterable[int]) -> None:
        """Clients that will not arrive any more."""
        for client in clients:
            self.awaited.pop(client, None)


class Outstanding(Generic[W]):
    """Batches in the order in which they were sent. oldest: replies to questions of so many rounds before may count."""

    def __init__(self, oldest: int = 0):
        self.oldest = oldest
        self.batches = list[Batch[W]]()

    def add(self, asked: int, exchange: int, messages: Mapping[int, bytes], work: W) -> Batch[W]:
        """New questions; the clients' earlier ones, and those whose replies count no more, are given up."""
        for batch in self.batches:
            batch.left(messages)
        self.expire(asked, exchange)
        batch = Batch(asked, exchange, dict(messages), work)
        self.batches.append(batch)
        return batch

    def expire(self, asked: int, exchange: int = 0) -> None:
        """An exchange begins: give up the questions whose replies count no more."""
        self.batches = [
            each for each in self.batches if may_count(each.asked, each.exchange, asked, exchange, self.oldest)
        ]

    def prune(self) -> None:
        """Drop the batches that were answered."""
        self.batches = [each for each in self.batches if each.awaited]
