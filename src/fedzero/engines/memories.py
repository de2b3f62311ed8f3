"""Memories of a host's clients between their turns, as bytes. A new memory counts once the server says so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from fedzero.errors import FedzeroError
from fedzero.model.decoding import decoded
from fedzero.protocol.client import NOTHING_KEPT, ClientMemory
from fedzero.protocol.messages import MemoryChange

Pieces = tuple[bytes, ...]
_Packed = tuple[int | None, Pieces, tuple[int, Pieces] | None]
"""Round and pieces of the memory that counted, and of the memory that may count."""
_memories: msgspec.msgpack.Decoder[_Packed] = msgspec.msgpack.Decoder(_Packed)
_header: msgspec.msgpack.Decoder[tuple[bool, list[int]]] = msgspec.msgpack.Decoder(tuple[bool, list[int]])
NOTHING: Pieces = tuple(chunk.body for chunk in NOTHING_KEPT.chunks())


@dataclass(frozen=True)
class Remembered:
    """The memory of one client. counted: the round of `kept`; None: no round has counted yet. tried: the round and
    pieces that replace `kept` if that round counted."""

    counted: int | None = None
    kept: Pieces = NOTHING
    tried: tuple[int, Pieces] | None = None

    @property
    def pieces(self) -> Pieces:
        """The memory with which a client is made; empty: it has none."""
        return () if self.kept == NOTHING else self.kept

    @property
    def latest(self) -> int:
        """The latest round in this memory; −1: none."""
        tried = -1 if self.tried is None else self.tried[0]
        return max(-1 if self.counted is None else self.counted, tried)

    def has(self, round: int | None) -> bool:
        """Whether the client's memory of a round is here."""
        return round is None or round == self.counted or (self.tried is not None and round == self.tried[0])

    @property
    def begun(self) -> bool:
        """Whether the method has a memory by now."""
        return _header.decode(self.kept[0])[0]

    def settled(self, counted: int | None) -> Remembered:
        """The memory at the beginning of a turn. counted: the round of the last turn that counted, as the server
        says."""
        if self.tried is not None and self.tried[0] == counted:
            return Remembered(counted, self.tried[1])
        return replace(self, tried=None)

    def changed(self, round: int, change: MemoryChange) -> Remembered:
        """The memory at the end of a turn: the changed pieces are kept if the turn counts."""
        pieces = tuple(change.changed[i] if i in change.changed else self.kept[i] for i in range(change.count))
        return replace(self, tried=(round, pieces))

    def packed(self) -> bytes:
        return msgspec.msgpack.encode((self.counted, self.kept, self.tried))

    @staticmethod
    def of(data: bytes) -> Remembered:
        what = "the memory of a client: restore its folder"
        counted, kept, tried = decoded(_memories.decode, data, what, FedzeroError)
        for pieces in (kept, *(() if tried is None else (tried[1],))):
            ClientMemory.of_chunks(pieces)  # a damaged memory is found here, before a turn
        return Remembered(counted, kept, tried)


class Notes(Protocol):
    """A store in which memories outlast a host."""

    def read(self, client: int) -> Remembered: ...
    def write(self, client: int, round: int, memory: Remembered) -> None: ...


class Forgetful:
    """No store: memories last as long as the process."""

    def read(self, client: int) -> Remembered:
        return Remembered()

    def write(self, client: int, round: int, memory: Remembered) -> None: ...
