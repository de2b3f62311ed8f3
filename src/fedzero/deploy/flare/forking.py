"""Many sites on one machine: their processes for a job are forked from one that has imported everything.

A process for a job takes seconds of a core and 250 MB before it has done anything, nearly all of it modules. Forked, it
starts at once and shares those pages with the others. Only `federate` starts a fork server; sites on machines of their
own start processes as FLARE does.

    site → server   what to run, in JSON, and the files that are its standard output and error; then nothing: when the
                    connection closes, because the site asks for it or is gone, the process is killed
    server → site   the number of the process; later its exit status

The fork server has one thread: importing torch and numba starts none, using them would.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedzero.deploy.flare.bridge import readable
from fedzero.deploy.flare.processes import SITE_JOB, die_with_parent

VARIABLE = "FEDZERO_FORK_SERVER"
"""In the environment of a site's process: the socket of the fork server; without it, processes are started plainly."""
PRELOADED = (
    SITE_JOB,
    "fedzero.deploy.flare.executor",
    "fedzero.deploy.flare.presence",
    "fedzero.deploy.site.site",
    "fedzero.directions.cpu",
)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Read when libraries are loaded; OpenBLAS starts its threads then."""
LARGEST = 1 << 20
"""Bytes of a request: arguments and environment."""
LOOK_EVERY = 50
"""Milliseconds between two looks whether a process has ended."""
STATUS = 8
"""Bytes of a number on the wire."""


@contextmanager
def fork_server() -> Iterator[dict[str, str]]:
    """The variable by which sites find a fork server, which is there until the block ends; nothing where a fork of a
    process with libraries like torch's is not safe."""
    if sys.platform != "linux":
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="fedzero-fork-") as folder:
        address = str(Path(folder) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(128)  # from here on sites can ask; they are answered when all is imported
            file = listener.fileno()
            command, variables = [sys.executable, "-P", "-m", __name__, str(file)], {**os.environ, **ONE_THREAD}
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[file], env=variables)
        try:
            yield {VARIABLE: address}
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


class Forked:
    """A process of the fork server, with what FLARE asks of one that it has started itself."""

    def __init__(self, program: str, arguments: list[str], environment: dict[str, str]):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60.0)  # the server may still be importing
        self._socket.connect(os.environ[VARIABLE])
        request = json.dumps((program, arguments, environment, str(Path.cwd()))).encode()
        header = len(request).to_bytes(STATUS, "big")
        socket.send_fds(self._socket, [header], [sys.stdout.fileno(), sys.stderr.fileno()])
        self._socket.sendall(request)
        self.pid = self._number()
        self._status: int | None = None

    def _number(self) -> int:
        found = b""
        while len(found) < STATUS and (more := self._socket.recv(STATUS - len(found))):
            found += more
        if len(found) < STATUS:
            raise OSError("the fork server is gone")
        return int.from_bytes(found, "big", signed=True)

    def poll(self) -> int | None:
        if self._status is None and readable(self._socket, 0.0):
            self.wait()
        return self._status

    def wait(self) -> None:
        if self._status is None:
            self._socket.settimeout(None)
            try:
                self._status = self._number()
            except OSError:
                self._status = -signal.SIGKILL  # the fork server is gone, and its children with it
            self._socket.close()

    def terminate(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


def serve(listener: socket.socket) -> None:
    """Fork until the end of standard input: whoever started this process is gone."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or the first collection in a child would write to every page
    children: dict[int, socket.socket] = {}
    while True:
        waiting = select.poll()
        for file in (0, listener.fileno(), *(c.fileno() for c in children.values())):
            waiting.register(file, select.POLLIN)
        ready = {file for file, _ in waiting.poll(LOOK_EVERY)}
        if 0 in ready:
            break
        for pid, connection in children.items():
            if connection.fileno() in ready:  # nothing is sent after the request: it has closed
                os.kill(pid, signal.SIGKILL)
        children = _without_ended(children)
        if listener.fileno() in ready:
            with suppress(OSError, ValueError):  # a site that died while it asked
                pid, connection = _fork(listener, list(children.values()))
                children[pid] = connection
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _without_ended(children: dict[int, socket.socket]) -> dict[int, socket.socket]:
    left = dict(children)
    for pid, connection in children.items():
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            with suppress(OSError):
                connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(STATUS, "big", signed=True))
            connection.close()
            del left[pid]
    return left


def _fork(listener: socket.socket, others: list[socket.socket]) -> tuple[int, socket.socket]:
    connection, _ = listener.accept()
    connection.settimeout(10.0)
    header, files, _, _ = socket.recv_fds(connection, STATUS, 2)
    try:
        length, request = min(int.from_bytes(header, "big"), LARGEST), b""
        while len(request) < length and (more := connection.recv(length - len(request))):
            request += more
        program, arguments, environment, folder = json.loads(request)
        pid = os.fork()
        if pid == 0:
            for kept in (listener, connection, *others):
                kept.close()  # else a site's end would not be seen while this process lives
            _become(program, arguments, environment, folder, files)
    finally:
        for file in files:
            os.close(file)
    connection.settimeout(None)
    with suppress(OSError):  # it died since; the closed connection ends the process in the next turn
        connection.sendall(pid.to_bytes(STATUS, "big", signed=True))
    return pid, connection


def _become(program: str, arguments: list[str], environment: dict[str, str], folder: str, files: list[int]) -> None:
    """A program, in a process that was just forked; does not return."""
    status = 1
    try:
        die_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for target, file in zip((1, 2), files, strict=True):
            os.dup2(file, target)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 0xFF)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
