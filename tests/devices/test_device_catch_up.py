"""Devices that come late, leave, lose what they had, or have another model: whole runs without sockets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fedzero_client.packing import pack, unpack
from fedzero_client.session import CHECKPOINT, LEAVE, UPDATES, Ticket
from fedzero_client.session import Session as Device
from fedzero_client.store import Store
from fedzero_client.turn import Rows

from devices.fleet import data_of, made, recipe_of
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.clients import DeviceClients
from fedzero.engines.devices.hub import Hub
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.session import Session, State
from fedzero.recipe.environment import Environment
from fedzero.recipe.view import RunView
from fedzero.rounds.past import PastRounds
from fedzero.runs import session
from fedzero.runs.progress import Silent
from ledgers import rounds_of


class Room(Hub):
    """A hub whose devices answer at once, in the thread of the run. at: by round, what happens when it begins."""

    devices: dict[int, tuple[Session, Device]]
    at: dict[int, Callable[[], None]]
    seen: list[tuple[int, int]]
    """(place, tag) of the frames that devices were sent"""

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        call(*arguments)
        while sum(self._talk(place) for place in list(self.devices)):
            pass

    def _talk(self, place: int) -> bool:
        session, device = self.devices[place]
        frames = session.take()
        for frame in frames:
            self.seen.append((place, unpack(frame)[0]))
            for answer in device.receive(frame):
                session.receive(answer)
        return bool(frames)

    def begin(self, round: int) -> None:
        Hub.begin(self, round)
        self.at.pop(round, lambda: None)()

    def join(self, folder: Path, place: int) -> Device:
        """The device of a place comes, or comes back with what is on its disk."""
        ticket = Ticket("", self.run, self.registry.ticket(1), self.signer.fingerprint)
        device = Device(ticket, Store(folder / f"device-{place}"), Rows(*data_of(place)))
        session = Session(self, lambda: 0.0)
        session._expect_slow = lambda: None  # type: ignore[method-assign]  # no time passes here
        for frame in device.begin():
            session.receive(frame)
        self.devices[place] = session, device
        return device


def played(folder: Path, room_of: Callable[[Room], dict[int, Callable[[], None]]], **changes: Any) -> Room:
    """A run of 24 rounds in which two devices are there from the beginning."""
    recipe = msgspec.structs.replace(recipe_of(folder, **changes.pop("algorithm", {})), rounds=24, evaluate_every=24)
    if changes:
        recipe = msgspec.structs.replace(recipe, task=msgspec.structs.replace(recipe.task, **changes))
    setup, run = made(recipe, folder), folder / "run"
    past = PastRounds()
    with closing(Registry(run)) as registry:
        room = Room(registry, plans.encode(plans.plan_of(setup)), 3, 20, 100)
        room.devices, room.seen = {}, []
        view = RunView(recipe, setup.plan, past, setup, setup.replica(), Environment(folder=run))
        clients = DeviceClients(room, view, plans.Rates(setup.recipe.algorithm), 60, 10, 1)
        room.at = {0: lambda: [room.join(folder, place) for place in (0, 1)] and None, **room_of(room)}
        ledger = session.create(run, setup.start)
        session.run_to_end(session.Opened(view, clients, past), ledger, run, Silent())
    return room


def cohorts(folder: Path, first: int, last: int) -> set[tuple[int, ...]]:
    return {record.cohort for record in rounds_of(folder / "run")[first:last]}


def refused(folder: Path) -> list[tuple[int, Any]]:
    return [(record.round, record.refused) for record in rounds_of(folder / "run") if record.refused]


def test_a_device_that_comes_late_to_a_small_model_is_sent_the_model(tmp_path: Path) -> None:
    room = played(tmp_path, lambda room: {18: lambda: room.join(tmp_path, 2) and None})
    assert (2, CHECKPOINT) in room.seen and (2, UPDATES) not in room.seen
    assert cohorts(tmp_path, 0, 18) == {(0, 1)} and cohorts(tmp_path, 19, 24) == {(0, 1, 2)}
    assert refused(tmp_path) == []


@pytest.mark.slow
def test_a_device_that_comes_late_to_a_large_model_is_sent_updates(tmp_path: Path) -> None:
    room = played(tmp_path, lambda room: {18: lambda: room.join(tmp_path, 2) and None}, widths=(6, 400, 3))
    assert (2, UPDATES) in room.seen and not any(tag == CHECKPOINT for _, tag in room.seen)
    assert cohorts(tmp_path, 19, 24) == {(0, 1, 2)} and refused(tmp_path) == []


@pytest.mark.slow
def test_momentum_is_part_of_what_is_sent(tmp_path: Path) -> None:
    late = {"algorithm": {"optimizer": {"kind": "momentum"}, "rate": {"kind": "inverse-sqrt", "start": 0.2}}}
    room = played(tmp_path, lambda room: {18: lambda: room.join(tmp_path, 2) and None}, widths=(6, 3), **late)
    assert (2, CHECKPOINT) in room.seen and refused(tmp_path) == []


def test_a_device_with_another_model_is_refused_once_and_rebuilds(tmp_path: Path) -> None:
    def damage(room: Room) -> None:
        model = room.devices[1][1].model
        assert model is not None
        model.x[0] = model.x[0] + np.float32(1)

    played(tmp_path, lambda room: {8: lambda: damage(room)})
    ((round, found),) = refused(tmp_path)
    assert round == 8 and [client for client, _ in found] == [1] and "worked on model" in found[0][1]
    assert cohorts(tmp_path, 10, 24) == {(0, 1)}


def test_a_device_that_leaves_is_not_asked_and_one_that_comes_back_is(tmp_path: Path) -> None:
    def leave(room: Room) -> None:
        gone, device = room.devices.pop(1)
        gone.receive(pack([LEAVE]))
        device.store.close()
        assert gone.state is State.OVER

    played(tmp_path, lambda room: {8: lambda: leave(room), 14: lambda: room.join(tmp_path, 1) and None})
    assert cohorts(tmp_path, 9, 14) == {(0,)} and cohorts(tmp_path, 15, 24) == {(0, 1)}
    assert refused(tmp_path) == []


@pytest.mark.slow
def test_a_device_that_lost_its_model_but_not_its_key_gets_it_again(tmp_path: Path) -> None:
    def lose(room: Room) -> None:
        _, device = room.devices.pop(1)
        device.store._db.execute("DELETE FROM model")
        device.store.close()
        assert room.join(tmp_path, 1).place == 1

    room = played(tmp_path, lambda room: {18: lambda: lose(room)})
    assert (1, CHECKPOINT) in room.seen and refused(tmp_path) == []
