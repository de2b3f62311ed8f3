"""One Ray of this machine's own for all tests here, with two workers that all runs use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedzero.runs import recipe as recipes
from fedzero.runs.engines import Ray

WORKERS = 2
QUADRATIC = {"kind": "quadratic", "dimension": 16, "noise": 0.1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers for all runs of a module; skips without Ray."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedzero[ray]'")
    from fedzero.runs.cluster.on_ray import keeping

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
