"""Hosts in processes of this machine, over pipes: for tests, and the smallest example of a transport.

Processes are forked from a process that has imported all modules that hosts need. A host that dies is started again and
must be brought forward like any other host that comes back.
"""

from __future__ import annotations

import multiprocessing
import pickle
import selectors
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection as PipeEnd
from queue import SimpleQueue
from threading import Thread
from typing import Any

from fedzero import plugins
from fedzero.engines.remote.correspondence import RELIABLE, Correspondence, Heard, Obedient
from fedzero.engines.remote.frames import Frames
from fedzero.engines.remote.transport import Gone, Link, News, Program, Report, Transport
from fedzero.errors import FedzeroError
from fedzero.model.numbers import PositiveInt
from fedzero.protocol.engine import Undelivered

PRELOADED = "fedzero.engines.remote.warm"
"""The process from which hosts are forked imports this module and the module of their program."""
STARTED, ENDED = 120.0, 5.0
"""Seconds for a host to start, and to end by itself."""
CLOSED = 0.5
"""Seconds for a host that has closed its end to end its process, while all others wait."""
HERE = b""
"""The first message of a host."""


class Pipe(Transport, tag="pipe"):
    """Hosts are processes of this machine. A program that uses it starts with `if __name__ == "__main__":`."""

    hosts: PositiveInt = 2
    """How many."""

    @contextmanager
    def open(self, program: Program, report: Report) -> Iterator[Link]:
        pipes = Pipes([f"host-{i}" for i in range(self.hosts)], program, report)
        try:
            yield Correspondence(pipes)
        finally:
            pipes.close()


class Pipes:
    """A connection to a process for each name, which runs a program."""

    resend = RELIABLE

    def __init__(self, names: Sequence[str], program: Program, report: Report = lambda text: None):
        self._context = multiprocessing.get_context("forkserver")
        self._names, self._program, self._report = names, _sendable(program), report
        self._context.set_forkserver_preload([PRELOADED, program.__module__])
        self.processes: dict[str, Any] = {}
        self._ends: dict[str, Frames] = {}
        self._starting = set[str]()

    def begin(self) -> Collection[str]:
        """Wait for all hosts; they start at the same time."""
        for name in self._names:
            if name not in self._ends:
                self._start(name)
        end = time.monotonic() + STARTED
        while self._starting and time.monotonic() < end:
            self.receive(0.1)
        return [name for name in self._names if name in self._ends and name not in self._starting]

    def send(self, host: str, message: bytes) -> None:
        try:
            self._ends[host].send(message)
        except (OSError, KeyError):
            raise Undelivered("is gone") from None

    def receive(self, seconds: float) -> Sequence[Heard]:
        end, found = time.monotonic() + seconds, list[Heard]()
        while not found:
            left = end - time.monotonic()
            with selectors.DefaultSelector() as ready:
                for name, pipe in self._ends.items():
                    ready.register(pipe, selectors.EVENT_READ | selectors.EVENT_WRITE * pipe.waits, name)
                events = ready.select(max(0.0, left))
            for key, event in events:
                found += self._moved(key.data, event)
            if left <= 0:
                break
        return found

    def _moved(self, name: str, event: int) -> list[Heard]:
        """What comes from a host, and what it takes."""
        pipe = self._ends[name]
        try:
            if event & selectors.EVENT_WRITE:
                pipe.flush()
            messages = pipe.receive() if event & selectors.EVENT_READ else []
        except (EOFError, OSError):
            return self._ended(name)
        found: list[Heard] = [(name, message) for message in messages]
        if found and name in self._starting:
            self._starting.discard(name)
            found[0] = name, News()
        return found

    def _ended(self, name: str) -> list[Heard]:
        self._ends.pop(name).close()
        process = self.processes.pop(name)
        process.join(CLOSED)
        if process.is_alive():  # it has closed its end, and stays
            process.kill()
            process.join()
        if name in self._starting:  # a second start would fail as well
            self._starting.discard(name)
            self._report(f"{name} did not start (exit code {process.exitcode})")
            return []
        self._start(name)
        return [(name, Gone(f"ended its process (exit code {process.exitcode})"))]

    def _start(self, name: str) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs, name, self._program, _registered()), daemon=True)
        process.start()
        theirs.close()
        self.processes[name], self._ends[name] = process, Frames(ours)
        self._starting.add(name)

    def close(self) -> None:
        for end in self._ends.values():
            end.close()
        deadline = time.monotonic() + ENDED
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _sendable(program: Program) -> Program:
    try:
        pickle.dumps(program)
    except Exception as error:  # anything inside the program may refuse to be pickled
        raise FedzeroError(
            f"hosts of a pipe are other processes, and what they need cannot be sent there ({error}): define it in a "
            "module that can be imported"
        ) from None
    return program


def _registered() -> list[bytes]:
    """Plugins that are known to this process alone, each by itself: another process may be able to import only some."""
    found = []
    for kind in plugins.registered():
        with suppress(Exception):
            found.append(pickle.dumps(kind))
    return found


def serve(end: PipeEnd, name: str, program: Program, kinds: Sequence[bytes] = ()) -> None:
    """A host's process: until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the server decides
    for kind in kinds:
        with suppress(Exception):  # its module is not there: a recipe that names it is refused, in words
            plugins.register(pickle.loads(kind))
    answering, inbox = program(name), SimpleQueue[bytes | None]()
    Thread(target=_read_all, args=(end, inbox.put), daemon=True).start()
    end.send_bytes(HERE)
    obey = Obedient(answering.answer)
    with suppress(OSError):  # the other end is closed
        while (message := inbox.get()) is not None:
            if (answer := obey(message)) is not None:
                end.send_bytes(answer)
    answering.leave()


def _read_all(end: PipeEnd, put: Callable[[bytes | None], None]) -> None:
    """Read messages at once, so that the sender need not wait while the host works."""
    try:
        while True:
            put(end.recv_bytes())
    except (EOFError, OSError):
        put(None)
