"""A client's half of the protocol, for every engine: an instruction in, asks out, a reply out.

    client.begin(round, instruction)   bring the replica to the server's round, start the round's work
    client.step(answer)                an ask to be answered, or the bytes of a reply
    client.proceed(instruction)        the next exchange of the same round

A client's memory between its turns (the method's memory, and the residuals of filters) changes only once the server
says that the turn counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedzero.callbacks import ignore
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError, Refused
from fedzero.lines import printable
from fedzero.links import Chain, Sent
from fedzero.links.contract import ClientContext, Entropy
from fedzero.methods.contract import Contribution, Intermediate, IntermediateResult, Memory, Observer, Turn, Work
from fedzero.model.decoding import decoded
from fedzero.model.numbers import Natural
from fedzero.model.updates import unpack
from fedzero.oracles import Answer, Ask, Oracle
from fedzero.protocol.messages import (
    Close,
    Continue,
    MemoryChange,
    Reply,
    chunk_digest,
    decode_instruction,
    decode_reply,
    encode_reply,
    loss_bytes,
    loss_of,
    memory_digest,
)
from fedzero.protocol.replica import Replica

_PLAIN = re.compile(r"[<>|=]?[?biuf](1|2|4|8)?")
"""numpy's names of the types that arrays of a memory may have"""
_headers = msgspec.msgpack.Decoder(tuple[bool, list[int]])
_arrays = msgspec.msgpack.Decoder(tuple[str, tuple[Natural, ...], bytes])


def _no_draw() -> NoReturn:
    raise AssertionError("nothing is drawn where there are no links")


NO_LINKS = ClientContext(_no_draw)
"""For contributions that no link changes. It is made once: a new one for each reply costs time and serves nobody."""


@dataclass(frozen=True)
class ClientMemory:
    """A client's memory between its turns: the method's memory, and by exchange the residual of a filter.

    It is encoded in pieces: a header that describes the others, and one piece for every array. An array of a memory is
    never changed in place, so an array object that was encoded before need not be encoded again: `known` has its piece.
    """

    memory: Memory | None = None
    residuals: Mapping[int, F32] = field(default_factory=dict)

    def chunks(self, known: Sequence[Chunk] = ()) -> tuple[Chunk, ...]:
        before = {id(chunk.array): chunk for chunk in known}
        arrays = [*(self.memory or ()), *(residual for _, residual in sorted(self.residuals.items()))]
        header = msgspec.msgpack.encode((self.memory is not None, sorted(self.residuals)))
        first = Chunk(None, header, chunk_digest(header))
        return (first, *(before.get(id(array)) or Chunk.of(array) for array in arrays))

    @staticmethod
    def of_chunks(chunks: Sequence[bytes]) -> ClientMemory:
        header = chunks[0] if chunks else b""
        known, exchanges = decoded(_headers.decode, header, "the memory of a client", FedzeroError)
        arrays = [_from(chunk) for chunk in chunks[1:]]
        cut = len(arrays) - len(exchanges)
        if cut < 0 or (cut and not known):
            raise FedzeroError(f"not the memory of a client: {len(arrays)} arrays where {len(exchanges)} are named")
        return ClientMemory(tuple(arrays[:cut]) if known else None, dict(zip(exchanges, arrays[cut:], strict=True)))


NOTHING_KEPT = ClientMemory()


@dataclass(frozen=True, eq=False)
class Chunk:
    """One array of a memory, encoded once."""

    array: NDArray[Any] | None
    body: bytes
    digest: bytes

    @staticmethod
    def of(array: NDArray[Any]) -> Chunk:
        body = msgspec.msgpack.encode((array.dtype.str, array.shape, array.tobytes()))
        return Chunk(array, body, chunk_digest(body))


def _from(chunk: bytes) -> NDArray[Any]:
    """An array of plain numbers. Other types are refused: they might be objects or structures, or have no size."""
    kind, shape, data = decoded(_arrays.decode, chunk, "an array of a memory", FedzeroError)
    try:
        if not _PLAIN.fullmatch(kind):
            raise ValueError(f"a type {printable(kind, 20)}")
        return np.frombuffer(data, np.dtype(kind)).reshape(shape).copy()
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise FedzeroError(f"not an array of a memory: {error}") from None


