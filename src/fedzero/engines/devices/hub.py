"""The desk of a gateway: all sessions, who is present, and which order is open. It lives in the thread of the server's
event loop; the thread of the run posts to it and reads its events.

    run ── post(deliver, …) ──▶ hub ──▶ sessions        run ◀── events ── hub ◀── sessions

An order stays open until it is answered or expires, whatever becomes of the connection: a device that comes back is
sent the same bytes again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.codes import Code, Denied
from fedzero.engines.devices.registry import Place, Registry
from fedzero.engines.devices.session import PIECE, Asked, Session, State
from fedzero.engines.devices.signing import Signer

HANDSHAKE = 10.0
"""Seconds from the first byte of a session until its device has proved who it is."""
MOST_WAITING, MOST_OF_ADDRESS = 4096, 2048
"""Sessions that have not proved anything yet; the latter of one address, behind which may be a whole class."""
MOST_KEPT = 4
"""Checkpoints that are kept for devices that fetch them."""
SWEEP = 0.5


class Came(Struct, frozen=True):
    """A device is here; ready: the round that its model is ready for, None: it has no model."""

    place: int
    ready: int | None


class Caught(Struct, frozen=True):
    """A device that is here has become ready for a round."""

    place: int
    round: int
    digest: bytes


class Said(Struct, frozen=True):
    """An answer to the open order of a place."""

    place: int
    round: int
    exchange: int
    body: bytes


class Declined(Struct, frozen=True):
    place: int
    round: int
    code: int
    text: str


class Went(Struct, frozen=True):
    """A device is gone; for_good: it said so, or may not come back."""

    place: int
    for_good: bool


HubEvent = Came | Caught | Said | Declined | Went


class Hub:
    """places: N; given: those that are given here, None: all. beat: seconds after three of which a device that polls
    and does not come back is gone."""

    def __init__(
        self, registry: Registry, plan: bytes, places: int, beat: int, most: int, given: Sequence[int] | None = None
    ):
        self.registry, self.plan, self.places, self.beat, self.most = registry, plan, places, beat, most
        self.run, self.signer = registry.run, Signer(registry.keys)
        self.given = range(places) if given is None else given
        self.round = 0
        self.events = SimpleQueue[HubEvent]()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.waiting = dict[Session, tuple[float, str]]()
        """sessions without a proof: when they began, and from which address"""
        self.here = dict[int, Session]()
        self.polling = dict[bytes, tuple[Session, float]]()
        """by token: sessions that poll, and when they were last seen"""
        self._addresses = Counter[str]()
        self._asked = dict[int, Asked]()
        self._before = dict[int, m.Answer]()
        self._checkpoints = OrderedDict[bytes, bytes]()
        self._finished: tuple[int, str] | None = None
        self._version = registry.version
        self.connections = 0
        """with last frames to send, perhaps"""
        self.bytes_up = self.bytes_down = 0
        """of all frames, in either direction"""

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a member in the thread of the event loop."""
        assert self.loop is not None
        with suppress(RuntimeError):  # the loop is closed: the run is over
            self.loop.call_soon_threadsafe(call, *arguments)

    # ---- called by the run, through `post`

    def deliver(self, orders: Mapping[int, Asked]) -> None:
        """Open orders, and send them to the devices that are here."""
        for place, asked in orders.items():
            self._asked[place] = asked
            if place in self.here:
                self.here[place].order(asked)

    def expire(self, places: list[int]) -> None:
        for place in places:
            self._asked.pop(place, None)

    def begin(self, round: int) -> None:
        self.round = round

    def resend(self, place: int) -> None:
        """The device has become ready: send it the order that is open, if there is one."""
        if place in self._asked and place in self.here:
            self.here[place].order(self._asked[place])

    def update(self, place: int, bodies: list[bytes]) -> None:
        for body in bodies if place in self.here else ():
            self.here[place].updates(body)

    def offer(self, place: int, body: bytes, sha256: bytes, content: bytes) -> None:
        """Offer a checkpoint, which stays here for some time."""
        self._checkpoints[sha256] = content
        self._checkpoints.move_to_end(sha256)
        while len(self._checkpoints) > MOST_KEPT:
            self._checkpoints.popitem(last=False)
        if place in self.here:
            self.here[place].checkpoint(body)

    def dismiss(self, place: int, why: str) -> None:
        if place in self.here:
            self.here[place].refuse(Code.BUSY, why)

    def pause(self, seconds: int, text: str) -> None:
        """Tell all devices to come back later, and end their sessions."""
        for session in list(self.here.values()):
            session.send(m.Wait(seconds, text))
            session.end()

    def finish(self, rounds: int, reason: str) -> None:
        self._finished = rounds, reason
        for session in list(self.here.values()):
            session.finish(rounds, reason)
            session.end()

    # ---- called by the application

    def session(self, address: str) -> Session:
        """A new session; raises `Denied` if there is no room for one."""
        if self._addresses[address] >= MOST_OF_ADDRESS or len(self.waiting) >= MOST_WAITING:
            raise Denied(Code.BUSY, "too many devices begin at once: try again in some seconds")
        session = Session(self, time.monotonic)
        self.waiting[session] = time.monotonic(), address
        self._addresses[address] += 1
        return session

    def drop(self, session: Session) -> None:
        """The connection of a session is gone."""
        session.end()
        self._no_longer_waiting(session)

    def seen(self, token: bytes) -> Session | None:
        """The session of a device that polls."""
        session, _ = self.polling.get(token, (None, 0.0))
        if session is not None:
            self.polling[token] = session, time.monotonic()
        return session

    def polls(self, session: Session) -> None:
        self.polling[session.token] = session, time.monotonic()

    async def sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            self.sweep(time.monotonic())

    def sweep(self, now: float) -> None:
        """End sessions that take too long to begin, that were withdrawn, or whose device does not poll any more."""
        for session in [s for s, (since, _) in self.waiting.items() if now - since > HANDSHAKE]:
            session.refuse(Code.BUSY, f"the session did not begin in {HANDSHAKE:g} s")
            self._no_longer_waiting(session)
        for token, (session, last) in list(self.polling.items()):
            if session.state is State.OVER or now - last > 3 * self.beat:
                del self.polling[token]
                self.drop(session)
        if (version := self.registry.version) != self._version:
            self._version = version
            for place in self.registry.revoked() & self.here.keys():
                self.here[place].refuse(Code.REVOKED, f"place {place} was withdrawn")

    def _no_longer_waiting(self, session: Session) -> None:
        _, address = self.waiting.pop(session, (0.0, ""))
        if address:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    # ---- the desk of sessions

    def enrol(self, frame: m.Enrol) -> int:
        return self.registry.enrol(frame.ticket, frame.algorithm, frame.key, self.given)

    def holder(self, place: int) -> Place | None:
        return self.registry.holder(place)

    def opened(self, session: Session, ready: int | None) -> None:
        before = self.here.pop(session.place, None)
        if before is not None:
            before.refuse(Code.REPLACED, "the same device has begun another session")
        self._no_longer_waiting(session)
        self.here[session.place] = session
        if self._finished is not None:
            session.finish(*self._finished)
            session.end()
            return
        self.events.put(Came(session.place, ready))

    def ready(self, session: Session, round: int, digest: bytes) -> None:
        self.events.put(Caught(session.place, round, digest))

    def asked(self, place: int) -> Asked | None:
        return self._asked.get(place)

    def answered(self, place: int, frame: m.Answer) -> None:
        del self._asked[place]
        self._before[place] = frame
        self.events.put(Said(place, frame.round, frame.exchange, frame.body))

    def before(self, place: int) -> m.Answer | None:
        return self._before.get(place)

    def refused(self, place: int, frame: m.Refusal) -> None:
        asked = self._asked.get(place)
        if asked is not None and (asked.round, asked.exchange) == (frame.round, frame.exchange):
            del self._asked[place]
            self.events.put(Declined(place, frame.round, frame.code, frame.text))

    def piece(self, sha256: bytes, offset: int) -> bytes | None:
        content = self._checkpoints.get(sha256)
        return None if content is None or offset > len(content) else content[offset : offset + PIECE]

    def left(self, session: Session, for_good: bool) -> None:
        if self.here.get(session.place) is session:
            del self.here[session.place]
            self.events.put(Went(session.place, for_good))
