"""The desk of a gateway: all sessions, who is present, and which order is open. It lives in the thread of the server's
event loop; the thread of the run posts to it and reads its events.

    run ── post(deliver, …) ──▶ hub ──▶ sessions        run ◀── events ── hub ◀── sessions

An order stays open until it is answered or expires, whatever becomes of the connection: a device that comes back is
sent the same bytes again.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

from fedzero.engines.devices import limits
from fedzero.engines.devices import messages as m
from fedzero.engines.devices.codes import Code, Denied
from fedzero.engines.devices.controls import Controls, Meter, Traffic, blocks
from fedzero.engines.devices.graphs import GraphFile
from fedzero.engines.devices.limits import Buckets
from fedzero.engines.devices.registry import Place, Registry
from fedzero.engines.devices.session import PIECE, Asked, Session, State
from fedzero.engines.devices.signing import Signer
from fedzero.errors import FedzeroError

HANDSHAKE = 10.0
"""Seconds from the first byte of a session until its device has proved who it is."""
MOST_WAITING, MOST_OF_ADDRESS = 4096, 2048
"""Sessions that have not proved anything yet; the latter of one address, behind which may be a whole class."""
MOST_KEPT = 4
"""Checkpoints that are kept for devices that fetch them."""
SWEEP = 0.5
WRITE_EVERY = 5.0
"""Seconds between two writings of traffic."""
SPENT = "this place has used its bytes of today: come back after midnight UTC"
GATHER = 0.002
"""Seconds in which events are gathered: to wake the run's thread for each would cost more than the answers."""


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

    session_type: type[Session] = Session

    def __init__(
        self,
        registry: Registry,
        plan: bytes,
        places: int,
        beat: int,
        most: int,
        given: Sequence[int] | None = None,
        budget: int = 0,
    ):
        self.registry, self.plan, self.places, self.beat, self.most = registry, plan, places, beat, most
        self.run, self.signer = registry.run, Signer(registry.keys)
        self.given = range(places) if given is None else given
        self.round = 0
        self.events = SimpleQueue[HubEvent]()
        self._gathered = list[HubEvent]()
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
        self.graph: GraphFile | None = None
        self._finished: tuple[int, str] | None = None
        registry.hurry()
        self.controls = Controls(registry.folder)
        self.controls.nobody_is_here()
        self.paused, self._blocked = self.controls.paused, self.controls.blocked
        """what the operator said last"""
        self.meter = Meter(self.controls.traffic(), budget)
        self._enrolments, self._refusals = Buckets(limits.ENROLMENTS), Buckets(limits.REFUSALS)
        self._faults, self._sessions = Buckets(limits.FAULTS), Buckets(limits.SESSIONS)
        self._told = set[int]()
        """places that have heard of the end"""
        self._version = registry.version
        self.connections = 0
        """with last frames to send, perhaps"""

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a member in the thread of the event loop."""
        assert self.loop is not None
        with suppress(RuntimeError):  # the loop is closed: the run is over
            self.loop.call_soon_threadsafe(call, *arguments)

    def _happened(self, event: HubEvent) -> None:
        if self.loop is None:
            self.events.put(event)
            return
        self._gathered.append(event)
        if len(self._gathered) == 1:
            self.loop.call_later(GATHER, self._pass_on)

    def _pass_on(self) -> None:
        found, self._gathered = self._gathered, []
        for event in found:
            self.events.put(event)

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
            self._faults.take(place, time.monotonic())
            self.here[place].refuse(Code.BUSY, why)

    def pause(self, seconds: int, text: str) -> None:
        """Tell all devices to come back later, and end their sessions."""
        for session in list(self.here.values()):
            session.send(m.Wait(seconds, text))
            session.end()

    def finish(self, rounds: int, reason: str) -> None:
        self._finished = rounds, reason
        for session in list(self.here.values()):
            self._finish(session, rounds, reason)

    def _finish(self, session: Session, rounds: int, reason: str) -> None:
        session.finish(rounds, reason)
        self._told.add(session.place)
        session.end()

    def untold(self) -> list[int]:
        """The places that have not heard of the end; called by the run."""
        held = (place.place for place in self.registry.places() if not place.revoked)
        return [place for place in held if place not in self._told]

    # ---- called by the application

    def session(self, address: str) -> Session:
        """A new session; raises `Denied` if there is no room for one."""
        address, now = limits.network_of(address), time.monotonic()
        if wait := self._refusals.seconds(address, now):
            raise Denied(Code.COOL, f"too much from this address was refused: come back in {wait} s")
        if self._addresses[address] >= MOST_OF_ADDRESS:
            self._make_way(address)
        elif len(self.waiting) >= MOST_WAITING:
            self._make_way(self._addresses.most_common(1)[0][0])
        session = self.session_type(self, time.monotonic)
        session.address = address
        self.waiting[session] = now, address
        self._addresses[address] += 1
        return session

    def _make_way(self, address: str) -> None:
        """End the session of an address that has waited for the longest time: whoever means it proves at once."""
        session = next(each for each, (_, of) in self.waiting.items() if of == address)
        session.refuse(Code.BUSY, "too many devices begin at once: try again in some seconds")
        self._no_longer_waiting(session)

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
            self._obey()
        if self.meter.budget:
            self._count_all()
            for place in [place for place in self.here if self.meter.spent(place)]:
                self.here[place].refuse(Code.BUDGET, SPENT)

    def _obey(self) -> None:
        """Of what the operator has changed."""
        self.paused, self._blocked = self.controls.paused, self.controls.blocked
        for place in self.registry.revoked() & self.here.keys():
            self.here[place].refuse(Code.REVOKED, f"place {place} was withdrawn")
        for session in list(self.here.values()) if self._blocked else ():
            if blocks(self._blocked, session.build):
                session.refuse(Code.BUILD, f"the build {session.build!r} is blocked: get another one")

    def _count_all(self) -> None:
        for session in self.here.values():
            self._count(session)

    def _count(self, session: Session, here: bool = True) -> None:
        """Note the bytes of a session since the last time."""
        if session.up or session.down or not here:
            up, down, session.up, session.down = session.up, session.down, 0, 0
            self.meter.note(session.place, up, down, session.build, here)

    async def write_for_ever(self) -> None:
        """Keep the traffic of places on disk, in a thread of its own: the disk may be slow."""
        while True:
            await asyncio.sleep(WRITE_EVERY)
            self._count_all()
            found = self.meter.changed()
            with suppress(FedzeroError, sqlite3.Error):
                await asyncio.to_thread(self._kept, found)

    def _kept(self, found: list[Traffic]) -> None:
        with closing(Controls(self.registry.folder)) as controls:
            controls.write(found)

    def close(self) -> None:
        """The gateway has ended."""
        with suppress(FedzeroError, sqlite3.Error):
            self._kept(self.meter.changed())
            self.controls.nobody_is_here()
        self.controls.close()

    def _no_longer_waiting(self, session: Session) -> None:
        _, address = self.waiting.pop(session, (0.0, ""))
        if address:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    # ---- the desk of sessions

    def enrol(self, frame: m.Enrol, session: Session) -> int:
        now = time.monotonic()
        if not self._enrolments.take(session.address, now):
            wait = self._enrolments.seconds(session.address, now)
            raise Denied(Code.COOL, f"too many devices of this address enrol at once: come back in {wait} s")
        with self._durable():
            return self.registry.enrol(frame.ticket, frame.algorithm, frame.key, self.given)

    @contextmanager
    def _durable(self) -> Iterator[None]:
        """A disk that is full, or a file that somebody else holds, is no end of the gateway."""
        try:
            yield
        except (FedzeroError, sqlite3.Error) as error:
            if isinstance(error, Denied):
                raise
            raise Denied(Code.BUSY, "places cannot be written now: try again later") from error

    def expect_welcome(self, place: int, build: str) -> None:
        now = time.monotonic()
        if blocks(self._blocked, build):
            raise Denied(Code.BUILD, f"the build {build!r} is blocked: get another one")
        if self.paused:
            raise Denied(Code.PAUSED, f"the operator has paused the run: {self.paused}")
        if self.meter.spent(place):
            raise Denied(Code.BUDGET, SPENT)
        if wait := self._faults.seconds(place, now):
            raise Denied(Code.COOL, f"place {place} has ended too many sessions by mistakes: come back in {wait} s")

    def expect_rare(self, place: int) -> None:
        now = time.monotonic()
        if not self._sessions.take(place, now):
            wait = self._sessions.seconds(place, now)
            raise Denied(Code.COOL, f"place {place} begins too many sessions: come back in {wait} s")

    def faulted(self, session: Session) -> None:
        if session.state is State.OPEN:
            self._faults.take(session.place, time.monotonic())
        elif session.address:
            self._refusals.take(session.address, time.monotonic())

    def holder(self, place: int) -> Place | None:
        with self._durable():
            return self.registry.holder(place)

    def opened(self, session: Session, ready: int | None) -> None:
        before = self.here.pop(session.place, None)
        if before is not None:
            before.refuse(Code.REPLACED, "the same device has begun another session")
        self._no_longer_waiting(session)
        self.here[session.place] = session
        self.meter.note(session.place, session.up, session.down, session.build, True)
        session.up = session.down = 0
        if self._finished is not None:
            self._finish(session, *self._finished)
            return
        self._happened(Came(session.place, ready))

    def ready(self, session: Session, round: int, digest: bytes) -> None:
        self._happened(Caught(session.place, round, digest))

    def asked(self, place: int) -> Asked | None:
        return self._asked.get(place)

    def answered(self, place: int, frame: m.Answer) -> None:
        del self._asked[place]
        self._before[place] = frame
        self._happened(Said(place, frame.round, frame.exchange, frame.body))

    def before(self, place: int) -> m.Answer | None:
        return self._before.get(place)

    def refused(self, place: int, frame: m.Refusal) -> None:
        asked = self._asked.get(place)
        if asked is not None and (asked.round, asked.exchange) == (frame.round, frame.exchange):
            del self._asked[place]
            self._happened(Declined(place, frame.round, frame.code, frame.text))

    def piece(self, sha256: bytes, offset: int) -> bytes | None:
        if self.graph is not None and sha256 == self.graph.sha256:
            return self.graph.piece(offset, PIECE)
        content = self._checkpoints.get(sha256)
        return None if content is None or offset > len(content) else content[offset : offset + PIECE]

    def left(self, session: Session, for_good: bool) -> None:
        self._count(session, here=self.here.get(session.place) not in (None, session))
        if self.here.get(session.place) is session:
            del self.here[session.place]
            self._happened(Went(session.place, for_good))
