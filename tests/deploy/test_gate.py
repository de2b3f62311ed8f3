"""What FLARE's server takes from somebody who has the certificate of a site, and how much memory it spends on that."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed")

from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from fedzero.deploy.flare import gate, port, processes
from fedzero.deploy.flare import project as kits
from fedzero.deploy.flare.gate import Gate
from fedzero.deploy.flare.launch import free_port
from fedzero.deploy.flare.rate import Rate
from sampling import mostly_slow

SITE, JOB = "south", "0b7367ae"
STREAM = {"sm__dt": 2, "sm__sq": 0, "sm__sz": 373}


def message(channel: str, topic: str, to: str = "server", **changes: Any) -> dict[str, Any]:
    found = {"channel": channel, "topic": topic, "msg_type": "req", "origin": SITE, "destination": to}
    return {f"cn__{key}": value for key, value in (found | changes).items()}


def stream(channel: str, topic: str, **changes: Any) -> dict[str, Any]:
    to_job = message("sm__STREAM", "sm__DATA", f"server.{JOB}", origin=f"{SITE}.{JOB}")
    return to_job | STREAM | {"sm__ch": channel, "sm__tp": topic} | changes


HONEST = [
    message("task", "challenge"),
    message("task", "register"),
    message("task", "heart_beat"),
    message("task", "report_job_failure"),
    message("task", "quit"),
    message("cellnet.channel", "bye", origin=f"{SITE}.{JOB}"),
    message("sm__STREAM", "sm__ACK", f"server.{JOB}", origin=f"{SITE}.{JOB}"),
    stream("server_command", "get_task"),
    stream("aux_communication", "__sync_runner__"),
    stream("aux_communication", "__job_heartbeat__"),
    stream("return_only", "aux_communication:__end_run__"),
]
HOSTILE = {
    "stops the server": message("_net_manager", "stop"),
    "stops another site": message("_net_manager", "stop_cell", "north"),
    "stops the server's job": message("_net_manager", "stop", f"server.{JOB}"),
    "ends the run": message("server_parent_listener", "update_run_status"),
    "aborts the job": message("server_command", "abort", f"server.{JOB}"),
    "aborts the job in a stream": stream("server_command", "abort"),
    "says that another site is dead": stream("server_command", "handle_dead_job"),
    "says that another site has ended": message("fedzero", "ended", f"server.{JOB}"),
    "raises the limit": message("fedzero", "limit"),
    "gives orders to a site": message("fedzero", "order", f"north.{JOB}"),
    "speaks as the server": message("fedzero", "ended", f"server.{JOB}", origin="server"),
    "registers as another site": message("task", "register", origin="north"),
    "registers as the server": message("task", "register", origin="server"),
    "has another's name as its beginning": message("task", "register", origin=f"{SITE}2"),
    "is an administrator": message("hci_channel", "command", origin="_admin_1"),
    "gives commands": message("hci_channel", "command"),
    "has the server connect elsewhere": message("task", "heart_beat", conn_url="tcp://169.254.169.254:80"),
    "takes a stream of many frames": stream("server_command", "get_task", sm__dt=1),
    "goes on with a stream": stream("server_command", "get_task", sm__sq=7),
    "announces a stream of 4 GB": stream("server_command", "get_task", sm__sz=1 << 32),
    "speaks of no kind": message("task", "heart_beat", msg_type="other"),
    "has lists for words": message(["task"], ["heart_beat"]),  # type: ignore[arg-type]
    "has no origin": message("task", "heart_beat", origin=None),
    "has numbers for names": message("task", "heart_beat", origin=7, destination=8),
    "says nothing": {},
    "registers as many parts of itself": message("task", "register", origin=f"{SITE}.7"),
    "asks for many sessions": message("task", "challenge", origin=f"{SITE}.7"),
    "registers as a relay": message("task", "register") | {"client_type": "relay"},
    "registers as an administrator": message("task", "register") | {"client_type": "admin"},
}


@pytest.mark.parametrize("headers", HONEST, ids=lambda h: h.get("sm__tp") or h["cn__topic"])
def test_what_an_honest_site_says_is_taken(headers: dict[str, Any]) -> None:
    assert Gate().refused(SITE, headers, 373) == ""


@pytest.mark.parametrize("what", HOSTILE)
def test_what_no_honest_site_says_is_not_taken(what: str) -> None:
    assert Gate().refused(SITE, HOSTILE[what], 373)


def test_a_request_is_short() -> None:
    headers = message("task", "heart_beat")
    assert gate.misplaced(SITE, headers, gate.LONGEST_REQUEST) == ""
    assert "bytes" in gate.misplaced(SITE, headers, gate.LONGEST_REQUEST + 1)


def test_requests_that_come_too_often_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another site are, and so are the same site's a little later, and its replies at any time."""
    now = [0.0]
    monkeypatch.setattr(gate, "Rate", lambda *rate: Rate(*rate, clock=lambda: now[0]))
    found, headers = Gate(), message("task", "heart_beat")
    taken = [found.refused(SITE, headers, 373) == "" for _ in range(10 * gate.BURST)]
    assert taken == [True] * gate.BURST + [False] * 9 * gate.BURST
    assert found.refused("north", message("task", "heart_beat", origin="north"), 373) == ""
    found.asked(asked("1"))
    assert found.refused(SITE, reply("1"), 10) == ""
    now[0] += 1.0
    assert sum(not found.refused(SITE, headers, 373) for _ in range(10 * gate.BURST)) == gate.A_SECOND


