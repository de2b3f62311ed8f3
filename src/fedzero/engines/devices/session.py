"""The gateway's half of a session, without input or output: bytes of a device in, frames for it out.

    new ── Enrol ──▶ new ── Hello ──▶ challenged ── Proof ──▶ open ── Leave, a fatal error ──▶ over

A web socket and a connection that polls drive the same object with the same bytes. Bad bytes never raise: they become
an `Error` frame, and what was on the way in other sessions goes on.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Any, Protocol

from fedzero.engines.devices import messages as m
from fedzero.engines.devices import statements
from fedzero.engines.devices.codes import FAULTS, LASTING, Code, Denied
from fedzero.engines.devices.registry import Place
from fedzero.engines.devices.signing import ED25519, LENGTHS, P256, Signer, Verifier
from fedzero.errors import Refused

MOST_FRAMES, MOST_BYTES = 64, 8 << 20
"""Of frames that wait to be sent; a device that does not fetch them is dropped."""
PIECE = 1 << 16
"""Bytes of a piece of a checkpoint."""
READIES = 2
"""Ready frames for which nothing was sent; each makes the run look up what the device lacks."""
FRAMES_A_SECOND, BURST = 50.0, 200
"""Frames of one session."""


class State(Enum):
    NEW = 1
    CHALLENGED = 2
    OPEN = 3
    OVER = 4


@dataclass(frozen=True)
class Asked:
    """The open order of a place."""

    round: int
    exchange: int
    attempt: int
    body: bytes
    limit: int
    """the most bytes of the answer's body"""


class Desk(Protocol):
    """What a session asks of its gateway."""

    run: bytes
    plan: bytes
    signer: Signer
    beat: int

    @property
    def round(self) -> int:
        """The round of the run."""
        ...

    def enrol(self, frame: m.Enrol, session: Session) -> int: ...

    def holder(self, place: int) -> Place | None: ...

    def expect_welcome(self, place: int, build: str) -> None:
        """Raises `Denied` if the operator lets no such build in, or the place has to wait."""
        ...

    def expect_rare(self, place: int) -> None:
        """Raises `Denied` if a place begins sessions again and again."""
        ...

    def opened(self, session: Session, ready: int | None) -> None:
        """The session's device is who it says. A session of the same place that was open is replaced."""
        ...

    def ready(self, session: Session, round: int, digest: bytes) -> None: ...

    def asked(self, place: int) -> Asked | None: ...

    def answered(self, place: int, frame: m.Answer) -> None:
        """An answer with a valid signature to the open order."""
        ...

    def before(self, place: int) -> m.Answer | None:
        """The last answer of a place."""
        ...

    def refused(self, place: int, frame: m.Refusal) -> None: ...

    def piece(self, sha256: bytes, offset: int) -> bytes | None: ...

    def left(self, session: Session, for_good: bool) -> None: ...

    def faulted(self, session: Session) -> None:
        """The session ends by a fault of its device."""
        ...


