"""The gateway as a web application: a web socket, and polling in which the response to an answer carries the next
order. Frames have the same bytes in both; where it polls, each has its length before it (u32, little-endian).

    /fedzero/1/socket      a web socket (`sockets`); every binary message is a frame
    /fedzero/1/poll        POST; header fedzero-session, once there is one
    /fedzero/1/about       what this is, as JSON
    /join                  where tickets lead: the page of a browser that takes part
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.codes import Code, Denied
from fedzero.engines.devices.hub import HANDSHAKE, Hub
from fedzero.engines.devices.join_page import ROUTES
from fedzero.engines.devices.session import Session, State

PROTOCOL = "fedzero-device/1"
SESSION = "fedzero-session"
KIND = "application/octet-stream"
MOST_HELD = 2
"""Requests of a session that are held: one while the device computes, and the one with its answer."""
MOST_IN_POST = 8
"""Frames in one request."""
LONGEST_ADDRESS = 64
LENGTH = struct.Struct("<I")


def joined(frames: Collection[bytes]) -> bytes:
    """Frames, each with its length before it."""
    return b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)


def split(body: bytes) -> Iterator[bytes]:
    """The frames of a request; raises `Denied` if they are none."""
    at = 0
    for _ in range(MOST_IN_POST):
        if at == len(body):
            return
        (length,) = LENGTH.unpack_from(body.ljust(at + LENGTH.size, b"\xff"), at)
        at += LENGTH.size
        if length > len(body) - at:
            raise Denied(Code.MALFORMED, "a frame is longer than the request")
        yield body[at : at + length]
        at += length
    if at != len(body):
        raise Denied(Code.MALFORMED, f"more than {MOST_IN_POST} frames in one request")


class Gateway:
    """origins: of pages that may connect, beside those of the gateway itself. wait: the longest time in seconds that a
    request of a device that polls is held until there is something to say."""

    def __init__(self, hub: Hub, origins: Collection[str] = (), wait: float = 20.0, largest: int = 1 << 16):
        self.hub, self.origins, self.wait, self.largest = hub, frozenset(origins), wait, largest

    def application(self) -> Starlette:
        routes = [Route("/fedzero/1/poll", self.poll, methods=["POST"]), Route("/fedzero/1/about", self.about), *ROUTES]
        return Starlette(routes=routes)

    def welcome(self, origin: str | None, host: str | None) -> bool:
        """Whether a page of this origin may connect. Programs that are no browser name none."""
        return origin is None or origin in self.origins or urlsplit(origin).netloc == (host or "no host")

    async def about(self, request: Request) -> Response:
        hub = self.hub
        facts = {"protocol": PROTOCOL, "run": hub.run.hex(), "places": hub.places, "fingerprint": _hex(hub)}
        return JSONResponse(facts)

    # ---- polling

    async def poll(self, request: Request) -> Response:
        if not self.welcome(request.headers.get("origin"), request.headers.get("host")):
            return PlainTextResponse("this origin may not connect\n", 403)
        try:
            session, fresh = self._session_of(request)
        except Denied as reason:
            return _answered([m.encode(m.Error(int(reason.code), str(reason)))])
        frames = list[bytes]()
        try:
            frames += split(await asyncio.wait_for(self._body(request), HANDSHAKE))
        except TimeoutError:
            return PlainTextResponse("the request took too long\n", 408)
        except Denied as reason:
            session.refuse(reason.code, str(reason))
        wake = asyncio.Event()
        session.held.append(wake)
        if len(session.held) > MOST_HELD:
            session.held.pop(0).set()  # it is answered now
        session.wake = wake.set
        for frame in frames:
            session.receive(frame)
        if session.state is State.OPEN and not session.outgoing:
            self.hub.connections += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), self.wait)
            self.hub.connections -= 1
        with suppress(ValueError):
            session.held.remove(wake)
        found = session.take() or [m.encode(m.Wait(0, ""))]
        return _answered(found, session.token.hex() if fresh else "")

    def _session_of(self, request: Request) -> tuple[Session, bool]:
        """The session that a request belongs to, and whether it is new."""
        named = request.headers.get(SESSION)
        if named is None:
            session = self.hub.session(_address(request))
            self.hub.polls(session)
            return session, True
        with suppress(ValueError):
            if (found := self.hub.seen(bytes.fromhex(named))) is not None:
                return found, False
        raise Denied(Code.UNEXPECTED, "this session is over: begin another one with Hello")

    async def _body(self, request: Request) -> bytes:
        found = b""
        async for piece in request.stream():
            found += piece
            if len(found) > self.largest:
                raise Denied(Code.LARGE, f"a request of more than {self.largest} bytes")
        return found


def _answered(frames: list[bytes], token: str = "") -> Response:
    return Response(joined(frames), media_type=KIND, headers={SESSION: token} if token else None)


def address_of(client: str, forwarded: str | None) -> str:
    """The address of a device. forwarded: what a proxy says; a proxy of this machine is believed, no other."""
    if forwarded and _loopback(client):
        return forwarded.rpartition(",")[2].strip()[:LONGEST_ADDRESS]
    return client


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(connection: HTTPConnection) -> str:
    return address_of(connection.client.host if connection.client else "", connection.headers.get("x-forwarded-for"))


def _hex(hub: Hub) -> str:
    return hub.signer.fingerprint.hex()
