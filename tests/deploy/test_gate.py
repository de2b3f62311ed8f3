"""What FLARE's server takes from somebody who has the certificate of a site, and how much memory it spends on that."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
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


def connected(project: Path, site: str = SITE) -> ssl.SSLSocket:
    start = kits.kit_of(project, site) / "startup"
    context = ssl.create_default_context(cafile=str(start / "rootCA.pem"))
    context.load_cert_chain(start / "client.crt", start / "client.key")
    raw = socket.create_connection(("127.0.0.1", kits.Project.of(project).port), 10)
    return context.wrap_socket(raw, server_hostname="localhost")


def frame(kind: int, headers: dict[str, Any], size: int, announced: int | None = None) -> bytes:
    encoded = msgspec.msgpack.encode(headers) if headers else b""
    length = PREFIX_LEN + len(encoded) + size if announced is None else announced
    head = bytearray(PREFIX_LEN)
    Prefix(length, len(encoded), kind, 0, 0, 1, 1, 1).to_buffer(head, 0)
    return bytes(head) + encoded


DATA = 1
"""FLARE's type of a frame that carries a message."""


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
        other.settimeout(1)
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
            caller.sendall(frame(DATA, reply("1"), 0, 2_000_000_000))
        time.sleep(2)
        for caller in callers:
            caller.close()

    def send() -> None:
        with connected(project) as caller:
            caller.sendall(frame(DATA, reply("1"), 1 << 30))
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
    sending = threading.Thread(target=other.sendall, args=(sent + frame(DATA, reply("2"), 3) + b"abc",))
    sending.start()
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
