"""A chain of links for contributions: on the client, with a coder as the last link; on the server, with a combiner.

    values ──clip, top-k──▶ values ──quantise | sign──▶ bytes ──▶ values ──nnm──▶ values ──mean | median | krum──▶ one
             on the client                             on the wire             on the server                      vector

Between the two halves there may be a gathering (`gathering.py`), which may replace the replies by their sum.

Any method can use any chain that does not destroy information which the method needs; `check` finds chains that do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedzero.errors import FedzeroError, Refused
from fedzero.links.bounds import norm_of
from fedzero.links.coders import Plain
from fedzero.links.combining import mean
from fedzero.links.contract import (
    CODES,
    COMBINES,
    F32,
    ClientContext,
    Coder,
    Combine,
    Contribution,
    Draw,
    Link,
    Promise,
    Replies,
)
from fedzero.links.gathering import Gathering
from fedzero.model.decoding import decoded
from fedzero.model.updates import pack
from fedzero.oracles.poisson import Poisson


class Coded(Struct, frozen=True, array_like=True):
    """Numbers as sent: places (empty: all, in order; else a bitmap or a list of uint32, the shorter), scale, codes."""

    places: bytes
    scale: bytes
    codes: bytes


ROUNDING = 1e-5
"""The relative tolerance of a clipped norm: numbers and scales are rounded to float32 after clipping."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Coded)


class Sent(Struct, frozen=True):
    """An encoded contribution: its bytes, the values that the server decodes, the residual for the next contribution,
    and the loss that is sent with it (None: no loss is sent)."""

    data: bytes
    values: F32
    residual: F32 | None
    loss: float | None


