"""A web socket of a device, from the bytes of its connection to its session, without a task or a queue between them.

The web server has read the request; from there on each message is obeyed where it arrives, and what there is to send
is written at once. A device that does not read is dropped, one that gives no sign of life too.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fedzero.engines.devices import framing
from fedzero.engines.devices import messages as m
from fedzero.engines.devices.codes import Code, Denied
from fedzero.engines.devices.framing import Frames, Unframed
from fedzero.engines.devices.hub import Hub
from fedzero.engines.devices.session import Session, State

STALLED = 20.0
"""Seconds in which a device must take what was sent."""
PINGS = 100
"""Of one look: thousands at once would hold up answers."""
LOOK = 0.05
LAST_WORDS = 1.0
"""Seconds for which a connection is still read after bytes that are refused: closed at once, it loses the reason."""


class DeviceSocket(asyncio.Protocol):
    """over: is called once with this object after the connection has ended."""

    def __init__(self, hub: Hub, transport: Any, address: str, largest: int, over: Callable[[Any], None]):
        self._hub, self._transport, self._over = hub, transport, over
        self._frames = Frames(largest)
        self._full_since = 0.0
        """since when the device does not take what was sent; 0: it does"""
        self._closing = False
        self._code, self._after = framing.NORMAL, 0.0
        """how it is closed, and after how many seconds"""
        self.heard = self._pinged = time.monotonic()
        self.session: Session | None = None
        hub.connections += 1
        try:
            self.session = hub.session(address)
        except Denied as reason:
            self._write(framing.framed(m.encode(m.Error(int(reason.code), str(reason)))))
            self._close(framing.LATER)
        else:
            self.session.wake = self._flush

    # ---- in

    def data_received(self, data: bytes) -> None:
        session = self.session
        if session is None or self._closing:
            return
        self.heard = time.monotonic()
        try:
            for kind, payload in self._frames.read(data):
                if kind == framing.BINARY:
                    session.receive(payload)
                elif kind == framing.TEXT:
                    session.refuse(Code.MALFORMED, "a message of text: frames are binary")
                elif session.counts():
                    self._control(kind, payload)
                if self._closing:
                    return
        except Unframed as reason:
            code = Code.LARGE if reason.code == framing.LARGE else Code.MALFORMED
            self._code, self._after = reason.code, LAST_WORDS
            session.refuse(code, str(reason))

    def _control(self, kind: int, payload: bytes) -> None:
        if kind == framing.PING and not self._full_since:
            self._write(framing.framed(payload, framing.PONG))
        elif kind == framing.CLOSE:
            self._close(framing.NORMAL)

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._hub.connections -= 1
        if self.session is not None:
            self._hub.drop(self.session)
        self._over(self)

    # ---- out

    def _flush(self) -> None:
        """Send what the session has to send; after its last frame the connection is closed."""
        session = self.session
        assert session is not None
        if self._full_since or self._closing:
            return  # what comes meanwhile waits in the session, which has its limits
        if frames := session.take():
            self._write(b"".join(map(framing.framed, frames)))
        if session.state is State.OVER:
            self._close(self._code)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _close(self, code: int) -> None:
        if self._closing:
            return
        self._closing = True
        self._write(framing.closing(code))
        if self._after:
            asyncio.get_running_loop().call_later(self._after, self._transport.close)
        else:
            self._transport.close()  # after what is still to be sent
        asyncio.get_running_loop().call_later(STALLED, self._transport.abort)
        if self.session is not None:
            self._hub.drop(self.session)

    def pause_writing(self) -> None:
        self._full_since = time.monotonic()

    def resume_writing(self) -> None:
        self._full_since = 0.0
        if self.session is not None:
            self._flush()

    # ---- called by `Pulse` and the server

    def look(self, now: float, beat: float) -> bool:
        """Send a ping, or end what gives no sign of life; whether the connection goes on."""
        stuck = self._full_since and now - self._full_since > STALLED
        if stuck or now - self.heard > 3 * beat:
            self._transport.abort()
            return False
        if self._closing:
            return False
        if now - max(self.heard, self._pinged) >= beat:
            self._pinged = now
            self._write(framing.framed(b"", framing.PING))
        return True

    def shutdown(self) -> None:
        """Of the server."""
        self._close(framing.AWAY)


class Pulse:
    """Looks at each web socket once in `beat` seconds, and often enough at those that do not read."""

    def __init__(self, beat: float):
        self._every = min(beat, STALLED / 2)
        self._beat, self._due = beat, deque[tuple[float, DeviceSocket]]()

    def add(self, socket: DeviceSocket) -> None:
        self._due.append((time.monotonic() + self._every, socket))

    async def for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        for _ in range(min(PINGS, len(self._due))):
            if self._due[0][0] > now:
                return
            _, socket = self._due.popleft()
            if socket.look(now, self._beat):
                self._due.append((now + self._every, socket))
