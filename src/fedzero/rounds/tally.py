"""The state of a round in progress: its replies, refusals and costs so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from fedzero.directions.terms import F32
from fedzero.links.gathering import Total
from fedzero.protocol.messages import MemoryChange


class Admitted(Struct, frozen=True):
    """A reply that counts, unpacked."""

    values: F32
    loss: float | None
    """None: a link hides it"""
    queries: int
    digest: bytes
    memory: bytes


@dataclass
class RoundInProgress:
    """Replies, refusals and costs of a round so far, over its exchanges."""

    replies: dict[int, Admitted] = field(default_factory=dict)
    """of the last exchange"""
    shared: list[Mapping[int, F32]] = field(default_factory=list)
    """values of the exchanges before it"""
    totals: list[Total] = field(default_factory=list)
    """of every exchange so far, if a gathering hides the replies"""
    refused: dict[int, str] = field(default_factory=dict)
    stale: dict[int, str] = field(default_factory=dict)
    """clients with a reply to a question that is over; a later question of theirs may be open"""
    bounded: set[int] = field(default_factory=set)
    """clients whose values were shortened"""
    bytes_up: int = 0
    bytes_down: int = 0
    queries: int = 0
    hosts: dict[int, str] = field(default_factory=dict)
    """by client, the host of the replica on which it worked"""
    memories: dict[int, MemoryChange] = field(default_factory=dict)
    """changes of the memories of clients in this process, to keep if the round counts"""
    diverged: set[int] = field(default_factory=set)
    """clients that worked on a different model"""
    losses: dict[int, float] = field(default_factory=dict)
    """at the start of the round"""
    drawn: list[int] = field(default_factory=list)
    """the clients that were asked in this round, each as often as it was drawn"""
    asked: dict[int, int] = field(default_factory=dict)
    """by client, the round of its question, if the question was open when the round began, or is of this round"""
    discounts: dict[int, float] = field(default_factory=dict)
    """of replies to earlier questions"""

    @property
    def weights(self) -> Counter[int]:
        """How often each client was drawn; 1 for clients that were asked in an earlier round."""
        return Counter(self.drawn) + Counter(self.asked.keys() - set(self.drawn))

    @property
    def ended(self) -> set[int]:
        """The clients whose turn ended in this round."""
        return self.asked.keys() & (self.replies.keys() | self.refused.keys())

    @property
    def stale_refused(self) -> dict[int, str]:
        """The stale replies to name: those of clients that do not count in this round."""
        return {client: why for client, why in self.stale.items() if client not in self.replies}

    def late(self) -> dict[int, int]:
        """By client that counts and answered the question of an earlier round: that round."""
        return {client: self.asked[client] for client in self.replies if client in self.discounts}
