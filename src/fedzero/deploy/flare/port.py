"""The port of FLARE's server, where nobody keeps others waiting or makes the server's process grow without bound.

As it is, it shakes hands with one caller at a time before it looks at the next, takes any number of callers, and
reserves up to 2 GB for every message that is announced. Here

- each caller is waited for on a thread of its own, and not for ever; of too many the one that has waited longest goes,
- a site has a few connections, and of too many the oldest goes,
- a message that is longer than any answer that a job waits for is read, thrown away, and named,
- nothing more is read from a site whose messages have not been worked on, or that sends too many a second,
- a connection says once which part of its site it is, in few words,
- one whose other end takes nothing is closed: whoever writes to it would wait for ever.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Condition, Lock
from typing import Any

import msgspec
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.net_utils import MAX_FRAME_SIZE
from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler, SocketConnection
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from fedzero.deploy.flare.rate import Rate

HANDSHAKE = 10.0
"""Seconds a caller has to show its certificate."""
CALLERS = 128
"""Callers that have not shown a certificate yet, at most."""
CONNECTIONS = 16
"""Connections of one certificate at most; a site has one, and one for each job."""
SMALL = 1 << 22
"""Bytes of a message that is taken at any time."""
HEADERS = 1 << 17
"""Bytes of FLARE's own in front of an answer, at most."""
PIECE = 1 << 20
"""Bytes that are read at a time."""
AT_ONCE = 8
"""Messages of one certificate that are worked on at the same time. FLARE has 100 threads for those of all sites."""
BURST, A_SECOND = 2000, 1000
"""Messages of one certificate that are read at once, and a second. An honest site sends a few for every round."""
GREETING = 1 << 12
"""Bytes in which a connection says which part of its site it is; an honest one needs 200."""
UNREAD = 20.0
"""Seconds in which the other end has to take what is sent to it. (Where the system can tell: Linux.)"""


def hang_up(connection: socket.socket) -> None:
    """Its own thread finds it ended, and closes it. Closed from another one, its number would be that of the next
    connection while the thread still reads from it."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def expect_to_be_read(connection: socket.socket) -> None:
    """It ends where its other end takes nothing, though there is something for it. A write through TLS can be given no
    time of its own."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * UNREAD))


class Limits:
    """Bytes that a message of a site may have: those of the largest answer that a job waits for, by job."""

    def __init__(self) -> None:
        self._largest: dict[str, int] = {}

    def expect(self, job: str, size: int) -> None:
        self._largest[job] = max(size, self._largest.get(job, 0))

    def keep(self, jobs: set[str]) -> None:
        """Those of other jobs are over."""
        self._largest = {job: size for job, size in self._largest.items() if job in jobs}

    @property
    def bytes(self) -> int:
        return max(SMALL, HEADERS + max(self._largest.values(), default=0))


LIMITS = Limits()


class Held:
    """Messages of one certificate that have been read and not worked on yet: a few, with at most the bytes of two."""

    def __init__(self) -> None:
        self._bytes, self._count, self._changed = 0, 0, Condition()
        self._rate = Rate(BURST, A_SECOND)

    def take(self, size: int) -> None:
        while pause := self._rate.wait():
            time.sleep(pause)
        with self._changed:
            self._changed.wait_for(lambda: self._fits(size))
            self._bytes, self._count = self._bytes + size, self._count + 1

    def _fits(self, size: int) -> bool:
        return not self._count or (self._count < AT_ONCE and self._bytes + size <= 2 * LIMITS.bytes)

    def give(self, size: int, whole: bool = True) -> None:
        """whole: nothing of the message is left."""
        with self._changed:
            self._bytes, self._count = self._bytes - size, self._count - whole
            self._changed.notify_all()


class Certificates:
    """Connections by certificate. Of too many the oldest is closed, whose other end may be long gone."""

    def __init__(self) -> None:
        self._lock, self._open, self._held = Lock(), dict[str, list[SocketConnection]](), dict[str, Held]()

    @contextmanager
    def holding(self, connection: SocketConnection) -> Iterator[Held]:
        name = str(connection.get_conn_properties().get(DriverParams.PEER_CN.value))
        with self._lock:
            mine, held = self._open.setdefault(name, []), self._held.setdefault(name, Held())
            mine.append(connection)
            oldest = mine.pop(0) if len(mine) > CONNECTIONS else None
        if oldest is not None:
            hang_up(oldest.sock)
        try:
            yield held
        finally:
            with self._lock, suppress(ValueError):
                mine.remove(connection)


