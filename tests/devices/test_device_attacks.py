"""What was tried against the gateway and did not hold, or is telling that it did: docs/results/gateway-attack.md."""

from __future__ import annotations

import http.client
import json
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fedzero_client import cli as client_cli
from fedzero_client.errors import Broken
from fedzero_client.packing import unpack

from devices.fleet import made, recipe_of
from devices.test_device_catch_up import Room
from devices.test_device_sessions import House, refusals
from devices.test_device_sockets import Place, wait_for
from fedzero.engines.devices import application, catching_up, clients, framing, limits, serving, signing, sockets
from fedzero.engines.devices import door as doors
from fedzero.engines.devices import hub as hubs
from fedzero.engines.devices import messages as m
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices import session as sessions
from fedzero.engines.devices.application import address_of
from fedzero.engines.devices.clients import DeviceClients
from fedzero.engines.devices.codes import Code
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.session import State
from fedzero.recipe.environment import Environment
from fedzero.recipe.view import RunView
from outcome import Outcome

MASK = b"mask"
SHAKE = (
    b"GET /fedzero/1/socket HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.hub.close()
    found.registry.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    with serving.served(found.gateway, found.socket, {}):
        yield found
    found.hub.close()
    found.registry.close()


def masked(payload: bytes, first: int = 0x82) -> bytes:
    head = bytes((first, 0x80 | len(payload))) if len(payload) < 126 else struct.pack(">BBH", first, 0xFE, len(payload))
    return head + MASK + framing.unmasked(payload, MASK)


def shaken(place: Place) -> socket.socket:
    found = place.connected()
    found.sendall(SHAKE)
    assert found.recv(1 << 12).startswith(b"HTTP/1.1 101 ")
    return found


# ---- connections


def test_a_second_request_that_does_not_end_is_silence_too(place: Place) -> None:
    """The limit of a head was that of the first request alone."""
    connection = place.connected()
    connection.sendall(b"GET /fedzero/1/about HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b" 200 " in connection.recv(1 << 12)
    door = place.socket.door
    assert door is not None
    wait_for(lambda: len(door.silent) == 1)
    connection.sendall(b"GET /join HTTP/1.1\r\nX-Slow: ")
    for _ in range(5):
        connection.sendall(b"x")
        time.sleep(0.02)
    assert len(door.silent) == 1
    door.sweep(time.monotonic() + 100)
    door.sweep(time.monotonic() + 100)
    while connection.recv(1 << 12):
        pass
    connection.close()


def test_requests_whose_responses_nobody_reads_are_silence(place: Place) -> None:
    connection = place.connected()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    asked = b"GET /join HTTP/1.1\r\nHost: h\r\n\r\n" * 50
    door = place.socket.door
    assert door is not None
    end = time.monotonic() + 30
    while not door.silent and time.monotonic() < end:
        try:
            connection.send(asked)
        except BlockingIOError:
            time.sleep(0.05)
    assert door.silent
    connection.close()


def test_where_all_room_is_taken_the_longest_silence_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "SPARE", 1 << 20)  # the numbers of these files need not follow one another
    pairs = [socket.socketpair() for _ in range(4)]
    ours = [a for a, _ in pairs]
    ours.sort(key=socket.socket.fileno)
    pairs.sort(key=lambda pair: pair[0].fileno())
    door = doors.Door(ours[0].fileno(), 10)
    assert all(door.came(each, float(now)) for now, each in enumerate(ours))
    assert len(door.silent) == 1  # each newcomer pushed one out, but for the first
    assert [other.recv(1) for _, other in pairs[:3]] == [b""] * 3
    door.most = -doors.SPARE - 1
    assert not door.came(ours[0], 9.0) and door.turned_away == 1  # files of the run itself are not given away
    for pair in pairs:
        for each in pair:
            each.close()


@pytest.mark.slow
def test_ten_thousand_half_open_sockets(tmp_path: Path) -> None:
    """A process opens them; a device joins meanwhile, and the gateway's files and memory are within their caps."""
    place, most = Place(tmp_path), 1000
    place.hub.most = most
    program = (
        "import resource, socket, sys, time\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "held = []\n"
        "for number in range(10000):\n"
        "    try:\n"
        f"        held.append(socket.create_connection(('127.0.0.1', {place.port}), 5))\n"
        "    except OSError: pass\n"
        "    if number == 3000: print('many', flush=True)\n"
        "print('done', flush=True)\n"
        "time.sleep(600)\n"
    )
    me = psutil.Process()
    with serving.served(place.gateway, place.socket, {}):
        before = me.memory_info().rss
        stranger = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"many\n"
        assert place.ask(place.device("one")).round == 0
        assert stranger.stdout.readline() == b"done\n"
        assert me.num_fds() < most + serving.OWN_FILES + 200  # those of the test, too
        assert me.memory_info().rss - before < 100 << 20
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()
    place.hub.close()
    place.registry.close()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (bytes((0x82, 1)) + b"\x00", Code.MALFORMED),  # not masked
        (masked(b"x", 0xC2), Code.MALFORMED),  # compressed
        (masked(b"x", 0x83), Code.MALFORMED),  # of a kind that nobody knows
        (masked(b"x", 0x09), Code.MALFORMED),  # a ping in parts
        (masked(bytes(126), 0x89), Code.MALFORMED),  # a long ping
        (masked(b"x", 0x80), Code.MALFORMED),  # the end of nothing
        (masked(b"x", 0x02) + masked(b"y"), Code.MALFORMED),  # a message in a message
        (masked(b"x", 0x81), Code.MALFORMED),  # text
        (bytes((0x82, 0xFF)) + (1 << 62).to_bytes(8, "big"), Code.LARGE),
        (masked(b"\x91\x08") * 500, Code.UNEXPECTED),
    ],
)
def test_web_sockets_that_are_refused_by_name(
    place: Place, sent: bytes, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "LAST_WORDS", 0.05)
    connection = shaken(place)
    connection.sendall(sent)
    found = connection.recv(1 << 12)
    assert found[0] == 0x82 and unpack(found[2 : 2 + found[1]])[:2] == [24, code]
    while connection.recv(1 << 12):
        pass  # and then it ends
    connection.close()
    wait_for(lambda: not place.hub.waiting)