@pytest.mark.parametrize(
    "name, allowed",
    [
        (SITE, True),
        (f"{SITE}.{JOB}", True),
        ("north", False),
        (f"north.{JOB}", False),
        (f"{SITE}.another", False),
        (f"{SITE}.{JOB}.deeper", False),
        ("server", False),
        ("", False),
        (None, False),
        (["south"], False),
        ({}, False),
    ],
)
def test_what_a_part_of_a_site_may_be_called(name: object, allowed: bool) -> None:
    assert gate.may_be_called(name, SITE, [JOB]) == allowed


def asked(number: str, site: str = SITE) -> dict[str, Any]:
    return message("fedzero", "order", f"{site}.{JOB}", origin=f"server.{JOB}", req_id=number, reply_expected=True)


def reply(number: Any, site: str = SITE, **changes: Any) -> dict[str, Any]:
    headers = {"origin": f"{site}.{JOB}", "req_id": number, "msg_type": "reply"} | changes
    return message("fedzero", "order", f"server.{JOB}", **headers)


def test_a_job_gets_one_reply_for_each_request() -> None:
    """None that nobody waits for, none twice, none in another's name, none for what another was asked."""
    found = Gate()
    for number, site in (("1", SITE), ("2", "north"), ("3", SITE)):
        found.asked(asked(number, site))
    assert found.refused(SITE, reply("2"), 10) == "that nobody waits for"
    assert found.refused(SITE, reply("2", "north"), 10) == "in another's name"
    assert found.refused(SITE, reply("9"), 10)
    for number in (None, 1, ["1", "3"], [["1"]], {"1": 1}):
        assert found.refused(SITE, reply(number), 10) == "that nobody waits for"
    assert found.refused(SITE, reply("1"), 10) == ""
    assert found.refused(SITE, reply("1"), 10) == "that nobody waits for"
    bounced = {"msg_type": "return", "original_headers": asked("3", "north")}
    assert found.refused(SITE, reply(["3"], **bounced), 10) == "in another's name"
    assert found.refused(SITE, reply(["3"], msg_type="return", original_headers=7), 10) == "in another's name"
    assert found.refused(SITE, reply(["3"], **bounced | {"original_headers": asked("3")}), 10) == ""
    assert found.refused("north", reply("2", "north"), 10) == ""


def test_requests_that_a_site_never_answers_are_forgotten() -> None:
    found = Gate()
    for number in range(3 * gate.AWAITED):
        found.asked(asked(str(number)))
    assert found.refused(SITE, reply("0"), 10)
    assert found.refused(SITE, reply(str(3 * gate.AWAITED - 1)), 10) == ""


