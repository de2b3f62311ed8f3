"""A federation in which one site is a program that imports nothing of fedzero and was written from the documents."""

from __future__ import annotations

from collections.abc import Collection
from importlib import resources
from pathlib import Path

import pytest
from recompute.site import DELIVER, EXCHANGE, FINISH, MEASURE, PREPARE, RECOVER
from recompute.site import Site as AnotherSite

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.engine import Service
from fedzero.ledger import replay
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites

SITES = ["north", "south", "west"]
SMALL = [
    *("rounds=5", "evaluate_every=2", "engine.device=cpu", "engine.merge=false", "federation.server_model=false"),
    *("federation.clients=6", "federation.cohort=4", "algorithm.directions=3", "task.batch=8"),
]


class Mixed(LocalSites):
    """West is the other program. It has no folder: in every epoch it begins from the base."""

    def begin(self) -> Collection[str]:
        here = super().begin()
        self.other = AnotherSite(Path(str(resources.files("fedzero") / "data" / "mnist-subset.npz")))
        self.obeyed = [*getattr(self, "obeyed", []), self.other.obeyed]
        self.sites["west"].answer = self.other.answer  # type: ignore[method-assign]
        return here


@pytest.mark.parametrize(
    ("options", "breaks"),
    [
        ([], lambda asked: False),
        (["federation.sync=true", "algorithm.optimizer={kind='sgd'}"], lambda asked: False),
        (["algorithm.local_steps=2", "algorithm.difference=central"], lambda asked: asked == 18),
    ],
    ids=["demo", "sync", "an epoch ends"],
)
def test_another_program_takes_part(options, breaks, tmp_path: Path):
    recipe, link = recipes.load("demo", [*SMALL, *options]), Mixed(tmp_path / "sites", SITES, breaks)
    folder = tmp_path / "run"
    summary = run_at_sites(recipe, folder, Environment(), Silent(), Service(link, lambda: SITES))
    assert summary.rounds == 5
    ledger = Ledger.open(folder / "ledger.db")
    view = replay.read(ledger)
    ledger.close()
    theirs = {client for client in range(6) if client % 3 == 2}
    assert any(theirs & set(record.cohort) for record in view.rounds)
    assert all(record.refused == () for record in view.rounds)
    assert recorded.verified(folder, Environment()).end is not None
    orders = {tag for epoch in link.obeyed for tag in epoch}
    assert {PREPARE, EXCHANGE, MEASURE, FINISH} <= orders <= {PREPARE, RECOVER, EXCHANGE, DELIVER, MEASURE, FINISH}
    assert (DELIVER in orders) == recipe.federation.sync
    if len(link.obeyed) > 1:  # it came back without a replica, and was brought forward
        assert RECOVER in link.obeyed[-1]