@dataclass(frozen=True)
class Chain:
    """The links of a recipe, in order. plain: the coder of numbers that no link codes. gathering: between the links on
    the client and the links on the server; None: every reply passes by itself."""

    links: tuple[Link, ...] = ()
    plain: Coder = field(default_factory=Plain)
    gathering: Gathering | None = None

    @cached_property
    def bare(self) -> bool:
        """Whether numbers leave a client as they are."""
        return not self.links and isinstance(self.plain, Plain)

    @cached_property
    def client_links(self) -> tuple[Link, ...]:
        """The links before the coder."""
        return tuple(link for link in self.links if link.has("on_client"))

    @cached_property
    def coder(self) -> Coder:
        return next((link for link in self.links if isinstance(link, Coder)), self.plain)

    @cached_property
    def server_links(self) -> tuple[Link, ...]:
        """The links before the replies are combined."""
        return tuple(link for link in self.links if link.has("on_server"))

    @cached_property
    def combiner(self) -> Link | None:
        return next((link for link in self.links if link.has("combine")), None)

    @cached_property
    def combine(self) -> Combine:
        return mean if self.combiner is None else self.combiner.combine

    @cached_property
    def sparse(self) -> bool:
        return any(link.traits.sparse for link in self.client_links)

    @cached_property
    def codes(self) -> bool:
        """True if a link changes the encoding."""
        return self.sparse or any(isinstance(link, Coder) for link in self.links)

    @cached_property
    def feedback(self) -> bool:
        """True if clients keep a residual: the part of a contribution that the chain left out."""
        return any(link.traits.keeps_residual for link in self.links)

    @cached_property
    def hides_loss(self) -> bool:
        """True if the loss of a client is not sent, or not sent exactly."""
        return self.rows is not None or any(link.traits.hides_loss for link in self.links)

    @cached_property
    def silent(self) -> bool:
        """True if a link counts numbers that are NaN or infinite as zero."""
        return any(link.traits.silent for link in self.links)

    @cached_property
    def private(self) -> bool:
        """True if contributions contain random numbers that nobody can draw again."""
        return any(link.traits.draws_privately for link in (*self.links, self.plain))

    @cached_property
    def rows(self) -> Poisson | None:
        """The Poisson batch of whose units a link reads the contributions; None: values are all that is read."""
        return next((link.traits.rows for link in self.client_links if link.traits.rows is not None), None)

    @cached_property
    def hides_replies(self) -> bool:
        """True if the server gets a sum but no reply of a single client."""
        return self.gathering is not None and self.gathering.hides_replies

    @property
    def hides_clients(self) -> bool:
        """True if nothing that is kept or shown says who took part in a round."""
        return self.gathering is not None and self.gathering.hides_clients

    def check_order(self) -> None:
        """Refuse chains in which a link destroys information that the next link needs."""
        stage, before = 0, ""
        for link in self.links:
            name, own = link.name, link.stage
            if own < stage:
                raise FedzeroError(
                    f"filters: {name!r} cannot follow {before!r}: "
                    "put clip and top-k first, then quantise or sign, then nnm or server-clip, then median, "
                    "trimmed-mean, krum or multi-krum"
                )
            if own == stage and own in (CODES, COMBINES):
                raise FedzeroError(f"filters: {before!r} and {name!r} cannot be combined: keep one of them")
            if link.traits.rows is not None and (before or not link.has("on_client")):
                raise FedzeroError(
                    f"filters: {name!r} makes the values from single rows, on the client and before anything else: "
                    "put it first"
                )
            stage, before = own, name

    def check(
        self,
        method: str,
        comparable: bool,
        cohort: int,
        self_correcting: bool = False,
        whole: bool = False,
        reads_each_reply: bool = False,
    ) -> None:
        """Refuse chains that destroy information which a method or another link needs. Traits alone decide."""
        self.check_order()
        if self.hides_replies:
            self._expect_nobody_reads(method, reads_each_reply or not comparable)
        for link in self.links:
            name, traits = repr(link.name), link.traits
            rest = "feedback = true adds what was left out to the next contribution, but"
            refusals = (
                (
                    traits.sparse and whole,
                    f"{name} leaves numbers out, which then count as 0, but those of {method} are values of functions: "
                    "drop the filter",
                ),
                (
                    traits.keeps_residual and whole,
                    f"{rest} numbers of {method} are values of functions, and the next ones are those of other points: "
                    "set feedback = false",
                ),
                (
                    traits.keeps_residual and self_correcting,
                    f"{rest} {method} does so itself, and it would count twice: set feedback = false",
                ),
                (
                    traits.keeps_residual and self.private,
                    f"{rest} that would take back the noise that another link adds: set feedback = false",
                ),
                (
                    traits.comparable_only and not comparable,
                    f"{name} compares the clients' numbers one by one, but with {method} they belong to different "
                    "directions or models, or add to what each client keeps: use form = 'dense' (and type = 'I' of "
                    "scaffold-zo), a method with shared directions (decomfl), or drop the filter",
                ),
                (
                    cohort < link.least(),
                    f"{name} needs at least {link.least()} clients per round, but federation.cohort = {cohort}",
                ),
            )
            for holds, why in refusals:
                if holds:
                    raise FedzeroError(f"filters: {why}")

    def _expect_nobody_reads(self, method: str, reads_each_reply: bool) -> None:
        """Refuse links and methods that read the replies of single clients after a gathering that hides them."""
        assert self.gathering is not None
        readers = [f"filter {link.name!r}" for link in self.links if link.reads_each_reply]
        readers += [method] if reads_each_reply else []
        if readers:
            raise FedzeroError(
                f"gathering: {self.gathering.name!r} leaves a sum of all replies, but {readers[0]} reads the reply of "
                "every client: drop one of them"
            )

    def on_server(self, replies: Replies, *before: Link) -> Replies:
        """Pass replies through the links `before` and then through the links on the server, except the combiner."""
        for link in (*before, *self.server_links):
            if replies.values:
                replies = link.on_server(replies)
        return replies

    def outcome(self, contributions: Mapping[int, F32], weights: Mapping[int, int], *before: Link) -> F32:
        """The one vector into which the server combines contributions."""
        return self.combine(self.on_server(Replies(contributions, weights), *before).values, weights)

    def promise(self, expected: int) -> Promise:
        """The limits that `expected` numbers of an honest client keep when they are decoded.

        A link with feedback adds a residual, for which the server knows no bound.
        """
        promise, added = Promise(expected, expected), False
        for link in (*self.client_links, self.coder):
            if link.traits.keeps_residual and not added:
                promise, added = Promise(expected, expected), True
            promise = link.admits(promise)
        longest = self.coder.longest(promise.length, promise.places if self.sparse else expected)
        return replace(promise, length=longest * (1 + ROUNDING))

    def limit(self, expected: int) -> int:
        """The most bytes that `expected` numbers may take."""
        return max(4 * expected, self.plain.length(expected)) + (5 * expected + 32 if self.codes else 0)

    def encode(self, values: F32, residual: F32 | None, draw: Draw) -> Sent:
        """Encode numbers without a loss and without private noise, as an attacker sends them."""
        alone = self.private or self.rows is not None
        chain = replace(self, links=tuple(link for link in self.links if _repeats(link))) if alone else self
        return chain.on_client(Contribution(values, None), residual, ClientContext(draw))

    def on_client(self, mine: Contribution, residual: F32 | None, client: ClientContext) -> Sent:
        """Pass one contribution through the client's links. residual: the part that the previous one left out."""
        if self.bare:
            return Sent(pack(mine.values), mine.values, None, mine.loss)
        if not self.silent and not np.isfinite(mine.values).all():  # a link would hide it
            raise Refused("a value is NaN or infinite")
        if self.rows is not None and mine.rows is None:
            raise Refused("a link reads the contributions of single rows, and there are none")
        wanted: F32 | None = None
        for link in (*self.client_links, self.coder):
            if link.traits.keeps_residual and wanted is None:
                wanted = mine.values if residual is None else mine.values + residual
                mine = msgspec.structs.replace(mine, values=wanted)
            mine = link.on_client(mine, client)
        draw = client.private if self.coder.traits.draws_privately else client.draw
        data, read = self._code(mine.values, draw)
        return Sent(data, read, None if wanted is None else wanted - read, mine.loss)

    def _code(self, values: F32, draw: Draw) -> tuple[bytes, F32]:
        if not self.codes:
            data = self.plain.encode(values, draw)[1]
            return data, self.plain.decode(b"", data, len(values))
        places = np.flatnonzero(values) if self.sparse else None
        scale, codes = self.coder.encode(values if places is None else values[places], draw)
        data = _encoder.encode(Coded(b"" if places is None else _pack_places(places, len(values)), scale, codes))
        return data, self.decode(data, len(values))

    def decode(self, data: bytes, expected: int) -> F32:
        """Decode `expected` numbers; `Refused` if their count differs, one is not finite, or they exceed the limits of
        the links on the client."""
        if not self.codes:
            if len(data) != (length := self.plain.length(expected)):
                if isinstance(self.plain, Plain):
                    raise Refused(f"sent {len(data) / 4:g} numbers where {expected} were expected")
                raise Refused(f"sent {len(data)} bytes where {length} were expected")
            values = self.plain.decode(b"", data, expected)
        else:
            values = self._decode_codes(data, expected)
        if not np.isfinite(values).all():
            raise Refused("a value is NaN or infinite")
        longest = self.promise(expected).length if self.client_links else math.inf
        if longest < math.inf and (norm := norm_of(values)) > longest:
            raise Refused(f"sent numbers of norm {norm:.6g} where clipping leaves at most {longest:.6g}")
        return values

    def _decode_codes(self, data: bytes, expected: int) -> F32:
        coded = decoded(_decoder.decode, data, "numbers as this chain codes them")
        places = _unpack_places(coded.places, expected) if self.sparse else None
        count = expected if places is None else len(places)
        if count > (most := self.promise(expected).places):
            raise Refused(f"sent {count} numbers with their places where at most {most} of {expected} are left")
        if len(coded.codes) != self.coder.length(count) or (places is None and coded.places):
            raise Refused(f"sent {len(coded.codes)} bytes of codes where {self.coder.length(count)} were expected")
        values = self.coder.decode(coded.scale, coded.codes, count)
        if places is None:
            return values
        out = np.zeros(expected, np.float32)
        out[places] = values
        return out


NO_FILTERS = Chain()


def _repeats(link: Link) -> bool:
    return isinstance(link, Coder) or not (link.traits.draws_privately or link.traits.rows is not None)


def _pack_places(places: NDArray[np.int64], count: int) -> bytes:
    if 4 * len(places) < -(-count // 8):
        return places.astype("<u4").tobytes()
    bitmap = np.zeros(count, np.uint8)
    bitmap[places] = 1
    return np.packbits(bitmap, bitorder="little").tobytes()


def _unpack_places(data: bytes, count: int) -> NDArray[np.int64]:
    if len(data) == -(-count // 8):
        return np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=count))
    if len(data) % 4 or len(data) > -(-count // 8):
        raise Refused(f"sent a list of places of {len(data)} bytes for {count} numbers")
    places = np.frombuffer(data, "<u4").astype(np.int64)
    if len(places) and (places[-1] >= count or (np.diff(places) <= 0).any()):
        raise Refused("sent places that are out of order or out of range")
    return places