class SiteConnection(SocketConnection):  # type: ignore[misc]
    """One connection behind TLS."""

    held: Held
    greeted = False

    def read_frame(self) -> bytearray:
        start = bytearray(PREFIX_LEN)
        self.read_into(start, 0, PREFIX_LEN)
        prefix = Prefix.from_bytes(start)
        if not PREFIX_LEN + prefix.header_len <= prefix.length <= MAX_FRAME_SIZE:
            raise CommError(CommError.BAD_DATA, f"a frame of {prefix.length} bytes")
        greets = prefix.type in (Types.HELLO, Types.READY)
        if greets == self.greeted or (greets and prefix.length > GREETING):
            raise CommError(CommError.BAD_DATA, "a greeting that is missing, the second one, or too long")
        self.greeted = True
        limit = LIMITS.bytes
        size = prefix.length if prefix.length <= limit else PREFIX_LEN + HEADERS
        self.held.take(size)
        try:
            frame = start
            if prefix.length <= limit:
                frame += self._read(prefix.length - PREFIX_LEN)
            else:
                headers = self._read(prefix.header_len)
                self._pass_over(prefix.length - PREFIX_LEN - prefix.header_len)
                frame = _emptied(prefix, headers, limit)
        except BaseException:
            self.held.give(size)
            raise
        self.held.give(size - len(frame), whole=False)  # the rest, when it has been worked on: `frame_arrived`
        return frame

    def _read(self, count: int) -> bytearray:
        """Memory is taken for what has come, not for what was announced."""
        found = bytearray()
        while len(found) < count:
            piece = bytearray(min(PIECE, count - len(found)))
            self.read_into(piece, 0, len(piece))
            found += piece
        return found

    def _pass_over(self, count: int) -> None:
        piece = bytearray(min(PIECE, count))
        while count:
            part = min(len(piece), count)
            self.read_into(memoryview(piece)[:part], 0, part)
            count -= part


def _emptied(prefix: Prefix, headers: bytearray, limit: int) -> bytearray:
    """A message without its contents, which says how long they were."""
    if prefix.type != Types.DATA or not headers:
        raise CommError(CommError.BAD_DATA, f"a frame of {prefix.length} bytes that is no message")
    found = msgspec.msgpack.decode(headers, type=dict[str, Any])
    found[MessageHeaderKey.RETURN_CODE] = f"sent {prefix.length} bytes where at most {limit} are read"
    written = msgspec.msgpack.encode(found)
    head = bytearray(PREFIX_LEN)
    prefix.length, prefix.header_len = PREFIX_LEN + len(written), len(written)
    prefix.to_buffer(head, 0)
    head += written
    return head


class Caller(ConnectionHandler):  # type: ignore[misc]
    """A caller that has shook hands, until its connection ends."""

    def handle(self) -> None:
        connection = SiteConnection(self.request, self.server.connector, True)
        with self.server.certificates.holding(connection) as connection.held:
            self.server.driver.add_connection(connection)
            connection.read_loop()
            self.server.driver.close_connection(connection)


class Port(tcp_driver.TcpStreamServer):  # type: ignore[misc]
    """The port of FLARE's tcp driver; whether it is a TLS port at all is the driver's business."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.certificates, self._waiting, self._lock = Certificates(), OrderedDict[int, Any](), Lock()
        if isinstance(self.socket, ssl.SSLSocket):
            # not in accept(), which is called on one thread
            self.socket.do_handshake_on_connect = False  # type: ignore[attr-defined]
            self.RequestHandlerClass = Caller

    def process_request(self, request: Any, client_address: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            with self._lock:
                self._waiting[id(request)] = request
                oldest = self._waiting.popitem(last=False)[1] if len(self._waiting) > CALLERS else None
            if oldest is not None:
                hang_up(oldest)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            if isinstance(request, ssl.SSLSocket):
                self._shake_hands(request)
            super().finish_request(request, client_address)
        except (OSError, ValueError) as error:
            tcp_driver.log.warning(f"{client_address} was turned away: {error}")

    def _shake_hands(self, request: ssl.SSLSocket) -> None:
        try:
            request.settimeout(HANDSHAKE)
            request.do_handshake()
            request.settimeout(None)
            expect_to_be_read(request)
        finally:
            with self._lock:
                self._waiting.pop(id(request), None)


def frame_arrived(manager: ConnManager, connection: Any, frame: bytearray) -> None:
    """In the place of FLARE's `process_frame`, whose queue is as long as callers like."""
    size, held = len(frame), getattr(connection.conn, "held", None)
    if manager.stopped:
        return
    try:
        work = manager.frame_mgr_executor.submit(manager.process_frame_task, connection, frame)
    except RuntimeError:  # it is being shut down
        return
    if held is not None:
        work.add_done_callback(lambda _: held.give(size))
