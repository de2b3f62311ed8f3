"""A federation goes on to more rounds: sites keep what they have, and are asked for the recipe in force."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import recipe_of

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.settings import Settings
from fedzero.deploy.site.site import Site
from fedzero.deploy.site.terms import Terms
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Exchange, Prepare, PrepareExtended, decode_order, encode
from fedzero.errors import FedzeroError
from fedzero.methods import DeComFL, Method, ScaffoldZO
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs import recorded
from fedzero.runs.growing import UNCHANGED, Growth
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites
from ledgers import rounds_of
from stops import StopAt

SITES, QUIET = ["north", "south", "west"], Silent()
SEEDED = DeComFL(rate=2e-3, directions=4, optimizer={"kind": "momentum"})
MEMORY = ScaffoldZO(rate=2e-3, directions=4, type="II", local_steps=2, form="seeded")


def recipe_for(rounds: int, method: Method = SEEDED, **options: Any) -> Recipe:
    made = recipe_of(algorithm=method, clients=6, cohort=4, **options)
    return msgspec.structs.replace(made, rounds=rounds, evaluate_every=4)


def run(recipe: Recipe | None, folder: Path, link: LocalSites, said: Growth = UNCHANGED, watch: Silent = QUIET) -> Any:
    service = Service(link, lambda: SITES, patience=0.0)
    return run_at_sites(recipe, folder, Environment(), watch, service, said=said)


@pytest.mark.parametrize(
    ("method", "model"), [(SEEDED, True), (SEEDED, False), (MEMORY, True)], ids=["momentum", "blind", "memories"]
)
def test_an_extended_federation_is_a_longer_one(method: Method, model: bool, tmp_path: Path) -> None:
    """Also where the run of 5 is not finished when 9 rounds are asked for; the sites' processes are new each time."""
    short, long = (recipe_for(rounds, method, server_model=model) for rounds in (5, 9))
    right = run(long, tmp_path / "long", LocalSites(tmp_path / "sites", SITES))

    def link() -> LocalSites:
        return LocalSites(tmp_path / "others", SITES)

    with pytest.raises(KeyboardInterrupt):
        run(short, tmp_path / "grown", link(), watch=StopAt(2))
    grown = run(None, tmp_path / "grown", link(), Growth(rounds=9))
    assert grown.model_sha256 == right.model_sha256
    assert rounds_of(tmp_path / "grown") == rounds_of(tmp_path / "long")
    recorded.verified(tmp_path / "grown", Environment())
    again = run(short, tmp_path / "grown", link())
    assert again.ledger_head == grown.ledger_head, "the recipe of the start finds the run that was extended"


class Approving(LocalSites):
    """Sites that serve the recipes that they approved of."""

    def __init__(self, folder: Path, approved: dict[str, Collection[str]]):
        LocalSites.__init__(self, folder, SITES)
        self.approved = approved

    def _made(self, name: str) -> Site:
        terms = Terms(approved=tuple(self.approved[name]), least_batch=1)
        return Site(Settings(device="cpu", terms=terms), self.folder / "kept" / name)


def test_a_site_approves_again(tmp_path: Path) -> None:
    """South approved of 5 rounds only: it has no turn that counts in a later one, and comes back when it approves."""
    five, nine, ten = (recipes.hash_of(recipe_for(rounds)) for rounds in (5, 9, 10))
    others = {"north": (five, nine, ten), "west": (five, nine, ten)}
    run(recipe_for(5), tmp_path / "run", Approving(tmp_path / "sites", others | {"south": (five,)}))
    run(None, tmp_path / "run", Approving(tmp_path / "sites", others | {"south": (five,)}), Growth(rounds=9))
    run(recipe_for(10), tmp_path / "run", Approving(tmp_path / "sites", others | {"south": (ten,)}))
    refused = [{client for client, _ in record.refused} for record in rounds_of(tmp_path / "run")]
    at_south = set.union(*refused)
    assert len(at_south) == 2, "two of six clients are at a site"
    assert not any(refused[:5]) and any(refused[5:9]) and not refused[9]
    for record, left_out in zip(rounds_of(tmp_path / "run")[5:9], refused[5:9], strict=True):
        assert left_out == set(record.cohort) & at_south
    recorded.verified(tmp_path / "run", Environment())


def test_a_site_obeys_the_recipe_in_force_and_no_more(tmp_path: Path) -> None:
    """A server cannot get more rounds out of a site by leaving the extension out, or by another recipe inside."""
    text, known = recipes.canonical(recipe_for(5)), recipes.hash_of(recipe_for(9))
    site = Site(Settings(device="cpu", terms=Terms(approved=(known,), least_batch=1)), tmp_path)
    said = msgspec.json.encode({"above": None, "patience": None})

    def answer(order: Any) -> Any:
        return msgspec.msgpack.decode(site.answer(encode(order)))

    assert answer(Prepare("run", text, (0,)))[0] == 5
    for rounds, every, stop in ((10, 4, said), (9, 3, said), (9, 4, b'{"patience":3}')):
        reason = answer(PrepareExtended("run", text, (0,), {}, None, rounds, every, stop))[1]
        assert "do not approve" in reason
    for stop in (b"{", b"[]", b'{"above": "x"}', b'{"more": 1}'):
        assert answer(PrepareExtended("run", text, (0,), {}, None, 9, 4, stop))[0] == 5
    assert answer(PrepareExtended("run", text, (0,), {}, None, 9, 4, said))[0] == 1
    assert site.state is not None and site.state.rounds == 9
    assert "the recipe has 9 rounds" in answer(Exchange(9, 0, {0: b""}))[1]
    with pytest.raises(FedzeroError):
        decode_order(msgspec.msgpack.encode([8, "run", text, [0], {}, None, 0, 4, said]))
