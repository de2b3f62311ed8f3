"""What a method is, and what a round of it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedzero.links import Coder
from fedzero.links.coders import Plain
from fedzero.links.contract import Contribution as Contribution

Delivery = Literal["catch-up", "snapshot", "fewer"]
"""How a client gets the model: the updates it missed, to fold; the state (or the part of it that it needs); or
whichever of the two is fewer bytes, where the server has a state."""

Form = Literal["dense", "seeded", "auto"]
"""What travels: the numbers of the update, or the scalars of its directions. auto: whichever is fewer bytes."""


PLAIN = Plain()
READS_STATE = "its replies are read beside the state that they were computed at"
"""What holds of a method that does not say otherwise, see `Traits.reads_state`."""


@dataclass(frozen=True)
class Traits:
    """What a method is, in a federation of a scale; what may stand beside it follows from these.

    seeded: updates are scalars of directions; then the ledger keeps them all, and any round can be replayed.
    comparable: number j of two contributions means the same, so that a mean (or a median) of them has a meaning.
    remembers: clients keep something between their turns. self_correcting: a client sends next time, by the method
    itself, what a filter left out this time. first_order: clients are given gradients; all others get values only.
    delivery: updates a client missed, or the state. whole: numbers are values of functions, so that one left out cannot
    count as 0, nor be added to that of another point. unanimous: a round is of use only if all clients answer.
    reads_state: why a reply means nothing beside another state than the one it was computed at; empty: keys and the
    round in which it was asked for say it all, so that a step may be made of the replies of several rounds.
    reads_each_reply: `aggregate` or `share` look at `gathered.contributions`, and not at `gathered.mean()` alone.
    coder: how the numbers of a contribution are written where no link says otherwise.
    """

    seeded: bool = True
    comparable: bool = True
    remembers: bool = False
    self_correcting: bool = False
    first_order: bool = False
    delivery: Delivery = "catch-up"
    whole: bool = False
    unanimous: bool = False
    reads_state: str = READS_STATE
    reads_each_reply: bool = False
    coder: Coder = PLAIN


@dataclass(frozen=True)
class Cost:
    """What a round costs a client.

    replies: how many numbers a client sends in each exchange of the round, hence how many exchanges there are.
    queries: how often a client asks its function, by the paper's formula; first_queries: how often beside that in its
    first turn (until one has counted).
    """

    replies: tuple[int, ...]
    queries: int
    first_queries: int = 0