@pytest.mark.parametrize(("first", "flood"), [(b"", masked(b"", 0x89)), (masked(b"", 0x02), masked(b"", 0x00))])
def test_pings_and_parts_count_as_frames(place: Place, first: bytes, flood: bytes) -> None:
    connection = shaken(place)
    connection.sendall(first + flood * 3 * sessions.BURST)
    found = b""
    while piece := connection.recv(1 << 16):
        found += piece
    assert b"far too many frames" in found and found.count(b"\x8a\x00") <= 2 * sessions.BURST
    connection.close()


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (b"/fedzero/1/socket", b"/fedzero/1/else", b"404"),
        (b"Version: 13", b"Version: 8", b"404"),
        (b"AAAAAAAAAAAAAAAAAAAAAA==", b"short", b"404"),
        (b"GET", b"POST", b"404"),
        (b"Host: h", b"Host: h\r\nOrigin: null", b"403"),
        (b"Host: h", b"Host:\r\nOrigin: null", b"403"),
    ],
)
def test_requests_that_are_no_web_socket(place: Place, old: bytes, new: bytes, status: bytes) -> None:
    connection = place.connected()
    connection.sendall(SHAKE.replace(old, new))
    assert connection.recv(1 << 12).startswith(b"HTTP/1.1 " + status)
    assert connection.recv(1) == b""
    connection.close()


def test_an_address_is_a_proxys_word_only_if_the_proxy_is_here() -> None:
    assert address_of("127.0.0.1", "6.6.6.6, 10.0.0.1") == "10.0.0.1"
    assert address_of("9.9.9.9", "10.0.0.1") == "9.9.9.9" and address_of("127.0.0.1", None) == "127.0.0.1"
    assert len(address_of("::1", "x" * 5000)) <= application.LONGEST_ADDRESS


def test_a_session_that_polls_is_held_twice_at_most(place: Place) -> None:
    """Each request of a session was held for `beat` seconds, so one device could have all connections."""
    place.gateway.wait = 60.0
    session = place.hub.session("10.0.0.1")
    session.state, session.place = State.OPEN, 0
    place.hub._no_longer_waiting(session)
    place.hub.polls(session)
    answers = list[float]()

    def poll() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=90)
        connection.request("POST", "/fedzero/1/poll", b"", {"fedzero-session": session.token.hex()})
        connection.getresponse().read()
        answers.append(time.monotonic())
        connection.close()

    threads = [threading.Thread(target=poll) for _ in range(4)]
    for each in threads:
        each.start()
    wait_for(lambda: len(answers) == 2)
    assert place.hub.connections <= 2
    place.hub.post(session.end)
    for each in threads:
        each.join()


# ---- sessions


def test_a_device_that_floods_is_cut_off(house: House) -> None:
    session = house.ready(house.device())
    for _ in range(2 * sessions.BURST + 2):
        session.receive(m.encode(m.Beat()))
        session.take()
    assert session.state is State.OVER


