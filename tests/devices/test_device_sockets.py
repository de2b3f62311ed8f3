"""A gateway on a real socket: what strangers do to it is refused by name, and a device still gets its order."""

from __future__ import annotations

import dataclasses
import http.client
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fedzero_client.cli import WAYS, _connected
from fedzero_client.packing import unpack
from fedzero_client.session import Session as Device
from fedzero_client.session import Ticket
from fedzero_client.store import Store
from fedzero_client.turn import Rows
from fedzero_client.websocket import WebSocket

from devices.fleet import data_of, made, recipe_of
from fedzero.engines.devices import application, serving
from fedzero.engines.devices import hub as hubs
from fedzero.engines.devices import messages as m
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.application import Gateway, joined, split
from fedzero.engines.devices.clients import DeviceClients
from fedzero.engines.devices.codes import Code
from fedzero.engines.devices.hub import Caught, Hub, Said
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.session import Asked, State
from fedzero.protocol.messages import encode_work
from fedzero.recipe.environment import Environment
from fedzero.recipe.view import RunView
from fedzero.rounds.past import PastRounds


class Place:
    """A gateway that listens, with a hub that a test drives as a run does."""

    def __init__(self, folder: Path):
        setup = made(recipe_of(folder), folder)
        self.folder, self.registry = folder, Registry(folder)
        self.hub = Hub(self.registry, plans.encode(plans.plan_of(setup)), 3, 20, 500)
        self.socket = serving.listening("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.gateway = Gateway(self.hub, ["https://friends.example"], wait=0.2)

    def ask(self, device: Device, way: str = "socket") -> Said:
        """Let a device join, catch up, and answer an order."""
        thread = threading.Thread(target=_takes_part, args=(device, self.port, way), daemon=True)
        thread.start()
        place = self.next().place
        self.hub.post(self.hub.update, place, [m.encode(m.UpdatesBody(True, (), b"", 0))])
        assert isinstance(self.next(), Caught)
        body = m.encode(m.OrderBody(encode_work(0, 0, []), b""))
        self.hub.post(self.hub.deliver, {place: Asked(0, 0, 0, body, 4096)})
        said = self.next()
        assert isinstance(said, Said)
        self.hub.post(self.hub.finish, 1, "")
        thread.join(30)
        assert device.finished
        return said

    def next(self) -> hubs.HubEvent:
        return self.hub.events.get(timeout=30)

    def device(self, name: str) -> Device:
        ticket = Ticket("", self.hub.run, self.registry.ticket(1), self.hub.signer.fingerprint)
        found = Device(ticket, Store(self.folder / name), Rows(*data_of(0)))
        found.store.close()
        return found

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)


def _takes_part(device: Device, port: int, way: str) -> None:
    device.store = Store(device.store.folder)  # connections of SQLite belong to a thread
    connection = WAYS[way](f"http://127.0.0.1:{port}")
    frames = device.begin()
    while not device.finished:
        for frame in frames:
            connection.send(frame)
        frames = device.receive(connection.receive())
    connection.close()


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for module in (hubs, serving, application):
        monkeypatch.setattr(module, "HANDSHAKE", 0.5)
    found = Place(tmp_path)
    with serving.served(found.gateway, found.socket, {}):
        yield found
    found.registry.close()


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_device_answers_while_strangers_hold_connections_open(place: Place, way: str) -> None:
    silent = [place.connected() for _ in range(150)]
    slow = place.connected()
    slow.sendall(b"POST /fedzero/1/poll HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\nx")
    assert place.ask(place.device("one"), way).round == 0
    for each in silent:
        assert each.recv(1) == b""  # ended by the gateway
        each.close()
    assert b" 408 " in slow.recv(1 << 10)
    slow.close()


