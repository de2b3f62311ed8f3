"""Connections of strangers, bounded in number, time and memory. The web server behind this sees complete requests only.

    waiting   until the head of its request is complete, HEAD_SECONDS at most; where all places are taken, the one
              that has waited longest makes room, so that connections which send nothing keep nobody out
    open      one request, which is answered, and the connection closed; whatever follows the head is thrown away

A connection whose answer is not fetched is ended after STALLED seconds.
"""

from __future__ import annotations

import asyncio
import re
import resource
import time
from collections.abc import Callable
from contextlib import suppress

MOST = 64
"""Connections at once."""
BACKLOG = 32
"""Connections that are accepted in one go, before any of them can be refused."""
OWN_FILES = 24
"""Files that the process itself has open, at most."""
MOST_FILES = 256
"""What the process lets itself open where more is allowed."""
MOST_MEMORY = 1 << 30
"""Bytes of address space."""
HEAD_SECONDS = 5.0
STALLED = 30.0
SWEEP = 0.5
"""Seconds between two looks at the clock."""
MOST_HEAD = 32 << 10
"""Bytes. Browsers send a machine's cookies to all of its ports, so a few thousand are usual."""
MOST_SURPLUS = 64 << 10
"""Bytes after the head; more end the connection."""
HEAD_END = re.compile(rb"\n\r?\n")


def refusal(status: str, text: str, *fields: str) -> bytes:
    always = "Content-Type: text/plain", f"Content-Length: {len(text)}", "Connection: close"
    return "\r\n".join([f"HTTP/1.1 {status}", *always, *fields, "", text]).encode()


BUSY = refusal("503 Service Unavailable", "too many connections\n", "Retry-After: 5")
TOO_LARGE = refusal("431 Request Header Fields Too Large", "the request is too long\n")
TOO_SLOW = refusal("408 Request Timeout", "the request took too long\n")


class Connections:
    """All connections there are, `most` at most."""

    def __init__(self, most: int, inner: Callable[[], asyncio.Protocol]):
        self.most, self.inner = most, inner
        """inner: makes the protocol of the web server for a request"""
        self.waiting: dict[Guarded, None] = {}
        """in the order in which they came"""
        self.open: dict[Guarded, None] = {}

    def protocol(self) -> Guarded:
        return Guarded(self)

    def enter(self, new: Guarded) -> bool:
        """Whether there is room, or room could be made."""
        if len(self.waiting) + len(self.open) >= self.most:
            oldest = next(iter(self.waiting), None)
            if oldest is None:
                return False
            oldest.refuse(BUSY)
        self.waiting[new] = None
        return True

    def begin(self, complete: Guarded) -> None:
        """The head of its request is complete."""
        del self.waiting[complete]
        self.open[complete] = None

    def leave(self, connection: Guarded) -> None:
        self.waiting.pop(connection, None)
        self.open.pop(connection, None)

    def sweep(self, now: float) -> None:
        """End what takes too long."""
        for connection in [c for c in self.waiting if now - c.since > HEAD_SECONDS]:
            connection.refuse(TOO_SLOW)
        for connection in [c for c in self.open if c.stalled(now)]:
            connection.abort()

    def end_waiting(self) -> None:
        for connection in list(self.waiting):
            connection.abort()

    async def sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self.sweep(time.monotonic())


class Guarded(asyncio.Protocol):
    """One connection: its head is collected here, and given to a protocol of the web server when it is complete."""

    def __init__(self, connections: Connections):
        self.connections = connections
        self.head, self.surplus, self.refused = bytearray(), 0, False
        self.inner: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.since = self.empty = time.monotonic()
        """when it came, and when all that was sent to it had been fetched"""
        if not self.connections.enter(self):
            self.refuse(BUSY)

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        if self.inner is not None:
            self._more(len(data))
            return
        seen = max(0, len(self.head) - 2)
        self.head += data
        end = HEAD_END.search(self.head, seen)
        if (len(self.head) if end is None else end.end()) > MOST_HEAD:
            self.refuse(TOO_LARGE)
        elif end is not None:
            self.connections.begin(self)
            self.inner = self.connections.inner()
            self.inner.connection_made(self.transport)
            self.inner.data_received(bytes(self.head[: end.end()]))
            self._more(len(self.head) - end.end())
            self.head.clear()

    def _more(self, count: int) -> None:
        self.surplus += count
        if self.surplus > MOST_SURPLUS:
            self.abort()

    def eof_received(self) -> bool | None:
        return None if self.inner is None else self.inner.eof_received()

    def pause_writing(self) -> None:
        if self.inner is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self.inner is not None:
            self.inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.connections.leave(self)
        if self.inner is not None:
            self.inner.connection_lost(error)

    def refuse(self, answer: bytes) -> None:
        """Say why, and close."""
        self.refused = True
        self.connections.leave(self)
        self.transport.write(answer)
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def stalled(self, now: float) -> bool:
        if self.transport.get_write_buffer_size() == 0:
            self.empty = now
        return now - self.empty > STALLED


def restrain() -> int:
    """Bound the files and the memory of this process; how many connections it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        soft = files
    with suppress(ValueError, OSError):  # not on every platform
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    return max(4, min(MOST, soft - OWN_FILES - BACKLOG))
