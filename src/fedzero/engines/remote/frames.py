"""One end of a `multiprocessing.Pipe` that never waits for the other: messages leave and come piece by piece.

`Connection.recv_bytes` waits for the rest of a message, and takes memory for as many bytes as its length says, before
they come. A process that stops within a message would stop everybody.

    frame = length (int32, big-endian) ‖ message,   or −1 (int32) ‖ length (uint64) ‖ message
"""

from __future__ import annotations

import os
import struct
from multiprocessing.connection import Connection as PipeEnd

PIECE = 1 << 20
"""Bytes that are read at once."""
LARGEST = 1 << 33
"""Bytes of a message, and of messages that the other end has not read."""
SHORTEST_LONG = 1 << 31
"""Bytes of a message from which its length is a uint64."""


class Frames:
    def __init__(self, end: PipeEnd):
        self._end, self._come, self._waiting = end, bytearray(), bytearray()
        os.set_blocking(end.fileno(), False)

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    @property
    def waits(self) -> bool:
        """Whether something has not left yet."""
        return bool(self._waiting)

    def send(self, message: bytes) -> None:
        """Send what the other end takes now; `flush` sends the rest. Raises `OSError`."""
        size = len(message)
        if len(self._waiting) + size > LARGEST:
            raise OSError("the other end does not read")
        self._waiting += struct.pack("!i", size) if size < SHORTEST_LONG else struct.pack("!iQ", -1, size)
        self._waiting += message
        self.flush()

    def flush(self) -> None:
        sent = 0
        try:
            with memoryview(self._waiting) as waiting:
                while sent < len(waiting):
                    sent += os.write(self._end.fileno(), waiting[sent : sent + PIECE])
        except BlockingIOError:
            pass
        finally:
            del self._waiting[:sent]

    def receive(self) -> list[bytes]:
        """The messages that are here. Raises `EOFError` or `OSError` where no more can come."""
        try:
            piece = os.read(self._end.fileno(), PIECE)
        except BlockingIOError:
            return []
        if not piece:
            raise EOFError
        self._come += piece
        found, at = list[bytes](), 0
        while (frame := self._frame(at)) is not None:
            first, at = frame
            found.append(bytes(self._come[first:at]))
        del self._come[:at]
        return found

    def _frame(self, at: int) -> tuple[int, int] | None:
        """Where the message at a place begins and ends; None: it is not here yet."""
        have = len(self._come)
        if have < at + 4:
            return None
        (size,), first = struct.unpack_from("!i", self._come, at), at + 4
        if size == -1:
            if have < first + 8:
                return None
            (size,), first = struct.unpack_from("!Q", self._come, first), first + 8
        if not 0 <= size <= LARGEST:
            raise OSError(f"a message of {size} bytes")
        return (first, first + size) if have >= first + size else None
