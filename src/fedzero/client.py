"""A client's half of the protocol, whatever engine carries it: an instruction in, asks out, a reply out.

    client.begin(round, instruction)   come to where the server is, start the round's work
    client.step(answer)                an ask to be answered, or the bytes of a reply
    client.proceed(instruction)        the next exchange of the same round

What a client keeps between its turns (the method's memory, what a filter left out) becomes its own only once the server
says that the turn counted.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedzero.algorithms.contract import Contribution, Memory, Share, Shared, Work
from fedzero.directions.terms import F32
from fedzero.errors import Refused
from fedzero.filters import Chain
from fedzero.oracles import Answer, Ask, Oracle
from fedzero.replica import Replica
from fedzero.updates import unpack
from fedzero.wire import Close, Continue, Reply, decode_instruction, encode_reply, memory_digest, piece_digest

LARGEST = 3.4e38
"""A loss beyond float32 travels as infinity, and is refused."""


@dataclass(frozen=True)
class Notes:
    """What a client keeps between its turns: the method's memory, and by exchange what a filter left out.

    Encoded they are pieces: one that says what the others are, and one for every array. An array of a memory is never
    written into, so one that was there before (the very object) need not be encoded again: `known` has such pieces.
    """

    memory: Memory | None = None
    rests: Mapping[int, F32] = field(default_factory=dict)

    def pieces(self, known: Sequence[Piece] = ()) -> tuple[Piece, ...]:
        before = {id(piece.array): piece for piece in known}
        arrays = [*(self.memory or ()), *(rest for _, rest in sorted(self.rests.items()))]
        header = msgspec.msgpack.encode((self.memory is not None, sorted(self.rests)))
        first = Piece(None, header, piece_digest(header))
        return (first, *(before.get(id(array)) or Piece.of(array) for array in arrays))

    @staticmethod
    def of_pieces(pieces: Sequence[bytes]) -> Notes:
        known, exchanges = msgspec.msgpack.decode(pieces[0], type=tuple[bool, list[int]])
        arrays = [_from(piece) for piece in pieces[1:]]
        cut = len(arrays) - len(exchanges)
        return Notes(tuple(arrays[:cut]) if known else None, dict(zip(exchanges, arrays[cut:], strict=True)))


@dataclass(frozen=True, eq=False)
class Piece:
    """One array of a memory, encoded once."""

    array: NDArray[Any] | None
    body: bytes
    digest: bytes

    @staticmethod
    def of(array: NDArray[Any]) -> Piece:
        body = msgspec.msgpack.encode((array.dtype.str, array.shape, array.tobytes()))
        return Piece(array, body, piece_digest(body))


def _from(piece: bytes) -> NDArray[Any]:
    kind, shape, data = msgspec.msgpack.decode(piece, type=tuple[str, tuple[int, ...], bytes])
    return np.frombuffer(data, np.dtype(kind)).reshape(shape).copy()


class Client:
    """One client at work. Its `replica` may be its own, or one that it shares with others in the same process."""

    def __init__(self, number: int, replica: Replica, oracle: Oracle, chain: Chain):
        self.number, self.replica, self.oracle, self.chain = number, replica, oracle, chain
        self.notes = Notes()
        self.notes_of: int | None = None
        """the round the notes are of, where that is known"""
        self._tried: tuple[int, Notes] | None = None
        self._pieces: tuple[Piece, ...] = ()
        self._work: Work | None = None
        self._round = self._exchange = self._reported = 0
        self._rests: dict[int, F32] = {}
        self._read: F32 | None = None

    @property
    def keeps_notes(self) -> bool:
        return self.replica.algorithm.remembers(self.replica.state.scale) or self.chain.feedback

    def begin(self, round: int, instruction: bytes, own_replica: bool) -> None:
        """Start a round. Who shares a replica that is there already need not decode what would bring it there."""
        if own_replica or self.keeps_notes:
            message = decode_instruction(instruction)
            if isinstance(message, Continue | Close):
                raise Refused("was told to carry on with a round it had not begun")
            if own_replica:
                self.replica.obey(message, self.number)
            self._settle(message.counted)
        self._round, self._exchange, self._rests = round, 0, {}
        self._reported = self.oracle.queries
        self._work = self.replica.work(round, self.number, self.notes.memory)

    def _settle(self, counted: int | None) -> None:
        if self._tried is not None and self._tried[0] == counted:
            self.notes_of, self.notes = self._tried
        self._tried = None

    def keep(self) -> tuple[tuple[int | None, Notes], tuple[int, Notes] | None]:
        """What has to outlast this process: notes that counted, and those that may."""
        return (self.notes_of, self.notes), self._tried

    def recall(self, counted: tuple[int | None, Notes], tried: tuple[int, Notes] | None) -> None:
        """What `keep` gave."""
        (self.notes_of, self.notes), self._tried = counted, tried

    def remembers(self, round: int | None) -> bool:
        """Whether the notes of a round are here."""
        return round is None or round == self.notes_of or (self._tried is not None and round == self._tried[0])

    def proceed(self, instruction: bytes) -> Shared:
        """The answer to what this client shared; to be given to `step`."""
        message = decode_instruction(instruction)
        if not isinstance(message, Continue) or (message.round, message.exchange) != (self._round, self._exchange):
            raise Refused("was told to carry on with another exchange than the one it is in")
        return Shared(unpack(message.values), message.clients, self._read)

    def step(self, answer: Answer) -> Ask | bytes:
        """Carry on until the next ask, or until there is something to send."""
        assert self._work is not None
        try:
            asked = self._work.send(answer)
        except StopIteration as done:
            return self._reply(done.value)
        return self._reply(asked) if isinstance(asked, Share) else asked

    def _reply(self, given: Share | Contribution) -> bytes:
        exchange, algorithm = self._exchange, self.replica.algorithm
        sent = self.chain.encode(
            given.values,
            self.notes.rests.get(exchange),
            lambda: self.replica.keys.generator("filter", self._round, self.number, exchange),
        )
        self._read = sent.values
        if sent.rest is not None:
            self._rests[exchange] = sent.rest
        queries, self._reported = self.oracle.queries - self._reported, self.oracle.queries
        self._exchange += 1
        return encode_reply(
            Reply(
                round=self._round,
                exchange=exchange,
                digest=algorithm.digest(self.replica.state, self.number),
                values=sent.data,
                loss=struct.pack("<f", given.loss if abs(given.loss) < LARGEST else math.inf),
                queries=queries,
                memory=self._remember(given, sent.values) if isinstance(given, Contribution) else b"",
            )
        )

    def _remember(self, given: Contribution, values: F32) -> bytes:
        if not self.keeps_notes:
            return b""
        memory = self.notes.memory if given.remember is None else given.remember(values)
        self._tried = self._round, Notes(memory, self._rests)
        return memory_digest([piece.digest for piece in self.tried()])

    def tried(self) -> tuple[Piece, ...]:
        """What this client will remember if the round counts."""
        assert self._tried is not None
        self._pieces = self._tried[1].pieces(self._pieces)
        return self._pieces