class Session:
    """clock: seconds, for the limit of frames alone."""

    def __init__(self, desk: Desk, clock: Callable[[], float]):
        self.desk, self._clock = desk, clock
        self.state, self.place, self.algorithm = State.NEW, -1, 0
        self.token = os.urandom(16)
        self.outgoing: deque[bytes] = deque()
        self.size = 0
        self.up = self.down = 0
        """bytes of frames, from and to the device"""
        self.wake: Callable[[], None] = lambda: None
        """is called when there is something to send, or the session is over"""
        self.held = list[Any]()
        """requests that wait for something to send, where the device polls"""
        self._challenge = b""
        self._verifier: Verifier | None = None
        self._tokens, self._at = float(BURST), clock()
        self._hello: m.Hello | None = None
        self.address = self.build = ""
        self._readies = READIES
        """how many times it may say that it is ready"""

    # ---- out

    def send(self, frame: m.FromGateway) -> None:
        if self.state is State.OVER:
            return
        data = m.encode(frame)
        self.outgoing.append(data)
        self.size += len(data)
        self.down += len(data)
        if len(self.outgoing) > MOST_FRAMES or self.size > MOST_BYTES:
            self.end()  # it reads too slowly
        self.wake()

    def take(self) -> list[bytes]:
        """The frames to send now."""
        found = list(self.outgoing)
        self.outgoing.clear()
        self.size = 0
        return found

    def signed(self, statement: bytes) -> bytes:
        return self.desk.signer.sign(self.algorithm, statement)

    def order(self, asked: Asked) -> None:
        numbers = asked.round, asked.exchange, asked.attempt
        statement = statements.order(self.desk.run, self.place, *numbers, asked.body)
        self.send(m.Order(*numbers, asked.body, self.signed(statement)))

    def updates(self, body: bytes) -> None:
        self._readies += 1
        self.send(m.Updates(body, self.signed(statements.updates(self.desk.run, self.place, body))))

    def checkpoint(self, body: bytes) -> None:
        self._readies += 1
        self.send(m.Checkpoint(body, self.signed(statements.checkpoint(self.desk.run, self.place, body))))

    def finish(self, rounds: int, reason: str) -> None:
        statement = statements.finish(self.desk.run, self.place, rounds, reason)
        self.send(m.Finish(rounds, reason, self.signed(statement)))

    def refuse(self, code: Code, sentence: str) -> None:
        if self.state is State.OVER:
            return
        self.send(m.Error(int(code), sentence))
        if code not in LASTING:
            if code in FAULTS:
                self.desk.faulted(self)
            self.end()

    def end(self, for_good: bool = False) -> None:
        """The session is over; what it still has to send is sent."""
        if self.state is State.OVER:
            return
        before, self.state = self.state, State.OVER
        if before is State.OPEN:
            self.desk.left(self, for_good)
        self.wake()

    # ---- in

    @property
    def limit(self) -> int:
        """The most bytes of a frame that may come now."""
        asked = self.desk.asked(self.place) if self.state is State.OPEN else None
        return m.SMALL + (0 if asked is None else asked.limit)

    def receive(self, data: bytes) -> None:
        """A frame of the device."""
        if self.state is State.OVER:
            return
        self.up += len(data)
        try:
            self._expect_slow()
            if len(data) > self.limit:
                raise Denied(Code.LARGE, f"a frame of {len(data)} bytes where at most {self.limit} were expected")
            try:
                frame = m.decode_device(data, self.limit)
            except Refused as reason:
                raise Denied(Code.MALFORMED, str(reason)) from None
            self._obey(frame)
        except Denied as reason:
            self.refuse(reason.code, str(reason))

    def counts(self) -> bool:
        """Whether something that is no frame, such as a ping, may be answered; it counts as one."""
        try:
            self._expect_slow()
        except Denied:
            return False
        return self.state is not State.OVER

    def _expect_slow(self) -> None:
        now = self._clock()
        self._tokens = min(BURST, self._tokens + (now - self._at) * FRAMES_A_SECOND)
        self._at = now
        self._tokens -= 1
        if self._tokens < -BURST:
            self.send(m.Error(int(Code.RATE), "far too many frames"))
            self.end()
        if self._tokens < 0:
            raise Denied(Code.RATE, f"more than {FRAMES_A_SECOND:g} frames a second: send fewer")

    def _obey(self, frame: m.FromDevice) -> None:
        if isinstance(frame, m.Enrol) and self.state is State.NEW:
            self._enrol(frame)
        elif isinstance(frame, m.Hello) and self.state is State.NEW:
            self._challenged(frame)
        elif isinstance(frame, m.Proof) and self.state is State.CHALLENGED:
            self._proved(frame)
        elif isinstance(frame, m.Beat) and self.state is State.OPEN:
            pass
        elif isinstance(frame, m.Leave):
            self.end(for_good=True)
        elif self.state is State.OPEN and isinstance(frame, m.Answer):
            self._answered(frame)
        elif self.state is State.OPEN and isinstance(frame, m.Refusal):
            self.desk.refused(self.place, frame)
        elif self.state is State.OPEN and isinstance(frame, m.Ready):
            if not self._readies:
                raise Denied(Code.RATE, "Ready without anything that was sent to become ready by")
            self._readies -= 1
            self.desk.ready(self, frame.round, frame.digest)
        elif self.state is State.OPEN and isinstance(frame, m.Fetch):
            self._fetch(frame)
        else:
            raise Denied(Code.UNEXPECTED, f"{type(frame).__name__} where the session is {self.state.name.lower()}")

    def _enrol(self, frame: m.Enrol) -> None:
        _expect_version(frame.version)
        signer = self.desk.signer
        verifier = _verifier(frame.algorithm, frame.key)
        statement = statements.enrol(self.desk.run, frame.ticket, signer.fingerprint, frame.algorithm, frame.key)
        if not verifier(statement, frame.signature):
            raise Denied(Code.SIGNATURE, "the signature of the enrolment is wrong")
        place, self.algorithm = self.desk.enrol(frame, self), frame.algorithm
        signature = self.signed(statements.enrolled(self.desk.run, place, frame.ticket, frame.key))
        self.send(m.Enrolled(self.desk.run, place, signer.public[ED25519], signer.public[P256], signature))

    def _challenged(self, frame: m.Hello) -> None:
        _expect_version(frame.version)
        if frame.run != self.desk.run:
            raise Denied(Code.RUN, "this gateway has another run: the ticket is of an earlier one")
        holder = self._expect_holder(frame)
        self._verifier = _verifier(holder.algorithm, holder.key)
        self._hello, self.algorithm, self._challenge = frame, holder.algorithm, os.urandom(32)
        self.state = State.CHALLENGED
        self.send(m.Challenge(m.VERSION, self._challenge))

    def _expect_holder(self, hello: m.Hello) -> Place:
        holder = self.desk.holder(hello.place)
        if holder is None:
            raise Denied(Code.PLACE, f"nobody has place {hello.place}: enrol first")
        if holder.revoked:
            raise Denied(Code.REVOKED, f"place {hello.place} was withdrawn")
        self.desk.expect_welcome(hello.place, hello.client)
        return holder

    def _proved(self, frame: m.Proof) -> None:
        hello, desk = self._hello, self.desk
        assert hello is not None and self._verifier is not None
        statement = statements.proof(desk.run, hello.place, self._challenge, hello.nonce, hello.ready)
        if not self._verifier(statement, frame.signature):
            raise Denied(Code.SIGNATURE, f"the signature is not of the key of place {hello.place}")
        self._expect_holder(hello)  # it may have been withdrawn meanwhile
        desk.expect_rare(hello.place)
        self.place, self.build, self.state = hello.place, hello.client, State.OPEN
        known = hello.plan == sha256(desk.plan).digest()
        signature = self.signed(statements.welcome(desk.run, self.place, hello.nonce, desk.plan))
        self.send(m.Welcome(b"" if known else desk.plan, desk.beat, desk.round, signature))
        desk.opened(self, hello.ready)

    def _answered(self, frame: m.Answer) -> None:
        asked, numbers = self.desk.asked(self.place), (frame.round, frame.exchange, frame.attempt)
        if asked is None or numbers != (asked.round, asked.exchange, asked.attempt):
            before = self.desk.before(self.place)
            if before == frame:
                return  # it has come already; the device did not know
            if before is not None and numbers == (before.round, before.exchange, before.attempt):
                raise Denied(Code.CONFLICT, f"another answer to the order of round {frame.round}: the first one counts")
            raise Denied(Code.STALE, f"no answer of round {frame.round}, exchange {frame.exchange}, is awaited")
        statement = statements.answer(self.desk.run, self.place, *numbers, asked.body, frame.body)
        assert self._verifier is not None
        if not self._verifier(statement, frame.signature):
            raise Denied(Code.SIGNATURE, f"the signature of the answer is not of the key of place {self.place}")
        self.desk.answered(self.place, frame)

    def _fetch(self, frame: m.Fetch) -> None:
        piece = self.desk.piece(frame.sha256, frame.offset)
        if self.size > PIECE:
            raise Denied(Code.RATE, "a piece before the last one was taken")
        if piece is None:
            self._readies = max(self._readies, 1)
            raise Denied(Code.STALE, "this checkpoint is not kept any more: say Ready again, and get another one")
        self.send(m.Piece(frame.offset, piece))


def _expect_version(version: int) -> None:
    if version != m.VERSION:
        raise Denied(Code.VERSION, f"version {version} of the protocol, and this gateway speaks {m.VERSION}")


def _verifier(algorithm: int, key: bytes) -> Verifier:
    if algorithm not in LENGTHS:
        raise Denied(Code.SIGNATURE, f"algorithm {algorithm} of signatures is not known: Ed25519 is 1, P-256 is 2")
    try:
        return Verifier(algorithm, key)
    except ValueError as error:
        raise Denied(Code.SIGNATURE, f"not a public key: {error}") from None
