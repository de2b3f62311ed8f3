"""Sites whose clients work on another engine, over pipes: the ledger is that of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import recipe_of

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.settings import Settings
from fedzero.deploy.site.site import Site
from fedzero.engines.local import Local, LocalClients
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Failed, Prepare, decode_answer, encode
from fedzero.engines.remote.pipe import Pipe
from fedzero.errors import FedzeroError
from fedzero.estimators.surrogate.settings import Transfer
from fedzero.methods import DeComFL, Dzopa, FedAvg, FZooS, ScaffoldZO
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites, SiteProgram

OWN_REPLICAS: dict[str, Any] = {"kind": "local", "replicas": True}
SEEDED, MODELS, MEMORY = (
    DeComFL(rate=2e-3, directions=4),
    FedAvg(rate=2e-3, local_steps=2),
    ScaffoldZO(rate=2e-3, directions=4, type="II", local_steps=2, form="seeded"),
)


def recipe_for(method, **options):
    made = recipe_of(algorithm=method, clients=6, cohort=4, **options)
    return msgspec.structs.replace(made, rounds=5, evaluate_every=5)


def same_as_one_process(tmp_path: Path, methods, engine, hosts: int) -> None:
    with Pipe(hosts=hosts).open(SiteProgram(tmp_path / "sites", engine), print) as link:
        for method in methods:
            recipe = recipe_for(method)
            here = session.start(recipe, tmp_path / f"{method.name}-here", Environment(), Silent())
            service = Service(link, lambda: [f"host-{i}" for i in range(hosts)], report=print)
            there = run_at_sites(recipe, tmp_path / f"{method.name}-there", Environment(), Silent(), service)
            assert (there.ledger_head, there.model_digest) == (here.ledger_head, here.model_digest), method.name


def test_clients_with_replicas_of_their_own(tmp_path: Path) -> None:
    same_as_one_process(tmp_path, (SEEDED, MODELS, MEMORY), OWN_REPLICAS, 2)


class Replicas(LocalSites):
    """Their clients have replicas of their own; a new process in every epoch."""

    def _made(self, name: str) -> Site:
        keep = f"{self.epochs}" if self.forgetful else "kept"
        return Site(Settings(device="cpu", engine=OWN_REPLICAS), self.folder / keep / name)


@pytest.mark.parametrize(
    "method",
    [SEEDED, MEMORY, FZooS(rate=1e-2, local_steps=1, transfer=Transfer(count=40))],
    ids=lambda method: method.name,
)
def test_a_site_that_is_started_again(tmp_path: Path, method) -> None:
    """Also between the exchanges of a round, and with what its clients remember."""
    recipe, sites = recipe_for(method), ["north", "south"]
    here = session.start(recipe, tmp_path / "here", Environment(), Silent())
    link = Replicas(tmp_path / "sites", sites, {3, 6, 9, 15}.__contains__)
    there = run_at_sites(recipe, tmp_path / "there", Environment(), Silent(), Service(link, lambda: sites))
    assert link.epochs > 2
    assert (there.ledger_head, there.model_digest) == (here.ledger_head, here.model_digest)


def test_models_of_their_own_are_for_clients_in_one_process(tmp_path: Path, capsys) -> None:
    recipe = recipe_of(algorithm=Dzopa(rate=1e-3, form="dense"), clients=4, cohort=4)
    site = Site(Settings(device="cpu", engine="local"), tmp_path)
    answer = decode_answer(site.answer(encode(Prepare("run", recipes.canonical(recipe), (0, 1)))))
    assert isinstance(answer, Failed)
    assert "clients of dzopa have models of their own" in answer.reason


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(FedzeroError, match="engine = 'rai:2' is not valid"):
        Settings(engine="rai:2").check()


ORDERED: list[dict[str, Any]] = [
    {"kind": "ray", "workers": 1000},
    {"kind": "remote", "transport": {"kind": "pipe", "hosts": 10**9}, "clients": "ray:99"},
    {"kind": "local", "replicas": True, "device": "cuda"},
]


@pytest.mark.parametrize("ordered", ORDERED, ids=lambda each: each["kind"])
@pytest.mark.parametrize("own", ["", "local"])
def test_the_engine_of_an_order_is_not_that_of_a_site(tmp_path: Path, ordered: dict[str, Any], own: str) -> None:
    """A server says how batches are merged, and nothing else: no workers, no processes, no device."""
    table = msgspec.json.decode(recipes.canonical(recipe_for(SEEDED))) | {"engine": ordered}
    site = Site(Settings(device="cpu", engine=own), tmp_path)
    answer = decode_answer(site.answer(encode(Prepare("run", msgspec.json.encode(table), (0, 1)))))
    assert not isinstance(answer, Failed), answer
    assert site.run is not None
    engine, clients = site.run.host.engine, site.run.host.clients
    assert engine == (Local(device="cpu") if own else None)
    assert isinstance(clients, LocalClients) and not clients.replicas
    site.leave()
