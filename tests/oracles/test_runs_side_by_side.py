"""Whole runs with directions of rank one: the same ledger when resumed, with replicas, with any number of threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedzero.model.device import threads
from fedzero.oracles.side_by_side import GroupedLosses
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from stops import StopAt

RECIPE = {
    "name": "digits",
    "rounds": 4,
    "seed": 1,
    "evaluate_every": 2,
    "task": {"kind": "mnist", "batch": 4},
    "federation": {"clients": 10, "cohort": 3},
}


def recipe_for(rank: int = 1, steps: int = 1, exact: bool = False, **engine):
    algorithm = {"kind": "decomfl", "rate": 5e-3, "directions": 3, "local_steps": steps}
    algorithm |= {"distribution": "rank1", "rank": rank}
    table = RECIPE | {"algorithm": algorithm, "engine": {"kind": "local", "device": "cpu", **engine}}
    return recipes.decode(table | {"task": RECIPE["task"] | {"exact": exact}})


@pytest.fixture
def ways(monkeypatch) -> set[object]:
    """How points were evaluated."""
    seen, real = set(), GroupedLosses.losses

    def losses(self, *asked):
        found = real(self, *asked)
        seen.add(self.way if found is not None else None)
        return found

    monkeypatch.setattr(GroupedLosses, "losses", losses)
    return seen


@pytest.mark.parametrize(("rank", "steps"), [(1, 1), (3, 2)])
def test_resumed_replayed_and_with_replicas(tmp_path: Path, ways, rank, steps) -> None:
    recipe = recipe_for(rank, steps, merge=False)
    whole = session.start(recipe, tmp_path / "whole", Environment(), Silent())
    assert ways == {"same"}
    with pytest.raises(KeyboardInterrupt):
        session.start(recipe, tmp_path / "run", Environment(), StopAt(1))
    resumed = session.resume(tmp_path / "run", Environment(), Silent())
    assert (resumed.ledger_head, resumed.model_digest) == (whole.ledger_head, whole.model_digest)
    replicas = recipe_for(rank, steps, merge=False, replicas=True)
    apart = session.start(replicas, tmp_path / "replicas", Environment(), Silent())
    assert apart.model_digest == whole.model_digest


def test_merged_batches_and_threads(tmp_path: Path, ways) -> None:
    digests = set()
    for count in (1, 2):
        with threads(count):
            run = session.start(recipe_for(merge=True), tmp_path / str(count), Environment(), Silent())
        digests.add(run.model_digest)
    assert len(digests) == 1
    assert ways == {"same"}


def test_exact_is_at_views(tmp_path: Path, ways) -> None:
    beside = session.start(recipe_for(), tmp_path / "beside", Environment(), Silent())
    exact = session.start(recipe_for(exact=True), tmp_path / "exact", Environment(), Silent())
    assert exact.final_loss == pytest.approx(beside.final_loss, rel=1e-3)
