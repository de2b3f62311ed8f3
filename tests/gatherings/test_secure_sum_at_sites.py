"""A secure sum between a server and sites: sites without a client in a round, epochs that end in any phase, a pinned
roster, keys that are erased when the run ends."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import recipe_of

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.identity import identity_of
from fedzero.deploy.site.site import Settings, Site
from fedzero.engines.remote.engine import Service
from fedzero.gatherings.roster import fingerprint
from fedzero.gatherings.sealing import public_of
from fedzero.methods import DeComFL
from fedzero.model.updates import decode_update, unpack
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites
from ledgers import rounds_of

SITES = ["north", "south", "west", "east", "centre"]
ROUNDS = 2


def recipe(summed: bool = True, cohort: int = 4) -> recipes.Recipe:
    method = DeComFL(rate=2e-3, directions=4)
    table = msgspec.to_builtins(recipe_of(method, clients=5, cohort=cohort, bound=0.0))
    table |= {"rounds": ROUNDS, "evaluate_every": 2} | ({"gathering": {"kind": "secure-sum"}} if summed else {})
    return recipes.decode(table)


def run(tmp_path: Path, link: LocalSites) -> Any:
    return run_at_sites(recipe(), tmp_path / "run", Environment(), Silent(), Service(link, lambda: SITES))


class Pinned(LocalSites):
    roster = ""

    def _made(self, name: str) -> Site:
        return Site(Settings(device="cpu", roster=self.roster), self.folder / "kept" / name)


def left(folder: Path) -> dict[str, set[str]]:
    """By site, the names of what it keeps for a next round."""
    found = {}
    for name in SITES:
        with closing(sqlite3.connect(folder / "kept" / name / "answers.db")) as db:
            found[name] = {key for (key,) in db.execute("SELECT name FROM notes")}
    return found


def test_sites_leave_the_sum_of_plain_replies_and_erase_their_keys(tmp_path: Path) -> None:
    session.start(recipe(summed=False), tmp_path / "plain", Environment(), Silent())
    kept: list[dict[str, set[str]]] = []
    link = LocalSites(tmp_path / "sites", SITES)
    link.spoil = lambda site, answer: (kept.append(left(link.folder)) if link.asked > 10 else None, answer)[1]
    assert run(tmp_path, link).complete
    for one, other in zip(rounds_of(tmp_path / "plain"), rounds_of(tmp_path / "run"), strict=True):
        assert not other.refused and len(other.cohort) == 4
        values = [unpack(decode_update(each.update).scalars) for each in (one, other)]
        np.testing.assert_allclose(values[1], values[0], rtol=1e-4, atol=1e-5)
    recorded.verified(tmp_path / "run", Environment())
    assert any(all(names == {"Joined", "Chain"} for names in each.values()) for each in kept)
    assert left(link.folder) == {name: set() for name in SITES}


@pytest.mark.parametrize("at", [12, 21, 26, 31, 36])
def test_an_epoch_that_ends_in_any_phase_changes_nothing(tmp_path: Path, at: int) -> None:
    """Sites are made anew in every epoch; keys and answers are on their disks."""
    whole = run(tmp_path / "whole", LocalSites(tmp_path / "whole" / "sites", SITES))
    link = LocalSites(tmp_path / "sites", SITES, {at}.__contains__)
    found = run(tmp_path, link)
    assert link.epochs == 2
    assert (found.ledger_head, found.model_digest) == (whole.ledger_head, whole.model_digest)


def test_sites_take_part_in_the_pinned_roster_alone(tmp_path: Path) -> None:
    keys = {}
    for name in SITES:
        keep = tmp_path / "sites" / "kept" / name
        keep.mkdir(parents=True)
        keys[name] = public_of(identity_of(keep))
        assert identity_of(keep) == identity_of(keep) and (keep / "identity.key").stat().st_mode & 0o77 == 0
    link = Pinned(tmp_path / "sites", SITES)
    link.roster = fingerprint(list(keys.items()))
    assert run(tmp_path, link).complete
    assert not any(record.refused for record in rounds_of(tmp_path / "run"))
    other = Pinned(tmp_path / "others", SITES)
    other.roster = link.roster
    run(tmp_path / "others", other)
    for record in rounds_of(tmp_path / "others" / "run"):
        assert record.update is None and all(link.roster in why for _, why in record.refused)
