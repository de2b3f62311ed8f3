"""A site whose clients are devices: a line of the site's settings. The server sees a site as any other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import harness
import msgspec
import pytest

from devices.device_site import DeviceSite
from devices.fleet import address_of, device, recipe_of, ticket_of
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.site import Site
from fedzero.engines.devices.codes import Denied
from fedzero.engines.devices.registry import Registry
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Failed, Prepare, decode_answer, encode
from fedzero.engines.remote.pipe import Pipe
from fedzero.ledger.folder import LEDGER
from fedzero.methods import DeComFL
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites
from ledgers import first_bad_round, rounds_of

ENGINE = (("kind", "devices"), ("listen", "127.0.0.1:0"), ("least", 2), ("grace", 15.0), ("deadline", 30.0))


def gateway_of(site: Path) -> Path:
    """The folder of the run at a site, once its gateway is there."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if found := list(site.glob("*/devices.db")):
            return found[0].parent
        time.sleep(0.05)
    raise AssertionError(f"no gateway at {site}")


class Here(LocalSites):
    """Sites in this process."""

    def __init__(self, program: DeviceSite):
        super().__init__(program.folder, ["host-0"])
        self.program = program

    def _made(self, name: str) -> Site:
        return self.program(name)


@contextmanager
def here(program: DeviceSite) -> Iterator[Here]:
    link = Here(program)
    yield link
    for site in link.sites.values():
        site.leave()


def piped(program: DeviceSite) -> AbstractContextManager[Any]:
    return Pipe(hosts=1).open(program, print)


def played(tmp_path: Path, recipe: Recipe, engine: tuple[tuple[str, Any], ...], later: bool, over: Any) -> list[Any]:
    """The rounds of a run at one site with devices in its first two places; later: another one comes after a round.
    over: the transport."""
    test, processes, done = str(tmp_path / "test.npz"), [], []
    with over(DeviceSite(tmp_path / "sites", test, engine)) as link:
        service = Service(link, lambda: ["host-0"], deadline=60.0, report=print)

        def play() -> None:
            done.append(run_at_sites(recipe, tmp_path / "run", Environment(), Silent(), service))

        playing = threading.Thread(target=play)
        playing.start()
        try:
            registry, ticket = ticket_of(gateway_of(tmp_path / "sites" / "host-0"))
            for place, way in enumerate(("socket", "poll", "socket")[: 3 if later else 2]):
                while place == 2 and not ((tmp_path / "run" / LEDGER).exists() and rounds_of(tmp_path / "run")):
                    time.sleep(0.1)
                processes.append(device(address_of(registry, ticket), tmp_path, place, way))
            playing.join(120)
            assert [process.wait(30) for process in processes] == [0] * len(processes)  # they hear that the run is over
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
                process.stderr.close()
            playing.join()
    assert done and done[0].complete and first_bad_round(tmp_path / "run") is None
    return rounds_of(tmp_path / "run")


def test_a_site_whose_clients_are_devices(tmp_path: Path) -> None:
    """Two devices in the three places of a site: who is not there is refused by name, and the rounds go on."""
    recipe = msgspec.structs.replace(recipes.with_engine(recipe_of(tmp_path), "local"), rounds=4, evaluate_every=2)
    rounds = played(tmp_path, recipe, ENGINE, later=False, over=here)
    assert all(record.update and record.cohort == (0, 1, 2) for record in rounds)
    assert [sorted(client for client, _ in record.refused) for record in rounds] == [[2]] * 4
    assert all("device 2 is not present" in why for record in rounds for _, why in record.refused)


@pytest.mark.slow
def test_a_device_that_comes_late_to_a_site_over_pipes_is_sent_a_checkpoint(tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(recipes.with_engine(recipe_of(tmp_path), "local"), rounds=4, evaluate_every=2)
    engine = (*ENGINE[:2], ("least", 3), ("grace", 20.0), ("deadline", 30.0))
    rounds = played(tmp_path, recipe, engine, later=True, over=piped)
    assert [client for client, _ in rounds[0].refused] == [2] and not any(record.refused for record in rounds[2:])


def test_a_site_with_devices_serves_no_recipe_of_another_task(tmp_path: Path) -> None:
    site = DeviceSite(tmp_path / "sites", "", ENGINE)("here")
    recipe = harness.recipe_of(DeComFL(rate=2e-3), clients=2, cohort=2)
    answer = decode_answer(site.answer(encode(Prepare("run", recipes.canonical(recipe), (0, 1)))))
    assert isinstance(answer, Failed)


def test_the_places_of_a_site_are_the_numbers_of_its_clients(tmp_path: Path) -> None:
    with closing(Registry(tmp_path)) as registry:
        ticket = registry.ticket(3)
        keys = [bytes([i]) * 32 for i in range(3)]
        assert [registry.enrol(ticket, 1, key, (1, 3)) for key in (*keys[:2], keys[0])] == [1, 3, 1]
        with pytest.raises(Denied, match="all 2 places of this run are given"):
            registry.enrol(ticket, 1, keys[2], (1, 3))