def test_ready_counts_only_after_something_to_become_ready_by(house: House) -> None:
    """Each Ready made the run read the ledger from that round on, and send what it found."""
    session = house.ready(house.device())
    for round in range(5):
        session.receive(m.encode(m.Ready(round, bytes(8))))
    assert refusals(session) == [Code.RATE] * (5 - sessions.READIES) and session.state is State.OPEN
    assert len(house.events()) == sessions.READIES
    house.fresh(0)
    session.take()
    session.receive(m.encode(m.Ready(0, bytes(8))))
    assert refusals(session) == [] and len(house.events()) == 1


def test_a_place_that_is_withdrawn_between_hello_and_proof_is_shut_out(house: House) -> None:
    """Who was withdrawn in these seconds was let in, and stayed until somebody wrote the file again."""
    device, session = house.device(), house.session()
    house.joined(device).end()
    (hello,) = device.begin()
    session.receive(hello)
    (challenge,) = session.take()
    house.registry.revoke_place(0)
    (proof,) = device.receive(challenge)
    session.receive(proof)
    assert refusals(session) == [Code.REVOKED] and not house.hub.here


def test_a_place_that_begins_sessions_again_and_again_has_to_wait(house: House) -> None:
    device = house.device()
    stranger = m.encode(m.Hello(1, house.hub.run, 0, bytes(16), b"", None))
    house.joined(device)
    for _ in range(100):  # who has not the key takes nothing from the place
        house.session().receive(stranger)
    for _ in range(int(limits.SESSIONS.burst) - 1):
        assert house.joined(device).state is State.OPEN
    with pytest.raises(Broken, match="too many sessions"):
        house.joined(device)


def test_pieces_are_given_one_by_one(house: House) -> None:
    """A device that did not read had 8 MiB of them waiting for it."""
    session, content = house.ready(house.device()), bytes(1 << 20)
    house.hub.offer(0, b"", bytes(32), content)
    session.take()
    for _ in range(10):
        session.receive(m.encode(m.Fetch(bytes(32), 0)))
    assert session.size <= 2 * sessions.PIECE + 2000 and session.state is State.OPEN
    assert Code.RATE in refusals(session)


class Full:
    """A connection whose COMMIT fails as on a full disk."""

    def __init__(self, real: Any):
        self.real, self.full = real, True

    def execute(self, query: str, *values: Any) -> Any:
        if query == "COMMIT" and self.full:
            raise sqlite3.OperationalError("database or disk is full")
        return self.real.execute(query, *values)

    @property
    def in_transaction(self) -> bool:
        return bool(self.real.in_transaction)


def test_a_disk_that_is_full_is_an_error_by_name_and_places_are_given_afterwards(house: House) -> None:
    """It was an exception in the middle of the session, and after it no place was ever given."""
    real = house.registry._db
    house.registry._db = full = Full(real)  # type: ignore[assignment]
    device, session = house.device(), house.session()
    for frame in device.begin():
        session.receive(frame)
    assert refusals(session) == [Code.BUSY] and not house.registry.places()
    full.full = False
    assert house.joined(device).place == 0
    house.registry._db = real


