"""How a run is bound to its engine: clients in this process, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedzero.engines.local import LocalEngine
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.replay import LedgerView
from fedzero.methods.contract import Observer, unobserved
from fedzero.protocol.attacks import altering
from fedzero.protocol.engine import Engine, Interrupted
from fedzero.protocol.replica import Replica
from fedzero.recipe.engines import Local, recorded
from fedzero.recipe.environment import Environment as Environment
from fedzero.recipe.environment import data_folder as data_folder
from fedzero.recipe.plan import Plan
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.secret import keys_of as keys_of
from fedzero.recipe.secret import secret_of as secret_of
from fedzero.recipe.setup import Setup
from fedzero.rounds.loop import Watch
from fedzero.rounds.server import Server


@dataclass(frozen=True)
class Assembly:
    """What differs between a run whose clients are in this process and one whose clients are at sites.

    setup: None on a server without a model, which builds nothing. engine: made with a replica of the base model.
    attach: is told of server, ledger and replica once they stand where the ledger ends.
    """

    recipe: Recipe
    plan: Plan
    setup: Setup | None
    engine: Callable[[Replica | None], Engine]
    attach: Callable[[Any, Server, LedgerView, Replica | None], None]
    interrupted: Callable[[Interrupted], None] = lambda reason: None


@contextmanager
def assembled(
    setup: Setup, environment: Environment, watch: Watch, observe: Observer = unobserved
) -> Iterator[Assembly]:
    """The assembly that the recipe's engine asks for; what it started is ended."""
    if isinstance(setup.recipe.engine, Local):
        yield local(setup, observe)
        return
    from fedzero.engines.ray.assembly import on_cluster  # which builds set-ups of its own, and needs an extra

    if observe is not unobserved:
        raise FedzeroError("local steps can be observed in one process only: use the local engine")
    with on_cluster(setup, environment, watch) as how:
        yield how


def local(setup: Setup, observe: Observer = unobserved) -> Assembly:
    """All clients in this process; `observe` is told of their local steps."""

    def engine(replica: Replica | None) -> LocalEngine:
        assert replica is not None
        return local_engine(setup, replica, observe)

    def attach(engine: LocalEngine, server: Server, view: LedgerView, replica: Replica | None) -> None:
        engine.keep_answers(server.ledger.path.parent)
        engine.recall(lambda client: server.ledger.memory(client, server.tracker.turns))  # before clients are made
        if engine.replicas and not view.outline.dense:
            engine.rejoin(server.tracker.known.tolist(), list(replay.updates_of(server.ledger, view)))

    return Assembly(setup.recipe, setup.plan, setup, engine, attach)


def local_engine(setup: Setup, replica: Replica, observe: Observer = unobserved) -> LocalEngine:
    how, problem, shards, alter = recorded(setup.recipe.engine), setup.problem, setup.problem.shards, None
    if how.attack is not None:
        shards = how.attack.data(shards, how.attack.who(setup.keys, shards.clients))
        alter = altering(
            *(how.attack, lambda r: setup.plan.wire(r).replies, setup.keys, shards.clients, setup.chain),
            setup.plan.outcome,
        )
    return LocalEngine(
        *(replica, problem.objective, shards, how.merge, how.replicas, setup.chain, observe, problem.measure, alter)
    )
