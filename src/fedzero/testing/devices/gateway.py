"""A gateway that keeps what devices send, and says on request what no gateway says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import msgspec

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.application import Gateway
from fedzero.engines.devices.codes import LASTING, Code
from fedzero.engines.devices.hub import Hub
from fedzero.engines.devices.plan import DevicePlan, encode
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.serving import listening, served
from fedzero.engines.devices.session import Asked, Session, State
from fedzero.engines.devices.statements import DOMAIN
from fedzero.engines.devices.ticket import address
from fedzero.errors import Refused

LARGEST = 1 << 16
MOST = 500


@dataclass(frozen=True)
class Heard:
    """A frame of a device. frame: none if it cannot be read."""

    session: int
    data: bytes
    frame: m.FromDevice | None


@dataclass(frozen=True)
class Refusing:
    """The gateway refuses the last frame."""

    session: int
    code: Code
    sentence: str


@dataclass(frozen=True)
class Ended:
    session: int


Seen = Heard | Refusing | Ended


@dataclass
class Deviations:
    """spoilt: kinds of statements that are signed wrongly. longer: frames of the gateway have one element more.
    breaking: the next Fetch that is not of the first byte ends the connection."""

    spoilt: set[str] = field(default_factory=set)
    longer: bool = False
    breaking: bool = False


class Watched(Session):
    """A session of a `Desk`."""

    desk: Desk

    def receive(self, data: bytes) -> None:
        try:
            frame: m.FromDevice | None = m.decode_device(data, LARGEST)
        except Refused:
            frame = None
        self.desk.noted.put(Heard(id(self), data, frame))
        if self.desk.deviations.breaking and isinstance(frame, m.Fetch) and frame.offset:
            self.desk.deviations.breaking = False
            self.end()
        super().receive(data)

    def send(self, frame: m.FromGateway) -> None:
        before = len(self.outgoing)
        super().send(frame)
        if self.desk.deviations.longer and len(self.outgoing) > before:
            self.outgoing[-1] = longer(self.outgoing[-1])

    def put(self, data: bytes) -> None:
        """Send these bytes."""
        self.outgoing.append(data)
        self.wake()

    def signed(self, statement: bytes) -> bytes:
        kind = statement.removeprefix(DOMAIN).partition(b"\0")[0].decode()
        found = super().signed(statement)
        return found[:-1] + bytes([found[-1] ^ 1]) if kind in self.desk.deviations.spoilt else found

    def refuse(self, code: Code, sentence: str) -> None:
        if code is not Code.REPLACED:
            self.desk.noted.put(Refusing(id(self), code, sentence))
        super().refuse(code, sentence)

    def end(self, for_good: bool = False) -> None:
        if self.state is not State.OVER:
            super().end(for_good)
            self.desk.noted.put(Ended(id(self)))


def longer(frame: bytes) -> bytes:
    """A frame with an element behind its last field."""
    return m.encode([*msgspec.msgpack.decode(frame), "an element of a later version"])


class Desk(Hub):
    session_type = Watched

    def __init__(self, registry: Registry, plan: bytes, places: int, beat: int):
        super().__init__(registry, plan, places, beat, MOST)
        self.noted = SimpleQueue[Seen]()
        self.deviations = Deviations()

    def here_or_none(self, place: int) -> Watched | None:
        found = self.here.get(place)
        return found if isinstance(found, Watched) else None

    def put(self, place: int, data: bytes) -> None:
        if (session := self.here_or_none(place)) is not None:
            session.put(data)

    def order(self, place: int, asked: Asked) -> None:
        """Open an order and send it."""
        self.deliver({place: asked})

    def open_only(self, place: int, asked: Asked) -> None:
        """Open an order, and break the connection before the device can answer it."""
        self.deliver({place: asked})
        self.cut(place)

    def cut(self, place: int, unsent: bool = False) -> None:
        """End the connection of a place. unsent: what waits to be sent is lost."""
        if (session := self.here_or_none(place)) is not None:
            if unsent:
                session.take()
            session.end()

    def fail(self, place: int, code: Code, sentence: str) -> None:
        """Say an error without a reason."""
        if (session := self.here_or_none(place)) is not None:
            session.put(m.encode(m.Error(int(code), sentence)))
            if code not in LASTING:
                session.end()


@contextmanager
def opened(
    folder: Path, plan: DevicePlan | bytes, beat: int, host: str = "127.0.0.1", port: int = 0, url: str = ""
) -> Iterator[tuple[Desk, str]]:
    """A gateway on this machine, and its address. url: by which devices reach it, where that is another one."""
    registry = Registry(folder)
    try:
        at = listening(host, port)
        data = plan if isinstance(plan, bytes) else encode(plan)
        desk = Desk(registry, data, 3, beat)
        where = url or f"http://{host}:{at.getsockname()[1]}"
        with served(Gateway(desk, wait=beat, largest=LARGEST), at, {}):
            yield desk, where
    finally:
        registry.close()


def ticket(desk: Desk, where: str, fingerprint: bytes | None = None) -> str:
    """The address of a ticket for one device."""
    return address(where, desk.run, desk.registry.ticket(2), fingerprint or desk.signer.fingerprint)
