"""Cohorts and batches that follow from no key: drawn once, whatever is killed; a record has what replay needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import crash_child
import msgspec
import numpy as np
import pytest
from harness import recipe_of
from killed import SameEnd

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.engine import Service
from fedzero.errors import FedzeroError
from fedzero.ledger.answers import Answers, Place, files_of
from fedzero.methods import DeComFL, ScaffoldZO
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.plan import cohort_of
from fedzero.recipe.sampling import BATCHES, COHORT, PrivateBatches, PrivateCohorts
from fedzero.rounds.schedule import StepSoFar, Synchronous
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites
from fedzero.testing.trial import Trial, trial
from ledgers import rounds_of

SITES = ["north", "south", "west"]
RECIPE = """
name = "drawn"
rounds = 3
seed = 3
evaluate_every = 2
sampling = "private"
algorithm = { kind = "scaffold-zo", rate = 0.01, directions = 2, type = "I" }
task = { kind = "quadratic", dimension = 6, noise = 0.1 }
federation = { clients = 5, cohort = 2 }
engine = { kind = "local", merge = false }
"""


def private(method: Any = None, rounds: int = 4, **options: Any) -> recipes.Recipe:
    recipe = recipe_of(method or DeComFL(rate=2e-3, directions=3), **{"clients": 8, "cohort": 3, **options})
    return recipes.decode(msgspec.to_builtins(recipe) | {"rounds": rounds, "evaluate_every": 2, "sampling": "private"})


def counting(step: int = 0) -> Any:
    drawn = iter(range(step, 1 << 30))
    return lambda count: next(drawn).to_bytes(count, "little")


def played(folder: Path, entropy: Any = None) -> Trial:
    run = trial(folder, private())
    if entropy is not None:
        run.server.schedule = Synchronous(PrivateCohorts(folder, run.setup.plan, entropy))
        run.engine._drawn = PrivateBatches(lambda: Answers(folder), True, entropy)
    run.play(2)
    return run


def test_two_runs_of_a_recipe_draw_otherwise_and_both_replay(tmp_path: Path) -> None:
    one, other, third = played(tmp_path / "1"), played(tmp_path / "2"), played(tmp_path / "3", counting())
    updates = [[record.update for record in run.records] for run in (one, other)]
    assert updates[0] != updates[1]
    for run in (one, other, third):
        assert run.replayed().digest() == run.replica.digest()
    again = played(tmp_path / "4", counting())
    assert [r.update for r in third.records] == [r.update for r in again.records], "more was random than what was given"
    public = [cohort_of(one.setup.keys, r, one.setup.recipe.federation) for r in range(2)]
    assert [record.cohort for record in third.records] != public


def test_cohorts_are_drawn_uniformly_and_once(tmp_path: Path) -> None:
    plan = trial(tmp_path / "run", private(clients=4, cohort=2)).setup.plan
    cohorts = PrivateCohorts(tmp_path, plan, np.random.default_rng(1).bytes)
    drawn = [cohorts(round) for round in range(64)]
    assert drawn[:4] == [PrivateCohorts(tmp_path, plan)(round) for round in range(4)]
    counts = Counter(client for cohort in drawn for client in cohort)
    assert all(abs(counts[client] - 32) < 5 * np.sqrt(16) for client in range(4))  # 5σ
    assert all(len(set(cohort)) == 2 and cohort == tuple(sorted(cohort)) for cohort in drawn)


def test_a_draw_is_durable_before_it_is_used(tmp_path: Path) -> None:
    run = trial(tmp_path, private())
    cohort = run.server.schedule.ask(StepSoFar(0))
    sending = run.server.delivery.instructions(0, cohort)
    seen: list[bool] = []
    batch = run.engine.shards.batch

    class Watched:
        clients = run.engine.shards.clients

        def batch(self, keys: Any, round: int, step: int, client: int) -> Any:
            with closing(Answers(tmp_path)) as answers:
                kept = answers.find(Place(round, BATCHES - client))
                seen.append(kept is not None and kept.answer == keys.root)
                assert answers.find(Place(round, COHORT)) is not None
            return batch(keys, round, step, client)

    run.engine.shards = Watched()
    run.engine.send(0, 0, sending.messages, sending.which)
    assert run.engine.receive(0.0) and seen and all(seen)


def test_one_that_says_nothing_draws_and_writes_as_before(tmp_path: Path) -> None:
    assert b"sampling" not in recipes.canonical(recipe_of(DeComFL(rate=2e-3)))
    recipe = private()
    assert recipes.from_canonical(recipes.canonical(recipe)) == recipe
    assert recipes.decode(msgspec.toml.decode(recipes.to_toml(recipe))) == recipe
    with pytest.raises(FedzeroError, match="sampling"):
        recipes.decode(msgspec.to_builtins(recipe) | {"sampling": "secret"})
    table = msgspec.to_builtins(recipe)
    with pytest.raises(FedzeroError, match=r"leave out engine\.attack"):
        recipes.decode(table | {"engine": table["engine"] | {"attack": {"kind": "sign-flip", "fraction": 0.3}}})


def test_a_run_leaves_what_verifies_and_nothing_that_was_drawn(tmp_path: Path) -> None:
    found = session.start(private(rounds=3), tmp_path, Environment(), Silent())
    assert found.complete and recorded.verified(tmp_path, Environment()).end is not None
    assert not any(path.exists() for path in files_of(tmp_path))


@pytest.mark.parametrize("method", [None, ScaffoldZO(rate=1e-3, type="I", form="dense")], ids=["one", "two exchanges"])
def test_at_sites_an_epoch_that_ends_draws_nothing_again(tmp_path: Path, method: Any) -> None:
    """Sites are made anew in every epoch. Batches that were drawn again would make other replies in their place."""
    link = LocalSites(tmp_path / "sites", SITES, {5, 8, 11}.__contains__)
    service = Service(link, lambda: SITES)
    found = run_at_sites(private(method, rounds=4, clients=6), tmp_path / "run", Environment(), Silent(), service)
    assert found.complete and link.epochs == 4
    for record in rounds_of(tmp_path / "run"):
        assert record.update is not None and not record.refused
    assert recorded.verified(tmp_path / "run", Environment()).end is not None


class Drawn(SameEnd):
    """Beside its folder are the numbers that it drew."""

    def __init__(self, server: Any, folder: Path):
        super().__init__(server, folder, RECIPE, crash_child.go_drawn, "drawn")

    def killed_at(self, at: int) -> Generator[Any, Any, list[str]]:
        wrong = yield from super().killed_at(at)
        whole, drawn = (len(self.beside(name).read_bytes()) for name in ("whole", str(at)))
        if drawn <= whole or not (self.folder / f"{at}.json").exists():
            return wrong
        # Drawn, and killed before it was durable: nobody had seen it.
        found = self.report(str(at))["summary"]
        return [] if found["complete"] and not found["refused"] else [f"killed at {at}: somebody was refused"]


def test_killed_now_and_then(warm_server: Any, tmp_path: Path) -> None:
    Drawn(warm_server, tmp_path).check(every=29)


@pytest.mark.slow
def test_killed_at_every_step(warm_server: Any, tmp_path: Path) -> None:
    Drawn(warm_server, tmp_path).check(every=1)
