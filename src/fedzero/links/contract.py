"""The contract of links. A link changes contributions on their way; its client and server halves are one value.

    on_client   a contribution (values and loss) → another, before it is encoded
    admits      the limits on decoded values that the server may enforce because of this link
    on_server   the replies of a cohort → other replies, some of them refused or marked as bounded
    combine     the replies of a cohort → one vector, in place of the mean

Your own link derives from `Link` and overrides the members that it needs; its `traits` decide which other links and
methods it can be combined with. Four base classes are shorter if only one half is needed:

    Shaper      values → values, on the client
    Coder       values ↔ bytes, the last link on the client
    Mixer       values of a cohort → as many others, on the server
    Combiner    values of a cohort → one vector, on the server
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedzero.directions.terms import F32 as F32
from fedzero.model.value import Named
from fedzero.oracles.poisson import Poisson

Combine = Callable[[Mapping[int, F32], Mapping[int, int]], F32]
"""(contributions by client, how often each was drawn) → one vector."""
Draw = Callable[[], np.random.Generator]
"""Makes a generator of random numbers from the run's keys, the round and the client. Everybody with the keys, including
the server, can make the same generator."""
Entropy = Callable[[int], bytes]
"""Draws so many random bytes that nobody else knows, and that are never drawn again."""


class Contribution(Struct, frozen=True, eq=False):
    """A client's contribution: the numbers of the method, and its training loss before local work (None: hidden).

    remember: makes the client's memory from the values *as the server will read them*, so that both sides agree even
    if a link changed the values on their way.
    rows: if a link reads them (`LinkTraits.rows`), the contributions of single units, (units, P), and as many units as
    the batch happens to have, which may be none; not all numbers need be finite. They never leave the client. `values`
    are noughts then: the link makes them of the rows.
    """

    values: F32
    loss: float | None
    remember: Callable[[F32], tuple[NDArray[Any], ...]] | None = None
    rows: F32 | None = None


@dataclass(frozen=True)
class ClientContext:
    """The round and client of a contribution, with sources of randomness. draw: public; entropy: private, from the
    operating system."""

    draw: Draw
    round: int = 0
    client: int = 0
    exchange: int = 0
    entropy: Entropy = os.urandom

    def private(self) -> np.random.Generator:
        """A generator that follows from no key. A link that uses it has the trait `draws_privately`."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self.entropy(16), "little")))


@dataclass(frozen=True)
class Replies:
    """The replies of an exchange that count. values: by client; weights: how often each client was drawn.

    refused: by client that was left out, the reason; bounded: the clients whose values were shortened.
    """

    values: Mapping[int, F32]
    weights: Mapping[int, int]
    refused: Mapping[int, str] = field(default_factory=dict)
    bounded: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Promise:
    """Upper limits for `count` numbers: how many are not zero, and their norm; infinite: no limit is known."""

    count: int
    places: int
    length: float = math.inf


@dataclass(frozen=True)
class LinkTraits:
    """Properties of a link that decide which other links and methods it can be combined with.

    sparse: most values are zero after its client half, and only the others are sent, with their places.
    keeps_residual: clients add the part that the chain left out to their next contribution.
    hides_loss: the loss is not sent exactly. draws_privately: it uses `ClientContext.entropy`, so a contribution is on
    disk before it leaves, and is sent again unchanged.
    comparable_only: it compares the numbers of clients one by one, so they must have the same meaning. silent: numbers
    that are NaN or infinite count as zero, and nobody is told.
    rows: the Poisson batch of whose units it reads the contributions, one by one (`Contribution.rows`); then there is
    no loss to send. None: it reads values only.
    """

    sparse: bool = False
    keeps_residual: bool = False
    hides_loss: bool = False
    draws_privately: bool = False
    comparable_only: bool = False
    silent: bool = False
    rows: Poisson | None = None


SHAPES, CODES, MIXES, COMBINES = range(4)
"""The position of a link in a chain."""