def _posted(place: Place, body: bytes, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", "/fedzero/1/poll", body, named)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def _code(body: bytes) -> int:
    (length,) = struct.unpack_from("<I", body)
    assert length == len(body) - 4
    tag, code, _ = unpack(body[4:])
    assert tag == 24
    return int(code)


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_gateway_that_is_stopped_tells_devices_to_come_back(tmp_path: Path, way: str) -> None:
    """By Ctrl-C or SIGTERM."""
    recipe = recipe_of(tmp_path)
    setup, folder = made(recipe, tmp_path), tmp_path / "run"
    run = RunView(recipe, setup.plan, PastRounds(), setup, setup.replica(), Environment(folder=folder))
    with pytest.raises(KeyboardInterrupt), recipe.engine.open(run) as clients:
        assert isinstance(clients, DeviceClients)
        hub = clients.hub
        ticket = Ticket(hub.registry.url, hub.run, hub.registry.ticket(1), hub.signer.fingerprint)
        device = Device(ticket, Store(tmp_path / "device"), Rows(*data_of(0)))
        device.store.close()

        def take_part() -> None:
            device.store = Store(device.store.folder)
            _connected(device, way)
            device.store.close()

        thread = threading.Thread(target=take_part, daemon=True)
        thread.start()
        wait_for(lambda: bool(hub.here) and hub.connections == 1 and not hub.here[0].outgoing)
        raise KeyboardInterrupt
    thread.join(30)
    assert (device.finished, device.pause) == (False, 20)


def test_both_requests_of_a_session_are_answered_when_the_gateway_stops(place: Place) -> None:
    """The earlier one got status 500 from a gateway that did not wait any longer."""
    place.gateway.wait = 60.0
    session, found = place.hub.session("10.0.0.1"), list[tuple[int, bytes]]()
    session.state, session.place = State.OPEN, 0
    place.hub._no_longer_waiting(session)
    place.hub.polls(session)
    place.hub.here[0] = session
    token = session.token.hex()
    threads = [threading.Thread(target=lambda: found.append(_posted(place, b"", fedzero_session=token))) for _ in "12"]
    for each in threads:
        each.start()
    wait_for(lambda: place.hub.connections == 2)
    place.hub.post(place.hub.stop, 7, "stopped")
    for each in threads:
        each.join(20)
    waits = [joined([m.encode(m.Wait(seconds, text))]) for seconds, text in ((0, ""), (7, "stopped"))]
    assert sorted(found) == sorted((200, each) for each in waits)


def test_a_device_that_comes_while_the_gateway_stops_is_sent_away(place: Place) -> None:
    place.hub.post(place.hub.stop, 7, "stopped")
    device = place.device("one")
    device.ticket = dataclasses.replace(device.ticket, url=f"http://127.0.0.1:{place.port}")
    device.store = Store(device.store.folder)
    _connected(device, "socket")
    assert (device.finished, device.pause) == (False, 7)
    device.store.close()


def test_a_request_of_a_session_that_has_ended_gets_an_error(place: Place) -> None:
    """Wait with 0 seconds would let a device that lost the reason ask again at once, until the session is forgotten."""
    place.hub.sweep = lambda now: None  # type: ignore[method-assign]  # it forgets none
    session = place.hub.session("10.0.0.1")
    place.hub.polls(session)
    token = session.token.hex()
    place.hub.post(session.refuse, Code.MALFORMED, "no frame")
    assert _code(_posted(place, b"", fedzero_session=token)[1]) == Code.MALFORMED
    for _ in range(2):
        assert _code(_posted(place, b"", fedzero_session=token)[1]) == Code.UNEXPECTED


def test_requests_that_are_refused(place: Place) -> None:
    assert _posted(place, b"", Origin="https://elsewhere.example")[0] == 403
    assert _posted(place, b"", Origin="https://friends.example")[0] == 200
    assert _posted(place, b"", Origin=f"http://127.0.0.1:{place.port}")[0] == 200
    assert _code(_posted(place, bytes(10 << 20))[1]) == Code.LARGE
    assert _code(_posted(place, b"\xff\xff\xff\xff")[1]) == Code.MALFORMED
    assert _code(_posted(place, joined([b""] * 9))[1]) == Code.MALFORMED
    assert list(split(joined([b"1", b"", *[b"3"] * 6]))) == [b"1", b"", *[b"3"] * 6]
    assert _code(_posted(place, joined([b"\xc1"]))[1]) == Code.MALFORMED
    assert _code(_posted(place, b"", fedzero_session="00" * 16)[1]) == Code.UNEXPECTED
    assert _code(_posted(place, b"", fedzero_session="not hexadecimal")[1]) == Code.UNEXPECTED


def test_a_page_from_elsewhere_gets_no_web_socket(place: Place) -> None:
    head = "GET /fedzero/1/socket HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    head += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    for origin, status in (("https://elsewhere.example", b" 403 "), ("http://h", b" 101 ")):
        connection = place.connected()
        connection.sendall(f"{head}Origin: {origin}\r\n\r\n".encode())
        assert status in connection.recv(1 << 12)
        connection.close()


def test_a_message_that_is_too_large_ends_a_web_socket(place: Place) -> None:
    connection = WebSocket(f"http://127.0.0.1:{place.port}")
    connection.send(m.encode(m.Beat()))
    assert unpack(connection.receive())[1] == Code.UNEXPECTED
    connection.close()
    connection = WebSocket(f"http://127.0.0.1:{place.port}")
    connection.send(bytes(1 << 20))
    assert unpack(connection.receive())[1] == Code.LARGE
    connection.close()


def test_a_web_socket_that_says_nothing_is_ended(place: Place) -> None:
    connection = WebSocket(f"http://127.0.0.1:{place.port}")
    assert unpack(connection.receive())[1] == Code.BUSY
    connection.close()
    end = time.monotonic() + 30
    while place.hub.waiting and time.monotonic() < end:
        time.sleep(0.01)
    assert not place.hub.waiting


def test_files_that_the_process_has_open_take_no_room_from_connections() -> None:
    held = [os.dup(0) for _ in range(300)]
    try:
        connections, number = serving.room(500)
        assert connections == 500 and number >= max(held) + 500
    finally:
        for each in held:
            os.close(each)