# ---- a port, with the certificates of a project, and callers that do their worst


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    kits.provision(folder, [SITE, "north"], port=free_port())
    return folder


@pytest.fixture(scope="module")
def server(project: Path) -> Iterator[int]:
    """The number of the server's process."""
    process = processes.start(kits.kit_of(project, kits.SERVER))
    try:
        assert processes.until(300, lambda: processes.listening("127.0.0.1", kits.Project.of(project).port))
        time.sleep(2)  # its other parts begin
        yield process.pid
    finally:
        processes.end(process)


def connected(project: Path, site: str = SITE, buffer: int = 0) -> ssl.SSLSocket:
    """buffer: bytes that wait here to be read, at most; 0: as many as the system likes."""
    start = kits.kit_of(project, site) / "startup"
    context = ssl.create_default_context(cafile=str(start / "rootCA.pem"))
    context.load_cert_chain(start / "client.crt", start / "client.key")
    raw = socket.socket()
    if buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    raw.settimeout(10)
    raw.connect(("127.0.0.1", kits.Project.of(project).port))
    return context.wrap_socket(raw, server_hostname="localhost")


def frame(kind: int, headers: dict[str, Any], size: int, announced: int | None = None) -> bytes:
    encoded = msgspec.msgpack.encode(headers) if headers else b""
    length = PREFIX_LEN + len(encoded) + size if announced is None else announced
    head = bytearray(PREFIX_LEN)
    Prefix(length, len(encoded), kind, 0, 0, 1, 1, 1).to_buffer(head, 0)
    return bytes(head) + encoded


DATA = 1
"""FLARE's type of a frame that carries a message."""
HELLO, PING = 4, 6


def growth(pid: int, work: Any) -> float:
    """Megabytes by which a process grows at most while something is done."""
    process, most, over = psutil.Process(pid), 0.0, threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        nonlocal most
        while not over.wait(0.02):
            most = max(most, (process.memory_info().rss - before) / 1e6)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        work()
    finally:
        over.set()
        watching.join()
    return most


def alive(project: Path) -> bool:
    """Another site is still welcome: the server says nothing first, and keeps the connection."""
    with connected(project, "north") as other:
        other.settimeout(0.3)
        try:
            return other.recv(1) != b""
        except TimeoutError:
            return True


def test_a_reply_of_a_gigabyte_and_one_that_is_only_announced(project: Path, server: int) -> None:
    """Before: 1 GB each, for 16 bytes."""
    piece = bytes(1 << 20)

    def announce() -> None:
        callers = [connected(project) for _ in range(port.CONNECTIONS)]
        for caller in callers:
            with suppress(OSError):  # a site's older connections of the same name are closed
                caller.sendall(greeting(SITE) + frame(DATA, reply("1"), 0, 2_000_000_000))
        time.sleep(2)
        for caller in callers:
            caller.close()

    def send() -> None:
        with connected(project) as caller:
            caller.sendall(greeting(SITE) + frame(DATA, reply("1"), 1 << 30))
            for _ in range(1 << 10):
                caller.sendall(piece)
            time.sleep(1)

    assert growth(server, announce) < 60
    assert growth(server, send) < 60
    assert alive(project)


@pytest.mark.parametrize("junk", [b"", b"\xff" * 64, b"\0" * 4096, frame(DATA, {"cn__msg_type": "req"}, 0)[:20]])
def test_junk_behind_a_good_certificate(project: Path, server: int, junk: bytes) -> None:
    with connected(project) as caller:
        caller.sendall(junk)
    assert alive(project)


@pytest.mark.slow
def test_many_callers_without_a_certificate_and_many_connections_of_one(project: Path, server: int) -> None:
    """The server's process has file descriptors for all others; an honest site gets in beside them."""
    where, process = ("127.0.0.1", kits.Project.of(project).port), psutil.Process(server)
    before = process.num_fds()
    silent = [socket.create_connection(where, 10) for _ in range(600)]
    many = [connected(project) for _ in range(3 * port.CONNECTIONS)]
    try:
        assert alive(project)
        assert processes.until(15, lambda: process.num_fds() - before < port.CALLERS + port.CONNECTIONS + 20)
    finally:
        for caller in (*silent, *many):
            caller.close()