class Link(Named):
    """Changes contributions on their way. The fields are the keys of its table in a recipe's `filters`."""

    @property
    def traits(self) -> LinkTraits:
        """The properties of the link. If they depend on no field, write `traits = LinkTraits(…)` in the class."""
        return LinkTraits()

    @property
    def stage(self) -> int:
        if self.has("on_client"):
            return SHAPES
        return COMBINES if self.has("combine") else MIXES

    def has(self, half: str) -> bool:
        """Whether the link overrides this member: `on_client`, `on_server` or `combine`."""
        return getattr(type(self), half) is not getattr(Link, half)

    @property
    def reads_each_reply(self) -> bool:
        """Whether the link needs the replies of single clients, as every server half does."""
        return self.has("on_server") or self.has("combine")

    def on_client(self, mine: Contribution, client: ClientContext) -> Contribution:
        """The changed contribution: as many values as before, all finite. The given arrays must not be changed."""
        return mine

    def admits(self, given: Promise) -> Promise:
        """The limits after the client half, for values that keep the given limits; the server refuses larger values."""
        return replace(given, places=given.count, length=math.inf) if self.has("on_client") else given

    def on_server(self, replies: Replies) -> Replies:
        """The changed replies, independent of the order of clients; each client is then in `values` or `refused`."""
        return replies

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        """One vector in place of the mean, independent of the order of contributions. A client that was drawn twice
        counts twice.

        Methods may call it several times in a round, on parts of the contributions.
        """
        raise NotImplementedError

    def least(self) -> int:
        """The fewest clients that the link needs in a round."""
        return 1

    def withstands(self, count: int) -> int | None:
        """How many of `count` contributions may be arbitrary; None: the link gives no guarantee."""
        return None


class Shaper(Link):
    """Changes a client's values. `sparse` and `feedback`: the traits `sparse` and `keeps_residual`.

    The server enforces the limits of `most_places` and `longest`.
    """

    feedback = False
    sparse = False

    @property
    def traits(self) -> LinkTraits:
        return LinkTraits(sparse=self.sparse, keeps_residual=self.feedback)

    def shape(self, values: F32) -> F32:
        raise NotImplementedError

    def most_places(self, count: int) -> int:
        """The most numbers, out of `count`, that are not zero afterwards."""
        return count

    def longest(self, length: float) -> float:
        """The largest norm afterwards of numbers with a norm of at most `length`; infinite: no limit is known."""
        return math.inf

    def on_client(self, mine: Contribution, client: ClientContext) -> Contribution:
        return msgspec.structs.replace(mine, values=self.shape(mine.values))

    def admits(self, given: Promise) -> Promise:
        return Promise(given.count, min(given.places, self.most_places(given.count)), self.longest(given.length))


class Coder(Link):
    """Writes numbers as a scale and codes, `length(n)` bytes of codes for n numbers. `feedback`: see `Shaper`."""

    feedback = False

    @property
    def traits(self) -> LinkTraits:
        return LinkTraits(keeps_residual=self.feedback)

    @property
    def stage(self) -> int:
        return CODES

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        raise NotImplementedError

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        """The numbers that `encode` wrote; raises `Refused` for an invalid scale. Lengths are checked before."""
        raise NotImplementedError

    def length(self, count: int) -> int:
        raise NotImplementedError

    def longest(self, length: float, count: int) -> float:
        """The largest norm after decoding of `count` numbers with a norm of at most `length`."""
        return math.inf


class Mixer(Link):
    """Changes the values of a cohort before they are combined; independent of their order.

    compares: it compares the numbers of clients one by one, so they must have the same meaning.
    """

    compares: ClassVar[bool] = True

    @property
    def traits(self) -> LinkTraits:
        return LinkTraits(comparable_only=self.compares)

    def mix(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> dict[int, F32]:
        raise NotImplementedError

    def on_server(self, replies: Replies) -> Replies:
        return replace(replies, values=self.mix(replies.values, replies.weights))


class Combiner(Link):
    """Replaces the mean: override `combine`."""

    traits = LinkTraits(comparable_only=True)


Filter = Link
"""The name of `Link` in 0.2."""
