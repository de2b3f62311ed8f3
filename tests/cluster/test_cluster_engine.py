"""Runs by two workers of a Ray of this machine's own: the ledger is that of one process, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UnsetType
from same_ledger import content_of, same_as_local

import fedzero
from conftest import WORKERS
from fedzero import plugins
from fedzero.engines.local import Local
from fedzero.engines.ray import Ray
from fedzero.engines.ray.slices import Scheduler
from fedzero.errors import FedzeroError
from fedzero.ledger import checkpoints
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import chosen, recorded
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.rounds.schedule import StepSoFar
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.runs.recorded import verified
from fedzero.tasks.quadratic import Quadratic
from fedzero.testing import check_engine, engine_checks
from late import TakesWhatArrived
from sampling import mostly_slow
from stops import StopAt

METHODS: list[dict[str, Any]] = [
    {"kind": "decomfl", "rate": 0.01, "directions": 3, "local_steps": 2, "optimizer": {"kind": "momentum"}},
    {"kind": "fedavg", "rate": 0.01, "local_steps": 2},
    {"kind": "fzoos", "rate": 0.01, "transfer": {"count": 40}, "active": {"initial": 6, "a_step": 2, "candidates": 6}},
    {"kind": "scaffold-zo", "rate": 0.01},
    {"kind": "zofedht", "rate": 0.01},
]
"""Seeded; dense, first-order, sent as snapshots; two exchanges and a memory; a memory of d numbers; a subspace."""


def by_default(*kinds: str) -> pytest.MarkDecorator:
    """Other methods are slow: a worker that was killed takes seconds to come back."""
    cases = mostly_slow(METHODS[:4], lambda algorithm: algorithm["kind"] in kinds)
    return pytest.mark.parametrize("algorithm", cases, ids=lambda algorithm: algorithm["kind"])


@pytest.mark.parametrize(
    "algorithm",
    mostly_slow(METHODS, lambda algorithm: algorithm["kind"] in ("decomfl", "fzoos", "scaffold-zo")),
    ids=lambda algorithm: algorithm["kind"],
)
def test_the_ledger_is_that_of_one_process(cluster: Any, recipe: Any, tmp_path: Path, algorithm: Any) -> None:
    same_as_local(
        recipe(algorithm, rounds=12 if algorithm["kind"] == "fedavg" else 5), tmp_path, Environment(), Silent()
    )


def test_filters_with_feedback_attackers_and_a_sync_federation_give_the_same_ledger(
    cluster: Any, recipe: Any, tmp_path: Path
) -> None:
    attacked = recipe(
        {"kind": "fedavg", "rate": 0.01},
        engine={"attack": {"kind": "little-is-enough", "fraction": 0.3}},
        filters=[{"kind": "top-k", "fraction": 0.5, "feedback": True}],
    )
    same_as_local(attacked, tmp_path / "attacked", Environment(), Silent())
    synced = recipe({"kind": "decomfl", "rate": 0.01}, federation={"clients": 7, "cohort": 4, "sync": True})
    same_as_local(synced, tmp_path / "synced", Environment(), Silent())


@by_default("fzoos")
def test_a_worker_killed_in_a_round_changes_no_bit(
    cluster: Any, recipe: Any, tmp_path: Path, killing: list[tuple[int, int]], algorithm: Any
) -> None:
    made = recipe(algorithm, rounds=4)
    killing.append((2, 1 if algorithm["kind"] == "fzoos" else 0))
    same_as_local(made, tmp_path, Environment(), Silent())
    assert not killing


def test_a_run_that_was_interrupted_is_resumed_by_another_number_of_workers_or_none(
    cluster: Any, recipe: Any, tmp_path: Path
) -> None:
    made = recipe(METHODS[3], rounds=6)
    session.start(made, tmp_path / "whole", Environment(), Silent())

    class Pressing(Silent):
        """Somebody who presses Ctrl-C in a round."""

        def __init__(self, round: int):
            self.last = round

        def round(self, record: Any) -> None:
            if record.round == self.last:
                os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "spread"
    with pytest.raises(KeyboardInterrupt):
        session.start(recipes.with_engine(made, "ray:2"), folder, Environment(), Pressing(1))
    with pytest.raises(KeyboardInterrupt):
        session.resume(folder, Environment(), Pressing(2), engine="ray:1")
    with pytest.raises(KeyboardInterrupt):
        session.resume(folder, Environment(), Pressing(3))
    session.resume(folder, Environment(), Silent(), engine="ray:2")
    assert content_of(folder) == content_of(tmp_path / "whole")


def test_a_worker_that_is_behind_begins_with_the_checkpoint_beside_the_ledger(
    cluster: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedzero.engines.ray import engine

    made, folder = recipe(METHODS[0], rounds=12), tmp_path / "spread"
    session.start(made, tmp_path / "whole", Environment(), Silent())

    monkeypatch.setattr(checkpoints, "EVERY", 4)
    monkeypatch.setattr(engine, "PART", 2)
    with pytest.raises(KeyboardInterrupt):
        session.start(made, folder, Environment(), StopAt(8))
    catch_up, sent = engine.ClusterClients._catch_up, []

    def noting(driver: Any) -> Any:
        for part in catch_up(driver):
            sent.append((part.checkpoint is not None, [update.round for update in part.updates]))
            yield part

    monkeypatch.setattr(engine.ClusterClients, "_catch_up", noting)
    session.resume(folder, Environment(), Silent(), engine="ray:2")
    assert sent == [(True, [6, 7]), (False, [8])] * 2  # to each of the workers; the checkpoint is that of six rounds
    assert content_of(folder) == content_of(tmp_path / "whole")


@pytest.mark.parametrize("algorithm", METHODS[2:4], ids=lambda algorithm: algorithm["kind"])
def test_workers_forget_memories_that_the_ledger_has(
    cluster: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: Any
) -> None:
    from fedzero.engines.ray import engine

    monkeypatch.setattr(engine, "KEPT", 1)
    spare, forgotten = engine.ClusterClients._spare, set[int]()

    def noting(*arguments: Any) -> list[int]:
        found = spare(*arguments)
        forgotten.update(found)
        return found

    monkeypatch.setattr(engine.ClusterClients, "_spare", noting)
    same_as_local(recipe(algorithm, rounds=8), tmp_path, Environment(), Silent())
    assert forgotten


def test_black_boxes_are_called_on_workers_and_logged_by_the_driver(
    cluster: Any, tmp_path: Path, killing: list[tuple[int, int]]
) -> None:
    called = tmp_path / "called"
    called.mkdir()

    def box(centre: float) -> Any:
        def f(x: Any) -> float:
            (called / f"{os.getpid()}").touch()
            return float(((x - centre) ** 2).sum())

        f.__qualname__ = f"box{centre}"
        return f

    boxes = [box(centre) for centre in (0.5, 1.0, 2.0)]
    method = {"kind": "fedzo", "rate": 0.02, "directions": 2}
    options: dict[str, Any] = {"bounds": (-5, 5), "dimension": 3, "rounds": 4, "algorithm": method, "budget": 20}
    here = fedzero.minimise(boxes, **options, out=tmp_path / "local")
    assert {int(path.name) for path in called.iterdir()} == {os.getpid()}
    there = fedzero.minimise(boxes, **options, out=tmp_path / "ray", engine="ray")
    assert len(list(called.iterdir())) == 3
    assert content_of(tmp_path / "ray") == content_of(tmp_path / "local")
    killing.append((2, 0))
    after = fedzero.minimise(boxes, **options, out=tmp_path / "killed", engine="ray")
    assert (here.x == there.x).all() and (here.x == after.x).all()
    assert not killing


@pytest.mark.slow
def test_a_module_of_the_callers_own_is_trained(cluster: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((60, 4)).astype(np.float32)
    data = [(x[i::3], (x[i::3, 0] > 0).astype(np.int64)) for i in range(3)]
    trained = []
    for engine in (None, "ray"):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        options: dict[str, Any] = {"loss": torch.nn.functional.cross_entropy, "rounds": 6, "merge": False}
        out = tmp_path / str(engine) / "run"
        fedzero.train(model, data, **options, method=fedzero.DeComFL(rate=0.05), engine=engine, out=out, progress=False)
        trained.append(model)
    assert content_of(tmp_path / "ray" / "run") == content_of(tmp_path / "None" / "run")
    assert torch.equal(trained[0].weight, trained[1].weight)


def test_a_task_of_another_distribution_is_built_by_workers(cluster: Any, recipe: Any, tmp_path: Path) -> None:
    pytest.importorskip("fedzero_papers")
    task = {"kind": "synthetic", "dimension": 6}
    same_as_local(recipe(METHODS[0], task=task), tmp_path, Environment(), Silent())


class Halved(fedzero.Task, tag="halved-quadratic"):
    """A task that only this test knows."""

    def build(self, clients: int, context: Any) -> Any:
        return Quadratic(dimension=8, noise=0.1).build(clients, context)


def test_a_task_that_workers_cannot_import_is_refused_in_a_sentence(
    cluster: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.register(Halved)
    made = recipe(METHODS[0], task={"kind": "halved-quadratic"}, engine={"kind": "ray"})
    with pytest.raises(FedzeroError, match="No module named 'test_cluster_engine'"):
        session.start(made, tmp_path / "module", Environment(), Silent())
    monkeypatch.setattr(Halved, "__module__", "__main__")
    with pytest.raises(FedzeroError, match="is defined in the program itself"):
        session.start(made, tmp_path / "main", Environment(), Silent())


@by_default("fedavg")
def test_several_slices_for_a_worker_give_the_same_ledger(
    cluster: Any, recipe: Any, tmp_path: Path, killing: list[tuple[int, int]], algorithm: Any
) -> None:
    killing.append((2, 0))
    same_as_local(recipe(algorithm, rounds=4), tmp_path, Environment(), Silent(), {"kind": "ray", "slices": 2})
    assert not killing


def test_a_worker_that_is_done_takes_slices_of_one_that_is_slow(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def box(seconds: float) -> Any:
        def f(x: Any) -> float:
            time.sleep(seconds)
            return float((x**2).sum())

        f.__qualname__ = f"box{seconds}"
        return f

    begin, moved = Scheduler._begin, list[tuple[int, int]]()

    def noting(scheduler: Any, job: Any, worker: int, step: Any) -> None:
        moved.append((job.slice.worker, worker))
        begin(scheduler, job, worker, step)

    monkeypatch.setattr(Scheduler, "_begin", noting)
    boxes = [box(seconds) for seconds in (0.2, 0.2, 0.2, 0.0, 0.0, 0.0)]
    method = {"kind": "fedzo", "rate": 0.02, "directions": 2}
    options: dict[str, Any] = {"bounds": (-5, 5), "dimension": 3, "rounds": 1, "algorithm": method, "budget": 20}
    fedzero.minimise(boxes, **options, out=tmp_path / "local")
    fedzero.minimise(boxes, **options, out=tmp_path / "ray", engine={"kind": "ray", "slices": 3})
    assert content_of(tmp_path / "ray") == content_of(tmp_path / "local")
    assert {pair for pair in moved if pair[0] != pair[1]} == {(0, 1)}


def test_merged_slices_are_the_same_again(
    cluster: Any, recipe: Any, tmp_path: Path, killing: list[tuple[int, int]]
) -> None:
    made = recipe(METHODS[0], engine={"kind": "ray", "merge": True})
    session.start(made, tmp_path / "once", Environment(), Silent())
    killing.append((1, 0))
    session.start(made, tmp_path / "again", Environment(), Silent())
    assert content_of(tmp_path / "once") == content_of(tmp_path / "again")


def test_what_a_worker_says_of_a_task_that_it_cannot_build_is_said(cluster: Any, recipe: Any, tmp_path: Path) -> None:
    boxes = [{"kind": "python", "name": "nowhere"}]
    made = recipe(
        METHODS[0] | {"local_steps": 1},
        task={"kind": "black-box", "boxes": boxes, "dimension": 2},
        federation={"clients": 1, "cohort": 1},
    )

    class HereOnly(dict[str, Any]):
        def __reduce__(self) -> Any:
            return dict, ()

    environment = Environment(functions=HereOnly(nowhere=lambda x: 0.0))
    with pytest.raises(FedzeroError, match="nowhere"):
        session.start(recipes.with_engine(made, "ray"), tmp_path, environment, Silent())


def test_an_engine_is_not_on_the_ledger(recipe: Any) -> None:
    local = recipe(METHODS[0])
    spread = recipes.with_engine(local, {"kind": "ray", "workers": 16, "gpus": 0.25})
    assert spread.engine == Ray(workers=16, gpus=0.25, merge=False, device="cpu")
    assert recipes.canonical(spread) == recipes.canonical(local)
    assert recipes.hash_of(spread) == recipes.hash_of(local)
    assert recorded(spread.engine) == local.engine
    assert chosen(spread.engine, "local") == Local(merge=False, device="cpu")
    assert chosen(local.engine, "ray:3") == Ray(workers=3, merge=False, device="cpu")


@pytest.mark.parametrize("wanted", ["spark", "ray:0", "ray:many", "local:2", {"kind": "ray", "workers": 0}])
def test_an_engine_that_is_none_is_refused(wanted: Any) -> None:
    with pytest.raises(FedzeroError, match=r"engine"):
        chosen(Local(), wanted)


def test_overrides_are_of_the_engine_that_is_given() -> None:
    loaded = recipes.load("demo", ["engine.slices=3", "engine.merge=false", "rounds=5"], "ray:2")
    assert loaded.engine == Ray(workers=2, slices=3, merge=False)
    assert loaded.rounds == 5
    with pytest.raises(FedzeroError, match=r"slices"):
        recipes.load("demo", ["engine.slices=0"], "ray")
    with pytest.raises(FedzeroError, match=r"slices"):
        recipes.load("demo", ["engine.slices=3"])  # one process has none


def test_several_questions_are_open_and_waiting_ends_in_time(cluster) -> None:
    here = [
        engine_checks.says_what_happens,
        engine_checks.awaits_earlier_rounds,
        engine_checks.waits_as_long_as_it_is_told,
    ]
    check_engine(Ray(workers=WORKERS), here)


def test_who_is_at_work_when_a_step_is_made_answers_the_question_it_was_asked(cluster, recipe, tmp_path) -> None:
    """Workers fold the update only after the replies that may still count."""
    federation = {"clients": 7, "cohort": 3, "bound": 0}
    algorithm = {"kind": "decomfl", "rate": 1e-2, "directions": 4}
    setup = prepare(recipe(algorithm, engine={"kind": "ray"}, federation=federation), Environment())
    with session.opened(setup, Environment(folder=tmp_path), Silent(), oldest=2) as here:
        ledger = session.create(tmp_path, setup.start)
        session.run_to_end(here, ledger, tmp_path, Silent(), FirstTwo(setup.plan))
    with closing(Ledger.open(tmp_path / LEDGER)) as ledger:
        records = list(ledger.rounds())
    assert not any(record.refused for record in records)
    assert any(not isinstance(record.asked, UnsetType) for record in records)
    assert verified(tmp_path, Environment()).end is not None


class FirstTwo(TakesWhatArrived):
    """Whoever is free is asked at once; a step is made of what has come once there are two replies."""

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        return self.free(now)[: 4 - len(now.awaited)]

    def made(self, now: StepSoFar) -> bool:
        return len(now.replies) >= 2