# ---- floods: of what an honest site says, too often, or without ever listening


def greeting(name: object, more: object = b"") -> bytes:
    return packed(HELLO, msgspec.msgpack.encode({"endpoint_name": name, "timestamp": 0.0, "more": more}))


def packed(kind: int, payload: bytes, headers: dict[str, Any] | None = None) -> bytes:
    return frame(kind, headers or {}, len(payload)) + payload


def flood(project: Path, data: Any, seconds: float) -> int:
    """Frames of `data(number)` for some seconds, over a new connection where the server closes one; how many."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with suppress(OSError), connected(project) as caller:
            caller.settimeout(1)
            caller.sendall(greeting(SITE))
            while time.monotonic() < end:
                caller.sendall(b"".join(data(number + i) for i in range(100)))
                number += 100
    return number


def answered(project: Path, site: str = "north") -> float:
    """Seconds until the server has answered another site's greeting."""
    began = time.monotonic()
    with connected(project, site) as other:
        other.settimeout(30)
        other.sendall(greeting(site))
        assert other.recv(PREFIX_LEN), "closed"
    return time.monotonic() - began


ROUTE, UNIQUE = "cn__route", "x" * 2000
FLOODS = {
    "heartbeats": lambda n: packed(DATA, b"\x80", message("task", "heart_beat", req_id=str(n))),
    "registrations": lambda n: packed(DATA, b"\x80", message("task", "register", req_id=str(n))),
    "challenges": lambda n: packed(DATA, b"", message("task", "challenge", origin=f"{SITE}.{n}{UNIQUE}")),
    "routes": lambda n: packed(DATA, b"", message("task", "heart_beat") | {ROUTE: [[f"{n}{UNIQUE}", 0.0]]}),
    "replies of other kinds": lambda n: packed(
        DATA, b"", message(f"{n}{UNIQUE}", UNIQUE, msg_type="reply", req_id=str(n))
    ),
    "returned messages": lambda n: packed(
        DATA,
        b"",
        message("a", "b", msg_type="return", req_id=[str(n)], original_headers={"cn__channel": f"{n}{UNIQUE}"}),
    ),
    "greetings": lambda n: greeting(f"{SITE}.{n}"),
    "pings": lambda n: packed(PING, b""),
    "nonsense": lambda n: packed(DATA, b"\xc1" * 20, {"cn__msg_type": n}),
}


