"""One Ray of this machine's own for all tests here, with two workers that all runs use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedzero.engines.ray import Ray
from fedzero.recipe import recipe as recipes

WORKERS = 2
QUADRATIC = {"kind": "quadratic", "dimension": 16, "noise": 0.1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers for all runs of a module; skips without Ray."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedzero[ray]'")
    from fedzero.engines.ray.on_ray import keeping

    with keeping(Ray(workers=WORKERS, device="cpu")) as actors:
        yield actors


@pytest.fixture
def recipe() -> Callable[..., recipes.Recipe]:
    """recipe(algorithm, **tables): a short run on a quadratic without merging."""

    def made(algorithm: dict[str, Any], rounds: int = 5, engine: Any = None, **tables: Any) -> recipes.Recipe:
        table: dict[str, Any] = {
            "name": "spread",
            "rounds": rounds,
            "seed": 3,
            "evaluate_every": 3,
            "algorithm": algorithm,
            "task": QUADRATIC,
            "federation": {"clients": 7, "cohort": 4},
            "engine": {"merge": False, "device": "cpu"} | (engine or {}),
        }
        return recipes.decode(table | tables)

    return made


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rounds and exchanges in which the first worker that is asked is killed as it begins; each once."""
    from fedzero.engines.ray.engine import ClusterClients

    call, when = ClusterClients._call, list[tuple[int, int]]()

    def fatal(engine: Any, worker: int, round: int, exchange: int, *rest: Any) -> Any:
        ref = call(engine, worker, round, exchange, *rest)
        if (round, exchange) in when:
            when.remove((round, exchange))
            os.kill(engine.scheduler.alive[worker].pid, signal.SIGKILL)
        return ref

    monkeypatch.setattr(ClusterClients, "_call", fatal)
    return when
