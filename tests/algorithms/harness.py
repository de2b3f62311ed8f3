"""A small federation in memory, for tests that want to look inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedzero.algorithms import Federation
from fedzero.ledger import replay
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.model.params import Params
from fedzero.protocol.local import LocalEngine
from fedzero.protocol.replica import Replica
from fedzero.runs import recipe as recipes
from fedzero.runs.server import Server
from fedzero.runs.session import Environment, Setup, prepare
from fedzero.tasks import Quadratic


class Free:
    """An objective that costs nothing, so that a model's size costs nothing either."""

    def losses(self, base: Any, points: Any, batches: Any, basis: Any = None) -> Any:
        return np.ones((len(batches), len(points)))


@dataclass
class Small:
    """Setup, server, engine and ledger of one run, played round by round."""

    setup: Setup
    replica: Replica
    engine: LocalEngine
    server: Server
    ledger: Ledger
    prepared: Callable[[], Setup]
    """the same set-up again, with a base model of its own"""
    records: list[Round] = field(default_factory=list)

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            self.records.append(self.server.play(len(self.records), self.engine, 0.0))

    def replayed(self, upto: int | None = None) -> Replica:
        """The model before round `upto` (default: now), from the ledger alone."""
        replica = self.prepared().replica()
        replay.rebuild(self.ledger, replay.read(self.ledger), replica, upto)
        return replica

    def memories(self) -> dict[int, tuple[bytes, ...]]:
        """What clients remember, as the ledger has it, by client."""
        return self.ledger.memories(replay.read(self.ledger).remembered)


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
        engine=recipes.Local(merge=merge, device="cpu", replicas=replicas),
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
) -> Small:
    """`recast` makes other tensors of the task's parameters: several of them, or shorter floats. `options`: further
    arguments of `recipe_of`, such as clients, cohort, task, filters, sync, pull_after and server_model."""
    recipe = recipe_of(algorithm, replicas=replicas, merge=merge, private=secret is not None, **options)

    def prepared() -> Setup:
        setup = prepare(recipe, Environment(secret=secret))
        if recast is None:
            return setup
        return replace(setup, problem=replace(setup.problem, params=recast(setup.problem.params)))

    setup = prepared()
    replica = setup.replica()
    objective, shards = objective or setup.problem.objective, setup.problem.shards
    engine = LocalEngine(replica, objective, shards, merge, replicas, setup.chain)
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger.create(folder / "ledger.db", setup.start)
    server = Server(setup.plan, replica if recipe.federation.server_model else None, ledger)
    return Small(setup, replica, engine, server, ledger, prepared)
