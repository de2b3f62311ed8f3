"""Messages between the supervisor, which listens, and the server's job process, which connects.

    job → supervisor   Hello: job, sites whose processes answer it, its process; then one Answered for every site asked:
                       number of the order, site, whether it answered, the answer (or FLARE's word for why not)
    supervisor → job   Orders: number, order by site, seconds an answer may take, bytes it may have

Arrays in msgpack over `multiprocessing.connection`. If either process closes the connection or ends, the other one
reads an end of file, and the epoch is over.
"""

from __future__ import annotations

import secrets
import select
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from queue import Queue
from socket import socket
from threading import Event, Thread
from typing import Any

import msgspec

from fedzero.model import files
from fedzero.model.decoding import MALFORMED, cause_of

Hello = tuple[str, tuple[str, ...], int]
Orders = tuple[int, dict[str, bytes], float, int]
Answered = tuple[int, str, bool, bytes]
LARGEST = 1 << 31
"""Bytes of a message at most."""
NUMBER = 8
"""Bytes in front of an order: its number, so that a site knows which is the latest."""
PING, PINGS = b"ping", 0
"""An order that only asks whether a site is there, and the number of such orders; silence is their other answer."""
LISTEN = "listen"
"""The one task of a job, in FLARE's sense; it lasts as long as the job."""
GONE, LEFT, CLOSED = b"gone", b"left", b"closed"
"""In the place of FLARE's word for why a site does not answer: its process for this job has ended, the site has said
that it leaves, its process has closed its connection and has not come back."""
READY_SECONDS, READY_MOST = 30.0, 300.0
"""How long sites may take to start their processes for a job: at least, and at most on a machine where half of them
take long; a site that takes longer does not take part in it."""
BRIDGE_FILE = "fedzero_bridge.json"
"""In the server kit's local/: where the supervisor listens, and the key by which both sides know each other."""


def send(connection: Connection, message: Hello | Orders | Answered) -> None:
    connection.send_bytes(msgspec.msgpack.encode(message))


def readable(connection: Connection | socket, seconds: float) -> bool:
    """Whether something comes in time. (`Connection.poll` takes five times as long; `select` fails once a process has
    more than 1,024 files open.)"""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(1000 * seconds))


def receive(connection: Connection, kind: Any) -> Any:
    """The next message. `EOFError`: the other side is gone; `OSError`: or sends more than is allowed, or nonsense."""
    data = connection.recv_bytes(LARGEST)
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except MALFORMED as error:
        raise OSError(f"not a message of a job: {cause_of(error)}") from None


def connect(local: Path) -> Connection:
    address, key = msgspec.json.decode(files.read(local / BRIDGE_FILE, files.SMALL), type=tuple[str, bytes])
    return Client(address, authkey=key)


class JobListener:
    """Where jobs connect. Each caller is waited for on a thread of its own, so that one which says nothing keeps no
    other waiting; one without the key is turned away."""

    def __init__(self, socket: Path, local: Path):
        self.arrived: Queue[tuple[Connection, Hello]] = Queue()
        self._address, self._key, self._closed = str(socket), secrets.token_bytes(32), Event()
        self._listener = Listener(self._address, "AF_UNIX", backlog=8)
        self._accepting = Thread(target=self._accept, daemon=True)
        self._accepting.start()
        files.write(local / BRIDGE_FILE, msgspec.json.encode((self._address, self._key)), private=True)

    def _accept(self) -> None:
        while (caller := self._listener.accept()) and not self._closed.is_set():
            Thread(target=self._authenticate, args=(caller,), daemon=True).start()

    def _authenticate(self, caller: Connection) -> None:
        try:
            deliver_challenge(caller, self._key)
            answer_challenge(caller, self._key)
            self.arrived.put((caller, receive(caller, Hello)))
        except Exception:  # of whatever kind: it is no job of ours
            caller.close()

    def close(self) -> None:
        self._closed.set()
        Client(self._address).close()  # wakes the thread that waits for callers
        self._accepting.join()
        self._listener.close()
