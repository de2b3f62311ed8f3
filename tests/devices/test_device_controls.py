"""What an operator tells a gateway, and what addresses and places may ask of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fedzero_client.errors import Broken, ClientError

from devices.test_device_catch_up import Room, cohorts, played, refused
from devices.test_device_sessions import House, order, refusals
from fedzero.engines.devices import controls as control
from fedzero.engines.devices import limits, statements
from fedzero.engines.devices import messages as m
from fedzero.engines.devices.codes import Code, Denied
from fedzero.engines.devices.controls import Controls, Meter, Traffic, blocks
from fedzero.engines.devices.limits import Allowance, Buckets, network_of
from fedzero.engines.devices.session import State
from outcome import Outcome


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.hub.close()
    found.registry.close()


def test_a_build_that_is_blocked_is_shut_out_and_let_in_again(house: House) -> None:
    device = house.device()
    session = house.ready(device)
    assert session.build.startswith("fedzero-client/")
    with closing(Controls(house.folder)) as operator:
        operator.block("other/*")
        house.hub.sweep(0.0)
        assert session.state is State.OPEN
        operator.block("fedzero-client/*")
        house.hub.sweep(0.0)
        assert refusals(session) == [Code.BUILD] and session.state is State.OVER
        with pytest.raises(ClientError, match="is blocked"):
            house.joined(device)
        assert operator.unblock("fedzero-client/*") and not operator.unblock("fedzero-client/*")
    house.hub.sweep(0.0)
    assert house.joined(device).state is State.OPEN


def test_a_device_that_names_no_build_is_let_in_and_what_one_says_steers_no_terminal(house: House) -> None:
    house.ready(house.device())
    session = house.session()
    session.receive(m.encode([2, 1, house.hub.run, 0, bytes(16), b"", None]))
    assert isinstance(m.decode_gateway(session.take()[0]), m.Challenge)
    hello = m.encode([2, 1, house.hub.run, 0, bytes(16), b"", None, "\x1b[2J\u202eevil\n" + "x" * 500, "more"])
    frame = m.decode_device(hello)
    assert isinstance(frame, m.Hello) and frame.client.isprintable() and len(frame.client) <= m.LONGEST_BUILD
    assert blocks(["a/[12]*"], "a/1.5") and not blocks(["a/1"], "a/10") and not blocks([], "a")


def test_a_paused_run_asks_nobody_until_it_goes_on(tmp_path: Path) -> None:
    said = list[str]()

    def pause(room: Room) -> None:
        with closing(Controls(tmp_path / "run")) as operator:
            operator.pause("lunch")
        room.sweep(0.0)
        monitor(room)

    def monitor(room: Room) -> None:
        looks = 0
        happenings = room.events.get

        class Events:
            """The operator goes on while the run waits; devices come back."""

            def __getattr__(self, name: str) -> object:
                return getattr(room_events, name)

            def get(self, timeout: float) -> object:
                nonlocal looks
                looks += 1
                if looks == 3:
                    assert room.paused == "lunch" and not room.here
                    said.extend(device.pause for _, device in room.devices.values())  # type: ignore[misc]
                    session = room.session("here")
                    session.receive(m.encode(m.Hello(1, room.run, 0, bytes(16), b"", None)))
                    assert refusals(session) == [Code.PAUSED]
                    with closing(Controls(tmp_path / "run")) as operator:
                        operator.go_on()
                    room.sweep(0.0)
                    for place, (_, device) in list(room.devices.items()):
                        device.store.close()
                        room.join(tmp_path, place)
                    room.post(lambda: None)
                return happenings(timeout=timeout)

        room_events = room.events
        room.events = Events()  # type: ignore[assignment]

    played(tmp_path, lambda room: {8: lambda: pause(room)})
    assert said == [30.0, 30.0]
    assert cohorts(tmp_path, 9, 24) == {(0, 1)} and not refused(tmp_path)


def test_a_place_that_has_used_its_bytes_waits_for_the_next_day(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    device = house.device()
    session = house.ready(device)
    house.hub.meter.budget = 2000
    house.hub.sweep(0.0)
    assert session.state is State.OPEN
    for _ in range(60):
        session.receive(m.encode(m.Ready(0, bytes(8))))
        house.now += 1
    session.receive(m.encode(m.Answer(0, 0, 0, bytes(900), bytes(64))))
    session.receive(m.encode(m.Answer(0, 0, 0, bytes(900), bytes(64))))
    session.take()
    house.hub.sweep(0.0)
    assert refusals(session) == [Code.BUDGET] and session.state is State.OVER
    with pytest.raises(Broken, match="midnight"):
        house.joined(device)
    assert device.pause == 900
    tomorrow = time.time() + control.DAY
    monkeypatch.setattr(control.time, "time", lambda: tomorrow)
    assert house.joined(device).state is State.OPEN


def test_traffic_is_on_disk_and_goes_on_after_a_restart(house: House) -> None:
    session = house.ready(house.device())
    house.hub._count_all()
    house.hub._kept(house.hub.meter.changed())
    with closing(Controls(house.folder)) as operator:
        (first,) = operator.traffic().values()
    assert first.here and first.up > 100 and first.down > 100 and first.build == session.build
    session.end()
    house.hub._kept(house.hub.meter.changed())
    with closing(Controls(house.folder)) as operator:
        (found,) = operator.traffic().values()
    assert not found.here and (found.up, found.down) == (first.up, first.down)
    meter = Meter({0: found}, 10)
    assert meter.spent(0) and not meter.spent(1)
    meter.note(0, 5, 7, "", True)
    assert meter.changed()[0].up == found.up + 5 and meter.changed() == []
    yesterday = Meter({0: Traffic(0, found.day - 1, 10**9, 1, 1, 0.0, "", False)}, 10)
    assert not yesterday.spent(0)


def test_a_class_behind_one_address_enrols_at_once_and_a_crowd_does_not(house: House) -> None:
    assert limits.ENROLMENTS.burst >= 300 and limits.ENROLMENTS.rate > 0
    house.hub._enrolments = Buckets(Allowance(3, 0.001))
    session, other, key = house.hub.session("10.0.0.1"), house.hub.session("10.0.0.2"), house.device()
    print_ = house.hub.signer.fingerprint
    statement = statements.enrol(house.hub.run, house.ticket, print_, 1, key.public)
    frame = m.encode(m.Enrol(1, house.ticket, 1, key.public, key._signed(statement)))
    for _ in range(3):
        session.receive(frame)
    assert refusals(session) == [] and session.state is State.NEW
    session.receive(frame)
    assert refusals(session) == [Code.COOL] and session.state is State.OVER
    other.receive(frame)
    assert refusals(other) == []


def test_an_address_that_guesses_tickets_has_to_wait_and_open_sessions_go_on(house: House) -> None:
    session = house.ready(house.device())
    house.hub._refusals = Buckets(Allowance(5, 0.001))
    for _ in range(5):
        stranger, key = house.hub.session("10.0.0.1"), house.device("guess")
        ticket = os.urandom(16)
        statement = statements.enrol(house.hub.run, ticket, house.hub.signer.fingerprint, 1, key.public)
        stranger.receive(m.encode(m.Enrol(1, ticket, 1, key.public, key._signed(statement))))
        assert refusals(stranger) == [Code.TICKET]
        key.store.close()
    with pytest.raises(Denied, match="come back in"):
        house.hub.session("10.0.0.1")
    house.hub.session("10.0.0.2")
    house.hub.deliver({0: order()})
    assert session.state is State.OPEN and session.take()


def test_a_place_whose_device_ends_sessions_by_mistakes_has_to_wait(house: House) -> None:
    device = house.device()
    for _ in range(int(limits.FAULTS.burst)):
        session = house.joined(device)
        session.receive(b"\xc1")
        assert refusals(session) == [Code.MALFORMED]
    with pytest.raises(Broken, match="too many sessions by mistakes"):
        house.joined(device)
    assert device.pause == 60
    assert house.joined(house.device("another")).state is State.OPEN


def test_buckets_fill_again_and_forget_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_KEPT", 2)
    buckets = Buckets(Allowance(2, 0.5))
    assert [buckets.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert buckets.seconds("a", 0.0) == 2 and buckets.take("a", 2.0) and not buckets.take("a", 2.0)
    assert buckets.take("b", 2.0) and buckets.take("c", 2.0) and buckets.take("a", 2.0)  # forgotten


def test_addresses_of_one_household_are_one() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert (
        network_of("::ffff:10.0.0.1") == "10.0.0.1" == network_of("10.0.0.1") and network_of("nonsense") == "nonsense"
    )


def test_the_commands(fedzero: Callable[..., Outcome], tmp_path: Path) -> None:
    run = tmp_path / "run"
    fedzero("devices", "ticket", run, "--url", "https://example.org", "--no-qr")
    with closing(Controls(run)) as operator:
        operator.write([Traffic(0, 0, 5, 1234, 5678, 0.0, "own/1", True)])
    assert fedzero("devices", "pause", run, "--why", "lunch\x1b[2J").code == 0
    assert fedzero("devices", "block", run, "own/*").code == 0
    done = fedzero("devices", "list", run)
    assert done.code == 0 and "paused: lunch" in done.out and "own/*" in done.out and "1,234 bytes up" in done.out
    assert "\x1b" not in done.out + done.out
    assert fedzero("devices", "resume", run).code == 0
    assert fedzero("devices", "block", run, "own/*", "--lift").code == 0
    assert fedzero("devices", "block", run, "own/*", "--lift").code == 2
    assert "paused" not in fedzero("devices", "list", run).out
    assert fedzero("devices", "pause", tmp_path / "nowhere").code == 2
