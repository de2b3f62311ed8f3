"""The page of a run and those who mean it no good: the run goes on, and whoever wants to read the page gets it."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.web import answering, limits, serving
from fedzero.web.following import Following
from sampling import mostly_slow

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

RECIPE = {
    "name": "tiny", "rounds": 60, "evaluate_every": 20, "algorithm": {"kind": "decomfl", "rate": 0.01},
    "task": {"kind": "quadratic", "dimension": 8}, "federation": {"clients": 3, "cohort": 2},
}  # fmt: skip
GET = b"GET / HTTP/1.1\r\nHost: localhost:1\r\n"
FOLLOW = b"GET /events HTTP/1.1\r\nHost: localhost:1\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page") / "run"
    session.start(recipes.decode(RECIPE), found, Environment(), Silent())
    return found


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with serving(folder, "127.0.0.1:0") as address:
        found = port_of(address)
        assert read_page(found) == 200
        yield found


def port_of(address: str) -> int:
    found = urlsplit(address).port
    assert found is not None
    return found


def read_page(port: int, seconds: float = 20.0) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    connection.request("GET", "/", headers={"Cookie": "c=" + 4000 * "x"})
    answer = connection.getresponse()
    assert b"</html>" in answer.read()
    return answer.status


def connected(port: int, text: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=20)
    found.sendall(text)
    return found


def all_of(connection: socket.socket, most: int = 1 << 24) -> bytes:
    """What is said until the connection is closed."""
    found = b""
    with suppress(ConnectionResetError):
        while len(found) < most and (more := connection.recv(1 << 16)):
            found += more
    return found


@contextmanager
def crowd(port: int, count: int, text: bytes = b"") -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connected(port, text)) for _ in range(count)]


@pytest.mark.parametrize("text", mostly_slow([b"", b"GET", GET, GET + b"X: y\r\n"], lambda text: text in (b"", GET)))
def test_connections_that_send_nothing_make_room_for_one_that_does(port: int, text: bytes) -> None:
    with crowd(port, 3 * limits.MOST, text) as others:
        assert read_page(port, 3.0) == 200
        assert all_of(others[0]).startswith(b"HTTP/1.1 503 ")
        others[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):  # there is still time
            others[-1].recv(1)


def test_a_head_that_comes_byte_by_byte_is_ended(port: int) -> None:
    began = time.monotonic()
    slow = connected(port, GET)
    slow.settimeout(0.2)
    said = b""
    while not said and time.monotonic() < began + 60:
        slow.sendall(b"x")
        try:
            said = slow.recv(1000)
        except TimeoutError:
            continue
    assert said.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began > limits.HEAD_SECONDS - 1, "it had its time"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"GET /" + 5_000_000 * b"a", b"431"),
        (GET + b"".join(b"A%d: b\r\n" % k for k in range(100_000)) + b"\r\n", b"431"),
        (GET + b"A: " + 40_000 * b"b" + b"\r\n\r\n", b"431"),
        (b"\x16\x03\x01\x02\x00\x01\n\r\n", b"400"),
        (b"\n\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\nHost: localhost:1\r\n\r\n", b"200"),
        (GET + b"Host: localhost:1\r\n\r\n", b"400"),
        (GET + b"Content-Length: -1\r\n\r\n", b"400"),
        (b"GET http://[::1/ HTTP/1.1\r\nHost: localhost:1\r\n\r\n", b"404"),
        (b"GET /%00%ff HTTP/1.1\r\nHost: localhost:1\r\n\r\n", b"404"),
        (b"POST / HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 99999999999\r\n\r\n" + 9000 * b"x", b"405"),
        (b"POST / HTTP/1.1\r\nHost: localhost:1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", b"405"),
        (b"CONNECT other.example:443 HTTP/1.1\r\nHost: localhost:1\r\n\r\n", b"40"),
        (GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + 9000 * b"\xff", b"200"),
        (GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n", b"200"),
        (GET + b"Expect: 100-continue\r\n\r\n", b"200"),
        (10_000 * (GET + b"\r\n"), b"200"),
    ],
)  # fmt: skip
def test_what_is_no_plain_request_has_one_answer_at_most(port: int, text: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        sender = threading.Thread(target=send_all, args=(connection, text))
        sender.start()
        said = all_of(connection)
        sender.join()
    # Where data is left unread, the answer may be lost with the connection.
    assert (said == b"" and len(text) > 30_000) or said.startswith(b"HTTP/1.1 " + status)
    assert said.count(b"HTTP/1.1 ") <= 1 and b" 101 " not in said[:20]
    assert read_page(port) == 200


def send_all(connection: socket.socket, text: bytes) -> None:
    with suppress(OSError):  # it was closed meanwhile
        connection.sendall(text)


def test_half_closed_connections_take_no_places(port: int) -> None:
    with crowd(port, limits.MOST, GET) as others, crowd(port, limits.MOST, FOLLOW + b"\r\n") as more:
        for connection in (*others, *more):
            connection.shutdown(socket.SHUT_WR)
        assert read_page(port) == 200
        for connection in others:
            assert not all_of(connection).startswith(b"HTTP/1.1 200")


def test_more_subscribers_than_there_is_room_for_are_told_so_and_readers_still_get_the_page(port: int) -> None:
    with ExitStack() as stack:
        heads = [stack.enter_context(connected(port, FOLLOW + b"\r\n")).recv(12) for _ in range(40)]
        assert heads.count(b"HTTP/1.1 200") == 32 and heads.count(b"HTTP/1.1 503") == 8
        assert read_page(port) == 200
    end = time.monotonic() + 10
    while connected(port, FOLLOW + b"\r\n").recv(12) != b"HTTP/1.1 200":
        assert time.monotonic() < end, "places of those who left are never free again"
        time.sleep(0.1)


class Telling(asyncio.Protocol):
    """Answers with more than any buffer holds."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(bytes(50_000_000))


