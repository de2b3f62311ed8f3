"""What a server gets from its clients: one that keeps to the recipe, and one that never moves the model.

The second is a hostile server. It uses nothing but public functions of the protocol: it sends `Work` of one round after
the other with an empty list of missed updates, so every client answers along new directions at the base model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedzero import plugins
from fedzero.directions import Keys
from fedzero.engines.local import Local
from fedzero.errors import FedzeroError
from fedzero.methods import DeComFL
from fedzero.methods.contract import Federation
from fedzero.methods.shared.seeded import SeededMethod
from fedzero.model.params import Params
from fedzero.model.updates import unpack
from fedzero.oracles import Oracle, answer_together
from fedzero.oracles.contract import F32, F64
from fedzero.protocol.client import Client
from fedzero.protocol.messages import decode_reply, encode_work
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup, prepare
from fedzero.tasks.contract import Task
from fedzero.testing.trial import trial


@dataclass(frozen=True)
class Seen:
    """keys: of the directions, (turns, P); values: scalars, (turns, P, clients)."""

    keys: tuple[tuple[int, ...], ...]
    values: F64

    @property
    def measurements(self) -> int:
        return len(self.keys) * self.values.shape[1]


def recipe_for(
    task: Task, clients: int, rounds: int, directions: int, rate: float = 0.1, **federation: Any
) -> recipes.Recipe:
    """DeComFL with central differences of a radius at which few neurons switch, all clients in every round."""
    plugins.register(type(task))
    method = DeComFL(rate=rate, directions=directions, difference="central", radius=1e-4)
    return recipes.Recipe(
        name="attacked",
        rounds=rounds,
        seed=1,
        algorithm=method,
        task=task,
        federation=Federation(clients=clients, cohort=clients, **federation),
        engine=Local(device="cpu"),
    )


def prepared(recipe: recipes.Recipe, data: Path | None = None, secret: bytes | None = None) -> Setup:
    return prepare(recipe, Environment(data=data, secret=secret))


def keys_of_turns(setup: Setup, turns: int, keys: Keys | None = None) -> tuple[tuple[int, ...], ...]:
    """The keys of the directions of turns, as whoever has `keys` (default: the run's) derives them."""
    method = setup.algorithm
    assert isinstance(method, SeededMethod)
    count = method.cost(0, setup.plan.scale).replies[0]
    return tuple(method.direction_keys(keys or setup.keys, round, 0, count) for round in range(turns))


def pinned(setup: Setup, turns: int) -> Seen:
    """The hostile server: no round has an update, as far as the clients are told."""
    replica, problem = setup.replica(), setup.problem
    clients = {
        number: Client(number, replica, Oracle(problem.objective, problem.shards, setup.keys, number), setup.chain)
        for number in range(setup.recipe.federation.clients)
    }
    values = [_turn(clients, round, encode_work(round, 0, [])) for round in range(turns)]
    return Seen(keys_of_turns(setup, turns), np.stack(values))


def _turn(clients: Mapping[int, Client], round: int, instruction: bytes) -> F64:
    """All clients' scalars of a turn, (P, clients)."""
    asks: dict[int, Any] = {}
    for number, client in clients.items():
        client.begin(round, instruction, own_replica=True)
        asks[number] = client.step(None)
    answers = answer_together(round, [(clients[number].oracle, ask) for number, ask in asks.items()])
    replies = [clients[number].step(answer) for number, answer in zip(asks, answers, strict=True)]
    return np.stack([unpack(decode_reply(reply, len(reply)).values) for reply in replies], 1).astype(np.float64)


class Listening:
    """The clients of an engine, and a copy of every reply on its way to the server."""

    def __init__(self, clients: Any):
        self.clients, self.heard = clients, dict[tuple[int, int], F32]()

    def receive(self, seconds: float) -> Sequence[Any]:
        events = self.clients.receive(seconds)
        for event in events:
            if isinstance(getattr(event, "data", None), bytes):
                reply = decode_reply(event.data, len(event.data))
                self.heard[reply.round, event.client] = unpack(reply.values)
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clients, name)


def honest(recipe: recipes.Recipe, turns: int, folder: Path, data: Path | None = None) -> tuple[Seen, Params]:
    """The server that keeps to the recipe: the model moves. Also the model at the end."""
    run = trial(folder, recipe, data=data)
    run.engine = Listening(run.engine)
    run.play(turns)
    count = recipe.federation.clients
    try:
        values = [np.stack([run.engine.heard[r, client] for client in range(count)], 1) for r in range(turns)]
    except KeyError as missing:
        raise FedzeroError(f"nothing was heard of round and client {missing}") from None
    finally:
        run.ledger.close()
    return Seen(keys_of_turns(run.setup, turns), np.stack(values).astype(np.float64)), run.replica.state.params


def directions_of(params: Params, setup: Setup, keys: Sequence[Sequence[int]]) -> F32:
    """Z, (n, d): one row for each key, in the order of the turns."""
    method = setup.algorithm
    assert isinstance(method, SeededMethod)
    return np.stack([params.direction(method.stream, key).numpy() for turn in keys for key in turn])
