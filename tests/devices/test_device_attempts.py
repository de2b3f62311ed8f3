"""A server that lost the end of its ledger plays rounds again: under another attempt, so that devices answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from devices.fleet import made, recipe_of
from devices.test_device_catch_up import Room, refused
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.attempts import Attempts
from fedzero.engines.devices.clients import DeviceClients
from fedzero.engines.devices.registry import Registry
from fedzero.ledger.folder import DEVICES, LEDGER
from fedzero.ledger.store import Ledger
from fedzero.recipe.environment import Environment
from fedzero.recipe.view import RunView
from fedzero.rounds.past import PastRounds
from fedzero.runs import session
from fedzero.runs.progress import Silent
from ledgers import first_bad_round, rounds_of

BODIES = {0: b"one", 2: b"two"}


def test_the_same_orders_have_the_same_attempt_and_others_another(tmp_path: Path) -> None:
    with closing(Attempts(tmp_path)) as attempts:
        assert [attempts.of(round, 0, BODIES) for round in (0, 1, 2)] == [0, 0, 0]
        assert attempts.of(3, 0, BODIES) == 0
    with closing(Attempts(tmp_path)) as attempts:  # killed, and the round goes out again
        assert attempts.of(3, 0, BODIES) == 0
        assert attempts.of(3, 0, {0: b"one"}) == 1  # to others
        assert attempts.of(4, 0, BODIES) == 1
        assert attempts.of(2, 0, BODIES) == 2  # the end was lost
        assert [attempts.of(round, 0, BODIES) for round in (3, 4)] == [2, 2]
        assert attempts.of(5, 0, BODIES, lost=True) == 3  # devices know better


def _played(folder: Path, at: Callable[[Room], dict[int, Callable[[], None]]], resumed: bool = False) -> Room:
    recipe = msgspec.structs.replace(recipe_of(folder), rounds=16, evaluate_every=16)
    setup, run, past = made(recipe, folder), folder / "run", PastRounds()
    with closing(Registry(run)) as registry:
        room = Room(registry, plans.encode(plans.plan_of(setup)), 3, 20, 100)
        room.devices, room.seen, room.at = {}, [], at(room)
        view = RunView(recipe, setup.plan, past, setup, setup.replica(), Environment(folder=run))
        clients = DeviceClients(room, view, plans.Rates(setup.recipe.algorithm), 60, 10, 1)
        ledger = Ledger.open(run / LEDGER, writable=True) if resumed else session.create(run, setup.start)
        session.run_to_end(session.Opened(view, clients, past), ledger, run, Silent())
    for _, device in room.devices.values():
        device.store.close()
    return room


@pytest.mark.parametrize("lost", ["the ledger", "the folder"])
def test_a_run_whose_ledger_lost_its_end_goes_on(tmp_path: Path, lost: str) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"

    def kept() -> None:  # a copy of the folder before round 6
        shutil.copytree(run, copy)

    def together(room: Room) -> dict[int, Callable[[], None]]:
        return {0: lambda: [room.join(tmp_path, place) for place in (0, 1)] and None, 6: kept}

    _played(tmp_path, together)
    assert len(rounds_of(run)) == 16 and not refused(tmp_path)
    now = run if lost == "the ledger" else copy
    devices = (now / DEVICES).read_bytes()
    shutil.rmtree(run)
    shutil.copytree(copy, run)
    (run / DEVICES).write_bytes(devices)
    assert len(rounds_of(run)) == 6
    # one device is back at once, the other later: other updates than before, so other orders
    _played(tmp_path, lambda room: {6: lambda: _joins(room, tmp_path, 1), 9: lambda: _joins(room, tmp_path, 0)}, True)
    assert len(rounds_of(run)) == 16 and first_bad_round(run) is None
    assert [record.cohort for record in rounds_of(run)[6:9]] == [(1,)] * 3
    assert not refused(tmp_path)


def _joins(room: Room, folder: Path, place: int) -> None:
    room.join(folder, place)
