"""A small federation in memory, for tests that want to look inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedzero.engines.local import Local
from fedzero.methods import Federation
from fedzero.model.params import Params
from fedzero.recipe import recipe as recipes
from fedzero.tasks import Quadratic
from fedzero.testing.trial import Trial, trial


class Free:
    """An objective that costs nothing, so that a model's size costs nothing either."""

    def losses(self, base: Any, points: Any, batches: Any, basis: Any = None) -> Any:
        return np.ones((len(batches), len(points)))


def recipe_of(
    algorithm: Any,
    clients: int = 10,
    cohort: int = 3,
    seed: int = 5,
    replicas: bool = False,
    merge: bool = False,
    task: Any = None,
    filters: tuple[Any, ...] = (),
    **federation: Any,
) -> recipes.Recipe:
    """A federation on a small quadratic; `federation`: further fields of `Federation`."""
    recipe = recipes.Recipe(
        name="small",
        rounds=50,
        seed=seed,
        algorithm=algorithm,
        task=task or Quadratic(dimension=50, noise=0.1),
        filters=filters,
        federation=Federation(clients=clients, cohort=cohort, **federation),
        engine=Local(merge=merge, device="cpu", replicas=replicas),
    )
    return recipes.decode(msgspec.to_builtins(recipe))


def small(
    folder: Path,
    algorithm: Any,
    replicas: bool = False,
    merge: bool = False,
    secret: bytes | None = None,
    objective: Any = None,
    recast: Callable[[Params], Params] | None = None,
    **options: Any,
) -> Trial:
    """`recast` makes other tensors of the task's parameters: several of them, or shorter floats. `options`: further
    arguments of `recipe_of`, such as clients, cohort, task, filters, sync, pull_after and server_model."""
    recipe = recipe_of(algorithm, replicas=replicas, merge=merge, private=secret is not None, **options)

    return trial(folder, recipe, secret, objective, recast)
