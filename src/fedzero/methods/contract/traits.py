"""The properties of a method, and the cost of its rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedzero.links import Coder
from fedzero.links.coders import Plain

Delivery = Literal["catch-up", "snapshot", "fewer"]
"""How a client gets the model: catch-up: the updates that it missed; snapshot: the state, or the part of it that the
client needs; fewer: the one with fewer bytes, if the server has a state."""

Form = Literal["dense", "seeded", "auto"]
"""The content of an update: dense: its numbers; seeded: the scalars of its directions; auto: whichever is shorter."""


PLAIN = Plain()
READS_STATE = "its replies are read beside the state that they were computed at"
"""The default of `Traits.reads_state`."""
NO_ROWS = "its clients send more than sums over the rows of one batch"
"""The default of `Traits.no_rows`."""


@dataclass(frozen=True)
class Traits:
    """The properties of a method in a federation of a given scale. They decide with which links and settings the method
    can be combined.

    seeded: updates are scalars of directions; then the ledger keeps them all, and any round can be replayed.
    comparable: number j has the same meaning in all contributions, so that their mean (or median) has a meaning.
    remembers: clients have a memory between their turns. self_correcting: the method itself makes a client send next
    time the part that a filter left out this time. first_order: clients get gradients; otherwise only values.
    delivery: see `Delivery`. whole: numbers are values of functions, so a missing one cannot count as 0, nor be added
    to the value at another point. unanimous: a round is useful only if all clients answer.
    reads_state: the reason why a reply is meaningless without the state at which it was computed; empty: the keys and
    the round of the question are enough, so a step may be made of the replies of several rounds.
    no_rows: the reason why its contribution is no sum over the rows of a batch, so that there is none of a single row;
    empty: it serves `Turn.rows`.
    reads_each_reply: `aggregate` or `share` read `gathered.contributions`, not only `gathered.mean()`.
    coder: the encoding of a contribution's numbers unless a link has another.
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
    no_rows: str = NO_ROWS
    reads_each_reply: bool = False
    coder: Coder = PLAIN


@dataclass(frozen=True)
class Cost:
    """The cost of a round for a client.

    replies: how many numbers a client sends in each exchange of the round; its length is the number of exchanges.
    queries: how often a client asks its function, by the paper's formula; first_queries: additional queries in its
    first turn (until one has counted).
    """

    replies: tuple[int, ...]
    queries: int
    first_queries: int = 0