def test_a_file_that_somebody_holds_does_not_stop_the_gateway(house: House) -> None:
    """Thirty seconds, in which nobody was heard, for each device that enrolled."""
    device, session = house.device(), house.session()
    house.registry._db.execute("PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(house.folder / "devices.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for frame in device.begin():
            session.receive(frame)
        assert refusals(session) == [Code.BUSY]
        other.execute("ROLLBACK")
    assert house.joined(device).state is State.OPEN


def test_the_gateway_waits_a_second_for_files_not_thirty(house: House) -> None:
    assert house.registry._db.execute("PRAGMA busy_timeout").fetchone() == (1000,)


# ---- the run


class Rows:
    """DeviceClients of three places without a run."""

    def __init__(self, folder: Path):
        recipe = recipe_of(folder, {"deadline": 5.0})
        setup = made(recipe, folder)
        self.registry = Registry(folder / "run")
        self.hub = Room(self.registry, plans.encode(plans.plan_of(setup)), 3, 20, 100)
        self.hub.devices, self.hub.seen, self.hub.at = {}, [], {}
        self.said = list[str]()
        past = SimpleNamespace(known=lambda client: 0, updates=self.updates, limit=lambda round, exchange: 4096)
        self.read = list[tuple[int, int]]()
        view = RunView(recipe, setup.plan, past, setup, setup.replica(), Environment(folder=folder / "run"))  # type: ignore[arg-type]
        self.clients = DeviceClients(self.hub, view, plans.Rates(setup.recipe.algorithm), 5, 1, 1)

    def updates(self, first: int, last: int) -> list[bytes]:
        self.read.append((first, last))
        return []

    def event(self, event: hubs.HubEvent) -> None:
        self.hub.events.put(event)
        self.clients._happenings(0.0)


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    found = Rows(tmp_path)
    yield found
    found.hub.close()
    found.registry.close()


def test_a_device_that_gets_no_further_is_sent_away(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    dismissed = list[str]()
    monkeypatch.setattr(rows.hub, "dismiss", lambda place, why: dismissed.append(why))
    monkeypatch.setattr(type(rows.clients.replica), "round", 100)
    for _ in range(clients.MOST_IDLE + 2):
        rows.event(hubs.Caught(1, 3, bytes(8)))
    assert dismissed == ["it does not get any further"]
    for _ in range(clients.MOST_REBUILDS + 1):
        rows.event(hubs.Caught(2, 10**9, bytes(8)))  # it is ready for a round that is far away
    assert "rebuilds it" in dismissed[-1]


def test_what_devices_lack_is_not_kept_for_each_round_that_they_name(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(rows.clients.replica), "round", 60)
    missed = rows.clients.missed
    for first in range(60):
        missed.updates(first)
    assert len(missed._updates) <= catching_up.MOST_KEPT
    monkeypatch.setattr(type(rows.clients.replica), "round", 10**6)
    rows.read.clear()
    assert isinstance(missed.shorter(False, 5), catching_up.Offered) and not rows.read  # not a million rounds


def test_a_device_that_lets_orders_expire_does_not_take_the_time_of_each_round(rows: Rows) -> None:
    one, now = rows.clients, time.monotonic()
    one.standing.update({0: 0, 1: 0, 2: 0})
    one.send(0, 0, [_work()], {0: 0, 1: 0, 2: 0})
    rows.event(hubs.Said(0, 0, 0, b""))
    rows.event(hubs.Said(1, 0, 0, b""))
    assert [arrival.client for arrival in one._expired(now + 10)] == [2]  # type: ignore[union-attr]
    assert list(one.present()) == [0, 1]
    one.least = 3
    assert list(one.present()) == [0, 1, 2]  # there are no others
    rows.event(hubs.Said(2, 0, 0, b""))
    one.least = 1
    assert list(one.present()) == [0, 1, 2]


def _work() -> bytes:
    from fedzero.protocol.messages import encode_work

    return encode_work(0, 0, [])


# ---- words of others


def test_what_a_gateway_says_steers_no_terminal(
    fedzero: Callable[..., Outcome], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client_cli.say("round\x1b[2J\u202e 1\nfedzero-client: all is well" + "x" * 5000)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said[:-1].isprintable() and len(said) < 600
    import urllib.request

    about = {"protocol": "p\x1b[2J", "run": "\x1b]0;x\x07", "places": "\x1b[2J" * 100}
    answer = SimpleNamespace(read=lambda most: json.dumps(about).encode(), __enter__=None)

    class Opened:
        def __enter__(self) -> Any:
            return answer

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Opened())
    done = fedzero("devices", "check", "https://example.org")
    assert done.code == 0 and "\x1b" not in done.out + done.err and "\x07" not in done.out + done.err


@pytest.mark.parametrize("library", ["cryptography", "libsodium"])
def test_a_signature_has_one_form_and_is_of_one_key(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With either library."""
    if library == "cryptography":
        monkeypatch.setattr(signing, "sodium", None)
    elif signing.sodium is None:
        pytest.skip("PyNaCl is not installed")
    keys = signing.GatewayKeys.made()
    signer, message = signing.Signer(keys), b"an order"
    signature, key = signer.sign(signing.ED25519, message), signer.public[signing.ED25519]
    verifier = signing.Verifier(signing.ED25519, key)
    assert verifier(message, signature) and not verifier(message + b"s", signature)
    order_of_group = (1 << 252) + 27742317777372353535851937790883648493
    another = (int.from_bytes(signature[32:], "little") + order_of_group).to_bytes(32, "little")
    assert not verifier(message, signature[:32] + another) and not verifier(message, bytes(64))
    other = signing.Verifier(signing.ED25519, signing.Signer(signing.GatewayKeys.made()).public[signing.ED25519])
    assert not other(message, signature)
    for small in (bytes(32), b"\1" + bytes(31)):
        with pytest.raises(ValueError, match="small order"):
            signing.Verifier(signing.ED25519, small)
    p256 = signing.Verifier(signing.P256, signer.public[signing.P256])
    assert p256(message, signer.sign(signing.P256, message)) and not p256(message, signature)