class Client:
    """One client at work. Its `replica` may be its own, or shared with other clients in the same process."""

    def __init__(
        self,
        number: int,
        replica: Replica,
        oracle: Oracle,
        chain: Chain,
        cache: MutableMapping[Any, Any] | None = None,
        observe: Observer = ignore,
        entropy: Entropy = os.urandom,
    ):
        self.number, self.replica, self.oracle, self.chain = number, replica, oracle, chain
        self.cache, self.observe, self._entropy = {} if cache is None else cache, observe, entropy
        self.keeps_memory = replica.traits.remembers or chain.feedback
        self.kept = NOTHING_KEPT
        self._tried: tuple[int, ClientMemory] | None = None
        self._chunks: tuple[Chunk, ...] = ()
        self._written: tuple[bytes, ...] = ()
        """digests of the pieces of `kept`, as far as they were ever sent or recalled"""
        self._work: Work | None = None
        self._round = self._exchange = self._reported = 0
        self._residuals: dict[int, F32] = {}
        self._read: F32 | None = None
        self._before: bytes | None = None

    def begin(self, round: int, instruction: bytes, own_replica: bool, before: bytes | None = None) -> None:
        """Start a round. A client with a shared replica, which is at the right round already, need not decode updates.

        before: the reply that was sent to this instruction already; private randomness is not drawn again.
        """
        if own_replica or self.keeps_memory:
            message = decode_instruction(instruction)
            if isinstance(message, Continue | Close):
                raise Refused("was told to carry on with a round it had not begun")
            if own_replica:
                self.replica.obey(message, self.number)
            self.settle(message.counted)
        self.start(round, before)

    def start(self, round: int, before: bytes | None = None) -> None:
        """Start a round at the replica's current model, with the memory that is here."""
        self._round, self._exchange, self._residuals, self._before = round, 0, {}, before
        self._reported = self.oracle.queries
        kept = self.kept.memory
        turn = Turn(round, self.number, self.replica.keys, kept, self.cache, self.observe, self.chain.rows)
        self._work = self.replica.algorithm.client(self.replica.state, turn)

    def settle(self, counted: int | None) -> None:
        """Make the new memory of the last turn permanent if that turn counted, and drop it otherwise."""
        if self._tried is not None and self._tried[0] == counted:
            self.kept = self._tried[1]
            self._written = tuple(chunk.digest for chunk in self._chunks)
        self._tried = None

    def remember(self, chunks: Sequence[bytes]) -> None:
        """Restore this client's memory from the pieces on the ledger."""
        self.kept, self._written = ClientMemory.of_chunks(chunks), tuple(map(chunk_digest, chunks))

    def change(self) -> MemoryChange:
        """The change of the memory to record if the round counts."""
        chunks, before = self.tried(), self._written
        fresh = [before[i : i + 1] != (chunk.digest,) for i, chunk in enumerate(chunks)]
        return MemoryChange(len(chunks), {i: chunk.body for i, chunk in enumerate(chunks) if fresh[i]})

    def proceed(self, instruction: bytes, before: bytes | None = None) -> IntermediateResult:
        """The server's answer to this client's `Intermediate`, to be passed to `step`. before: see `begin`."""
        message = decode_instruction(instruction)
        if not isinstance(message, Continue) or (message.round, message.exchange) != (self._round, self._exchange):
            raise Refused("received an instruction for a different exchange")
        self._before = before
        return IntermediateResult(unpack(message.values), message.clients, self._read)

    def step(self, answer: Answer) -> Ask | bytes:
        """Continue until the next ask, or until there is a reply to send."""
        assert self._work is not None
        try:
            asked = self._work.send(answer)
        except StopIteration as done:
            return self._reply(done.value)
        return self._reply(asked) if isinstance(asked, Intermediate) else asked

    def _reply(self, given: Intermediate | Contribution) -> bytes:
        exchange = self._exchange
        sent = self._sent(given, exchange)
        self._read = sent.values
        if sent.residual is not None:
            self._residuals[exchange] = sent.residual
        queries, self._reported = self.oracle.queries - self._reported, self.oracle.queries
        self._exchange += 1
        return encode_reply(
            Reply(
                round=self._round,
                exchange=exchange,
                digest=self.replica.state.digest(self.number),
                values=sent.data,
                loss=loss_bytes(sent.loss),
                queries=queries,
                memory=self._remember(given, sent.values) if isinstance(given, Contribution) else b"",
            )
        )

    def absent(self, round: int) -> bytes:
        """The reply of a client that takes no part in a round, where nobody may see that: zeros, and the queries of one
        that does."""
        self._round = round
        cost = self.replica.algorithm.cost(round, self.replica.state.scale)
        noughts = np.zeros(cost.replies[0], np.float32)
        rows = None if self.chain.rows is None else np.empty((0, len(noughts)), np.float32)
        given, digest = Contribution(noughts, None, rows=rows), self.replica.state.digest(self.number)
        sent = self.chain.on_client(given, None, self._context(0))
        return encode_reply(Reply(round, 0, digest, sent.data, b"", cost.queries))

    def _sent(self, given: Intermediate | Contribution, exchange: int) -> Sent:
        """The encoded contribution; the same bytes as before if the client has answered this instruction already."""
        if self.chain.private and self._before is not None:
            reply = decode_reply(self._before, len(self._before))
            read = self.chain.decode(reply.values, len(given.values))
            return Sent(reply.values, read, None, loss_of(reply.loss, hidden=True))
        mine = given if isinstance(given, Contribution) else Contribution(given.values, given.loss)
        context = NO_LINKS if self.chain.bare else self._context(exchange)
        return self.chain.on_client(mine, self.kept.residuals.get(exchange), context)

    def _context(self, exchange: int) -> ClientContext:
        draw = partial(self.replica.keys.generator, "filter", self._round, self.number, exchange)
        return ClientContext(draw, self._round, self.number, exchange, self._entropy)

    def _remember(self, given: Contribution, values: F32) -> bytes:
        if not self.keeps_memory:
            return b""
        memory = self.kept.memory if given.remember is None else given.remember(values)
        self._tried = self._round, ClientMemory(memory, self._residuals)
        return memory_digest([chunk.digest for chunk in self.tried()])

    def tried(self) -> tuple[Chunk, ...]:
        """The pieces of the memory that this client will have if the round counts."""
        assert self._tried is not None
        self._chunks = self._tried[1].chunks(self._chunks)
        return self._chunks
