"""What a link is: one idea of what happens to a contribution on its way, both halves of it in one value.

    on_client   a contribution (values and loss) → another, before it is written as bytes
    admits      what the server may hold clients to that have this link
    on_server   the replies of a cohort → other replies, some of them refused or marked as bounded
    combine     the replies of a cohort → one vector, in place of the mean

A link of your own derives from `Link` and overrides what it needs; what may stand beside it follows from its `traits`.
Four bases are shorter where only one half is needed:

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
from fedzero.model.value import TaggedConfig

Combine = Callable[[Mapping[int, F32], Mapping[int, int]], F32]
"""(contributions by client, how often each was drawn) → one vector."""
Draw = Callable[[], np.random.Generator]
"""Makes a generator of random numbers, a function of the run's keys, the round and the client: everybody who has the
keys, the server too, can make it again."""
Entropy = Callable[[int], bytes]
"""So many bytes that nobody else knows, and that are never drawn again."""


class Contribution(Struct, frozen=True, eq=False):
    """What a client gives: the numbers of the method, and its training loss before local work (None: it is hidden).

    remember: makes the client's memory from the values *as the server will read them*, so that both sides agree even
    where a link changed the values on their way.
    """

    values: F32
    loss: float | None
    remember: Callable[[F32], tuple[NDArray[Any], ...]] | None = None


@dataclass(frozen=True)
class ClientContext:
    """Whose contribution a link changes. draw: public; entropy: the private source, of the operating system."""

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

    refused: who was left out, and why; bounded: whose values were shortened.
    """

    values: Mapping[int, F32]
    weights: Mapping[int, int]
    refused: Mapping[int, str] = field(default_factory=dict)
    bounded: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Promise:
    """Of `count` numbers: how many are not zero, and their norm, at most; infinite: nobody knows."""

    count: int
    places: int
    length: float = math.inf


@dataclass(frozen=True)
class LinkTraits:
    """What follows from a link for what stands beside it.

    sparse: most values that it leaves on the client are zero, and only the others are sent, with their places.
    keeps_residual: clients add what the chain left out to what they send next.
    hides_loss: the loss does not travel exactly. draws_privately: it uses `ClientContext.entropy`, so a contribution is
    on disk before it leaves, and is sent again as it is.
    comparable_only: it looks at numbers of clients side by side, which must mean the same.
    """

    sparse: bool = False
    keeps_residual: bool = False
    hides_loss: bool = False
    draws_privately: bool = False
    comparable_only: bool = False


SHAPES, CODES, MIXES, COMBINES = range(4)
"""Where a link stands in a chain."""


class Link(TaggedConfig):
    """What happens to contributions on their way. The fields are the keys of its table in a recipe's `filters`."""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def traits(self) -> LinkTraits:
        """What it needs and does; a link whose traits depend on no field writes `traits = LinkTraits(…)`."""
        return LinkTraits()

    @property
    def stage(self) -> int:
        if self.has("on_client"):
            return SHAPES
        return COMBINES if self.has("combine") else MIXES

    def has(self, half: str) -> bool:
        """Whether it does something on the client (`on_client`), or on the server (`on_server`, `combine`)."""
        return getattr(type(self), half) is not getattr(Link, half)

    @property
    def reads_each_reply(self) -> bool:
        """Whether it needs the replies of single clients: all that it does on the server."""
        return self.has("on_server") or self.has("combine")

    def on_client(self, mine: Contribution, client: ClientContext) -> Contribution:
        """As many values, finite ones, made of those of the client; what is given is not written into."""
        return mine

    def admits(self, given: Promise) -> Promise:
        """What its client half leaves of values that keep a promise; the server refuses more."""
        return replace(given, places=given.count, length=math.inf) if self.has("on_client") else given

    def on_server(self, replies: Replies) -> Replies:
        """Independent of the order of clients; each is in `values` or in `refused` afterwards."""
        return replies

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        """In place of the mean, independent of the order of contributions. A client that was drawn twice counts twice.

        Methods may call it several times in a round, on parts of what was sent.
        """
        raise NotImplementedError

    def least(self) -> int:
        """How many clients it needs in a round."""
        return 1

    def withstands(self, count: int) -> int | None:
        """How many of `count` contributions may be anything; None: no number of them."""
        return None


class Shaper(Link):
    """Changes a client's values. `sparse` and `feedback`: the traits `sparse` and `keeps_residual`.

    What `most_places` and `longest` promise, the server holds clients to.
    """

    feedback = False
    sparse = False

    @property
    def traits(self) -> LinkTraits:
        return LinkTraits(sparse=self.sparse, keeps_residual=self.feedback)

    def shape(self, values: F32) -> F32:
        raise NotImplementedError

    def most_places(self, count: int) -> int:
        """How many of `count` numbers it leaves that are not zero, at most."""
        return count

    def longest(self, length: float) -> float:
        """The largest norm that it leaves of numbers whose norm is at most `length`; infinite: nobody knows."""
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
        """The largest norm that `count` numbers of a norm of at most `length` can be read with."""
        return math.inf


class Mixer(Link):
    """Changes the values of a cohort before they are combined; independent of their order.

    compares: it looks at numbers of clients side by side, which must mean the same.
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
"""Its name in 0.2."""