def test_who_does_not_fetch_the_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALLED", 1.0)

    async def play() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        connections = limits.Connections(4, Telling)
        server = await loop.create_server(connections.protocol, "127.0.0.1", 0)
        sweeping = asyncio.create_task(connections.sweep_for_ever())
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2], limit=1 << 16)
        writer.write(GET + b"\r\n")
        await reader.readexactly(10)
        before, end = len(connections.open), loop.time() + 20
        while connections.open and loop.time() < end:
            await asyncio.sleep(0.1)
        sweeping.cancel()
        return before, len(connections.open)

    with ThreadPoolExecutor(1) as other:  # a browser of other tests keeps an event loop in this thread
        assert other.submit(asyncio.run, play()).result() == (1, 0)


def test_a_flood_of_requests_asks_little_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    look = Following.look

    def counting(following: Following, at_once: bool = False) -> int:
        looks.append(time.monotonic())
        return look(following, at_once)

    monkeypatch.setattr(Following, "look", counting)
    with serving(tmp_path / "run", "127.0.0.1:0") as address:
        port = port_of(address)
        read_page(port)
        looks.clear()
        began = time.monotonic()
        flood = [threading.Thread(target=lambda: [read_page(port) for _ in range(25)]) for _ in range(8)]
        for thread in flood:
            thread.start()
        for thread in flood:
            thread.join()
        assert 1 <= len(looks) <= (time.monotonic() - began) / answering.SPACING + 2


SERVES = """import sys, threading
from pathlib import Path
from fedzero.web import serving
with serving(Path(sys.argv[1]), "127.0.0.1:0", print) as address:
    print(address, flush=True)
    threading.Event().wait()"""


