"""The end of a run: who hears of it, and how long the gateway waits for those who are away."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from devices.fleet import made, recipe_of
from devices.test_device_catch_up import Room, played
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.farewell import farewell
from fedzero.engines.devices.registry import Registry
from fedzero.recipe.environment import Environment
from fedzero.recipe.view import RunView
from fedzero.rounds.past import PastRounds


def test_a_device_that_is_away_hears_of_the_end_when_it_comes_back_in_time(tmp_path: Path) -> None:
    room = played(tmp_path, lambda room: {})
    for _, device in room.devices.values():
        device.store.close()
    recipe, run, said = recipe_of(tmp_path), tmp_path / "run", list[str]()
    setup = made(recipe, tmp_path)
    with closing(Registry(run)) as registry:
        hub = Room(registry, plans.encode(plans.plan_of(setup)), 3, 20, 100)
        hub.devices, hub.seen, hub.at = {}, [], {}
        here = hub.join(tmp_path, 0)

        def comes_back(text: str) -> None:
            said.append(text)
            if len(said) == 1:
                hub.join(tmp_path, 1)
                hub.post(lambda: None)

        view = RunView(recipe, setup.plan, PastRounds(), environment=Environment(folder=run), warn=comes_back)
        farewell(hub, view, 20, linger=60)  # it returns when all have heard of it
        hub.post(lambda: None)
        away = hub.devices[1][1]
        assert here.finished and away.finished
        assert len(said) == 1 and "1 device away can hear of it for 60 s" in said[0]
        hub._told.discard(1)
        farewell(hub, view, 20, linger=0.1)
        assert "places 1" in said[-1]
        here.store.close()
        away.store.close()


def test_a_run_that_was_stopped_tells_devices_to_come_back(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    setup = made(recipe, tmp_path)
    with closing(Registry(tmp_path / "run")) as registry:
        hub = Room(registry, plans.encode(plans.plan_of(setup)), 3, 20, 100)
        hub.devices, hub.seen, hub.at = {}, [], {}
        device = hub.join(tmp_path, 0)
        hub.post(lambda: None)
        view = RunView(recipe, setup.plan, PastRounds(), environment=Environment(folder=tmp_path / "run"))
        farewell(hub, view, 20, linger=60)
        hub.post(lambda: None)
        assert not device.finished and device.pause == 20
        device.store.close()
