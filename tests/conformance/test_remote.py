"""Clients at sites: the same ledger and the same model as in one process, for every method, whatever breaks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cases import federation_for, methods, shapes
from harness import recipe_of
from sites import Here

from fedzero.deploy.conduct import Service, conduct
from fedzero.run import session
from fedzero.run.progress import Silent
from fedzero.run.session import Environment

SITES = ["north", "south", "west"]
BREAKS = {5, 8, 23, 41, 60, 61}
"""Answers that are the last of their epochs."""


@methods
def test_the_same_ledger_as_the_local_engine(tmp_path: Path, algorithm) -> None:
    recipe = msgspec.structs.replace(
        recipe_of(algorithm, merge=False, **federation_for(algorithm)), rounds=9, evaluate_every=4
    )
    here = session.start(recipe, tmp_path / "here", Environment(), Silent())
    link = Here(tmp_path / "sites", SITES)
    there = conduct(recipe, tmp_path / "there", Environment(), Silent(), Service(link, lambda: SITES))
    assert (there["ledger_head"], there["model_digest"]) == (here["ledger_head"], here["model_digest"])
    assert link.epochs == 1


@pytest.mark.parametrize("forgetful", [False, True])
@shapes
def test_epochs_that_break_change_nothing(tmp_path: Path, algorithm, forgetful) -> None:
    """They end in the middle of rounds, and while sites make ready; sites come back with what they kept, or nothing."""
    recipe = msgspec.structs.replace(
        recipe_of(algorithm, merge=False, **federation_for(algorithm)), rounds=9, evaluate_every=4
    )
    if forgetful and remembers(recipe):
        pytest.skip("what clients remember is at the sites alone")
    here = session.start(recipe, tmp_path / "here", Environment(), Silent())
    link = Here(tmp_path / "sites", SITES, BREAKS.__contains__, forgetful)
    service = Service(link, lambda: SITES)
    there = conduct(recipe, tmp_path / "there", Environment(), Silent(), service)
    assert link.epochs > 1
    assert (there["ledger_head"], there["model_digest"]) == (here["ledger_head"], here["model_digest"])
    assert session.verified(tmp_path / "there", Environment()).end is not None


def remembers(recipe) -> bool:
    from fedzero.algorithms.contract import Scale
    from fedzero.filters import Chain

    scale = Scale(recipe.task.dimension, recipe.federation.clients)
    return recipe.algorithm.remembers(scale) or Chain(recipe.filters).feedback