@pytest.mark.parametrize("seconds", [1.0, pytest.param(2.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", mostly_slow(FLOODS, lambda what: what in ("pings", "nonsense", "greetings")))
def test_a_flood_from_one_site(project: Path, server: int, what: str, seconds: float) -> None:
    """Another site is answered meanwhile, and the server's process does not grow with what came."""
    waited: list[float] = []

    def flooded() -> None:
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(flood, project, FLOODS[what], seconds)
            time.sleep(0.4 * seconds)
            waited.extend(answered(project) for _ in range(3))
            print(what, sent.result(), "sent")

    grown = growth(server, flooded)
    print(f"{what}: {grown:.1f} MB, {max(waited):.2f} s")
    assert max(waited) < 3, waited
    assert grown < 25
    assert alive(project)


def test_a_long_greeting_and_names_that_are_not_the_site_s(project: Path, server: int) -> None:
    """FLARE keeps what a connection says of itself."""
    no_greeting = packed(DATA, b"", message("task", "heart_beat"))
    names = (greeting(f"{SITE}.no-job"), greeting("north"), greeting(7))
    for said in (greeting(SITE, "x" * port.GREETING), *names, no_greeting):
        with connected(project) as caller:
            caller.settimeout(10)
            caller.sendall(said)
            with suppress(ConnectionError):
                while caller.recv(1 << 16):
                    pass  # it is greeted back, and then hears the end
    assert answered(project) < 10


def test_a_site_that_does_not_listen_keeps_few_threads_of_the_server(project: Path, server: int) -> None:
    """It asks and asks, and takes none of the answers. FLARE has 100 threads for the messages of all sites."""
    with connected(project, buffer=4096) as caller:
        caller.sendall(greeting(SITE))
        assert caller.recv(1), "greeted"
        caller.settimeout(1)
        with suppress(OSError):
            for _ in range(3000):
                caller.sendall(packed(PING, b"") * 100)
        assert answered(project) < 5


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system cannot tell")
def test_who_writes_to_a_site_that_takes_nothing_does_not_wait_for_ever(project: Path, monkeypatch) -> None:
    """Of more than fits into buffers; TLS writes it whole, and has no time limit of its own."""
    monkeypatch.setattr(port, "UNREAD", 2.0)
    start = kits.kit_of(project, kits.SERVER) / "startup"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(start / "server.crt", start / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        raw = socket.create_connection(listening.getsockname())
        silent = pool.submit(client.wrap_socket, raw)
        with context.wrap_socket(listening.accept()[0], server_side=True) as writing, silent.result():
            port.expect_to_be_read(writing)
            began = time.monotonic()
            with pytest.raises(OSError):
                writing.sendall(bytes(64 << 20))
            assert time.monotonic() - began < 20


def test_messages_of_one_certificate_are_worked_on_a_few_at_a_time() -> None:
    held, taken = port.Held(), threading.Event()
    for _ in range(port.AT_ONCE):
        held.take(1)
    waiting = threading.Thread(target=lambda: (held.take(1), taken.set()), daemon=True)
    waiting.start()
    assert not taken.wait(0.2)
    held.give(1, whole=False)
    assert not taken.wait(0.2)
    held.give(0)
    assert taken.wait(10)


def test_nothing_is_read_from_a_site_whose_messages_are_not_worked_on() -> None:
    held, taken = port.Held(), threading.Event()
    held.take(port.LIMITS.bytes)
    held.take(port.LIMITS.bytes)
    waiting = threading.Thread(target=lambda: (held.take(1), taken.set()), daemon=True)
    waiting.start()
    assert not taken.wait(0.2)
    held.give(port.LIMITS.bytes)
    assert taken.wait(10)


def test_the_limit_is_that_of_the_largest_answer_which_a_job_waits_for() -> None:
    limits = port.Limits()
    assert limits.bytes == port.SMALL
    limits.expect("a", 100_000_000)
    limits.expect("a", 10)
    limits.expect("b", 50_000_000)
    assert limits.bytes == 100_000_000 + port.HEADERS
    limits.keep({"b"})
    assert limits.bytes == 50_000_000 + port.HEADERS
    limits.keep(set())
    assert limits.bytes == port.SMALL


def test_what_is_too_long_is_named_and_keeps_its_headers() -> None:
    one, other = socket.socketpair()
    connection = port.SiteConnection(one, SimpleNamespace())
    connection.held = port.Held()
    sent = frame(DATA, reply("1"), 3 * port.SMALL) + bytes(3 * port.SMALL)
    everything = greeting(SITE) + sent + frame(DATA, reply("2"), 3) + b"abc"
    sending = threading.Thread(target=other.sendall, args=(everything,), daemon=True)
    sending.start()
    assert bytes(connection.read_frame()) == greeting(SITE)
    found = bytes(connection.read_frame())
    start = Prefix.from_bytes(found)
    headers = msgspec.msgpack.decode(found[PREFIX_LEN:])
    assert (start.length, start.header_len) == (len(found), len(found) - PREFIX_LEN)
    assert headers == reply("1") | {
        "cn__return_code": f"sent {len(sent)} bytes where at most {port.LIMITS.bytes} are read"
    }
    assert bytes(connection.read_frame())[-3:] == b"abc", "the next one is read as it is"
    sending.join()
    one.close()
    other.close()