@contextmanager
def served_elsewhere(folder: Path, files: int | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The page, served from another process with a secret in its environment and few files; its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVES, str(folder)], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"FEDZERO_SECRET": "what strangers must not read"}, preexec_fn=limited(files),
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process, port_of(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()


def limited(files: int | None) -> Callable[[], None] | None:
    return None if files is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def child_of(process: subprocess.Popen[str]) -> psutil.Process:
    (found,) = psutil.Process(process.pid).children()
    return found


@contextmanager
def served_here(folder: Path, say: Callable[[str], None] = print) -> Iterator[tuple[psutil.Process, int]]:
    """The page, served from this process; the process that does it, and its port."""
    others = set(psutil.Process().children())
    with serving(folder, "127.0.0.1:0", say) as address:
        port = port_of(address)
        assert read_page(port) == 200
        (found,) = set(psutil.Process().children()) - others
        yield found, port


def test_the_process_that_talks_to_strangers_has_no_secrets_and_no_priority(folder: Path) -> None:
    with served_elsewhere(folder) as (process, port):
        assert read_page(port) == 200
        child = child_of(process)
        assert "FEDZERO_SECRET" not in child.environ() and child.nice() == 19
        assert os.getpgid(child.pid) != os.getpgid(process.pid)  # Ctrl-C is for the run
        assert str(folder) not in " ".join(child.cmdline()) and child.cwd() == "/"
        process.send_signal(signal.SIGKILL)
        assert child.wait(60) is not None or not child.is_running()


def test_a_page_whose_process_was_killed_comes_back(folder: Path) -> None:
    said: list[str] = []
    with served_here(folder, said.append) as (child, port):
        child.kill()
        assert read_page(port) == 200
    assert said == ["the process that serves the page ended with status -9; it is started again"]


def test_a_process_that_does_not_answer_does_not_hold_up_the_end(folder: Path) -> None:
    with served_here(folder) as (child, _):
        child.suspend()
        began = time.monotonic()
    assert time.monotonic() - began < 9 and not child.is_running()


@pytest.mark.slow
def test_where_files_run_out_nothing_spins_and_readers_come_again(folder: Path) -> None:
    with served_elsewhere(folder, files=24) as (process, port):
        assert read_page(port) == 200
        child = child_of(process)
        with crowd(port, 60):
            before = sum(child.cpu_times()[:2])
            time.sleep(3)
            assert sum(child.cpu_times()[:2]) - before < 1.0
        assert read_page(port) == 200


@pytest.mark.slow
def test_a_run_goes_on_beside_more_connections_than_it_may_have_files(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(recipes.to_toml(recipes.decode(RECIPE | {"rounds": 3000})), "utf-8")  # it lasts for seconds
    run = subprocess.Popen(
        [sys.executable, "-m", "fedzero", "run", recipe, "--out", tmp_path / "run", "--web-at", "127.0.0.1:0"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=limited(96),
    )  # fmt: skip
    assert run.stderr is not None
    try:
        said = run.stderr.readline()
        found = re.search(r"page: http://127\.0\.0\.1:(\d+)/", said)
        assert found is not None, said
        with crowd(int(found[1]), 150), crowd(int(found[1]), 20, FOLLOW + b"\r\n"):
            rest = run.stderr.read()
            assert run.wait(120) == 0, rest
        assert len(rest) < 10_000 and "Traceback" not in rest
    finally:
        run.kill()
        run.wait()
    recorded.verified(tmp_path / "run", Environment())


@pytest.mark.parametrize(
    "host",
    ["evil.example:80", "localhost.evil.example:80", "localhost:80:80", "127.1:80", "0.0.0.0:80", "evil@localhost:1"],
)
def test_a_name_that_somebody_has_resolve_to_this_machine_shows_nothing(port: int, host: str) -> None:
    for path in (b"/", b"/events", b"http://localhost:1/"):
        with connected(port, b"GET " + path + b" HTTP/1.1\r\nHost: " + host.encode() + b"\r\n\r\n") as connection:
            assert connection.recv(13) in (b"HTTP/1.1 403 ", b"HTTP/1.1 404 ")


def test_nothing_but_the_whole_token_shows_the_page(folder: Path) -> None:
    with serving(folder, "0.0.0.0:0") as address:
        port, token = port_of(address), urlsplit(address).query
        near = [token[:-1], token + "x", token + "%00", token.upper(), "token=", "token=%ff", f"{token}&token=x"]
        for query, status in [(token, b"200"), *[(each, b"403") for each in near]]:
            text = f"GET /?{query} HTTP/1.1\r\nHost: localhost:1\r\n\r\n".encode()
            with connected(port, text) as connection:
                assert connection.recv(12) == b"HTTP/1.1 " + status, query


def test_followers_who_read_nothing_keep_nobody_from_the_page(port: int) -> None:
    with crowd(port, limits.MOST - 2, FOLLOW + b"\r\n"):
        began = time.monotonic()
        assert read_page(port) == 200
        assert time.monotonic() - began < 5
