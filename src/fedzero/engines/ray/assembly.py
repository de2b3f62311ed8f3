"""The assembly of a run on a cluster: the driver's engine, and the workers that end with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from msgspec import structs

from fedzero.engines.binding import Assembly, local_engine
from fedzero.engines.ray.engine import ClusterEngine
from fedzero.engines.ray.on_ray import Crew, workers
from fedzero.engines.ray.worker import Blueprint
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.replay import LedgerView
from fedzero.protocol.replica import Replica
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Ray
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup
from fedzero.rounds.loop import Watch
from fedzero.rounds.server import Server


@contextmanager
def on_cluster(setup: Setup, environment: Environment, watch: Watch) -> Iterator[Assembly]:
    """Workers are made before the driver's own replica moves: objects of this process are sent as they are now."""
    how = setup.recipe.engine
    assert isinstance(how, Ray)
    if setup.chain.private:
        raise FedzeroError(
            "a filter draws in private, and workers of a cluster keep nothing that outlasts them, so that it would be "
            "drawn again: use the local engine, or sites"
        )
    watch.phase("connecting to Ray")
    with workers(how) as actors:
        crew = Crew(actors, _blueprint(setup, environment, how, actors.device))

        def engine(replica: Replica | None) -> ClusterEngine:
            assert replica is not None
            here = local_engine(setup, replica)
            remembers = replica.wire.remembers or setup.chain.feedback
            return ClusterEngine(replica, crew, how.slices, here.measure, here.alter, remembers, watch.warn)

        def attach(engine: ClusterEngine, server: Server, view: LedgerView, replica: Replica | None) -> None:
            watch.phase(f"{crew.size} workers build the task")
            engine.attach(server)

        yield Assembly(setup.recipe, setup.plan, setup, engine, attach)


def _blueprint(setup: Setup, environment: Environment, how: Ray, device: str) -> Blueprint:
    recipe = recipes.as_recorded(setup.recipe)
    recipe = structs.replace(recipe, engine=structs.replace(recipe.engine, device=device))
    for part in (recipe.algorithm, recipe.task, *recipe.filters):
        if type(part).__module__ == "__main__":
            raise FedzeroError(
                f"{type(part).__name__} is defined in the program itself, which workers cannot import: move it to a "
                "module or a package of its own"
            )
    threads = max(1, int(how.cpus)) if how.merge else 1
    return Blueprint(recipe, replace(environment, replaying=replay.unseen), setup.keys, threads)
