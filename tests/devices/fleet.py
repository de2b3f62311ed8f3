"""Devices of a small run: in this process without sockets, and as processes over sockets; and the same run computed
without any gateway."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from fedzero_client import plan as device_plan
from fedzero_client.graph import Graph
from fedzero_client.model import Model
from fedzero_client.turn import Rows, Worker

from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.signing import Signer
from fedzero.engines.devices.ticket import address
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.protocol.engine import Arrival, Event
from fedzero.protocol.messages import Work, decode_instruction
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import Setup, prepare
from fedzero.recipe.view import RunView
from fedzero.rounds.past import PastRounds
from fedzero.runs import session
from fedzero.runs.progress import Silent

CLIENT = Path(__file__).parents[2] / "clients" / "python"
INPUTS, LABELS = 6, 3


def data_of(place: int, rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(place)
    y = draw.integers(0, LABELS, rows)
    x = draw.normal(size=(rows, INPUTS)) + 2 * np.eye(LABELS, INPUTS)[y]
    return x.astype(np.float32), y


def written(folder: Path, name: str, place: int) -> Path:
    x, y = data_of(place)
    np.savez(folder / f"{name}.npz", x=x, y=y)
    return folder / f"{name}.npz"


def recipe_of(folder: Path, engine: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """A run of three devices. changes: of the algorithm."""
    test = written(folder, "test", 99)
    algorithm = {"kind": "decomfl", "rate": 0.1, "directions": 4, "distribution": "rademacher", "radius": 1e-2}
    table = {
        "name": "fleet",
        "rounds": 8,
        "evaluate_every": 4,
        "algorithm": algorithm | changes,
        "task": {"kind": "devices", "widths": [INPUTS, 5, LABELS], "test": str(test), "mean": 0.5, "batch": 16},
        "federation": {"clients": 3, "cohort": 3},
        "engine": {"kind": "devices", "listen": "127.0.0.1:0", "least": 3, "merge": False} | (engine or {}),
    }
    return recipes.decode(table)


def graphed(recipe: Recipe, graph: Path) -> Recipe:
    """The same run with a graph in the place of the perceptron."""
    task = msgspec.structs.replace(recipe.task, widths=(INPUTS, LABELS), graph=str(graph))
    return msgspec.structs.replace(recipe, task=task)


def made(recipe: Recipe, folder: Path) -> Setup:
    return prepare(recipe, Environment(folder=folder))


class Here:
    """The same devices without a gateway: plan, model and turn of the client, called one after the other."""

    def __init__(self, run: RunView):
        setup, self.replica = run.built()
        self.problem = setup.problem
        data = plans.encode(plans.plan_of(setup))
        self.plan, self.rates = device_plan.read(data), plans.Rates(setup.recipe.algorithm)
        places = range(setup.recipe.federation.clients)
        self.models = {place: Model(self.plan) for place in places}
        graph = setup.recipe.task.graph
        self.graph = Graph(Path(graph).read_bytes(), self.plan) if graph else None
        self.workers = {place: Worker(self.plan, Rows(*data_of(place)), place, oracle=self.graph) for place in places}
        self.arrivals: list[Event] = []

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        for place, message in which.items():
            work = decode_instruction(messages[message])
            assert isinstance(work, Work)
            pairs = self.rates.of([*(update.round for update in work.updates), asked])
            rates, model = device_plan.Rates(self.plan, pairs), self.models[place]
            for update in work.updates:
                model.apply(update.round, update.scalars, rates.at(update.round))
            reply = self.workers[place].reply(model, asked, exchange, rates.at(asked))
            self.arrivals.append(Arrival(place, reply, f"device {place}", asked=asked))

    def receive(self, seconds: float) -> Sequence[Event]:
        found, self.arrivals = self.arrivals, []
        return found

    def settle(self, round: int, update: Any, closings: Mapping[int, bytes], diverged: Collection[int]) -> None:
        if update is not None:
            self.replica.follow([update])

    def identity(self, after: int) -> Any:
        return self.replica.identity

    def evaluate(self, after: int = 0, last: bool = False) -> Any:
        return self.replica.identity, self.problem.measure(self.replica.state.params, after, last)


def without_gateway(recipe: Recipe, folder: Path, here: Callable[[RunView], Here] = Here) -> None:
    """The same run, whose ledger is the right one. here: of other devices."""
    setup = made(recipe, folder)
    past, first = PastRounds(), setup.start
    run = RunView(recipe, setup.plan, past, setup, setup.replica(), Environment(folder=folder))
    found = session.Opened(run, here(run), past)  # type: ignore[arg-type]  # it has no hosts and no phases
    session.run_to_end(found, session.create(folder, first), folder, Silent())


def ticket_of(folder: Path, uses: int = 3) -> tuple[Registry, bytes]:
    registry = Registry(folder)
    return registry, registry.ticket(uses)


def address_of(registry: Registry, ticket: bytes) -> str:
    end = time.monotonic() + 60
    while not registry.url and time.monotonic() < end:
        time.sleep(0.05)
    return address(registry.url, registry.run, ticket, Signer(registry.keys).fingerprint)


def device(where: str, folder: Path, place: int, way: str = "socket") -> subprocess.Popen[bytes]:
    """A device as a process. It sees neither fedzero nor torch."""
    data = folder / f"{place}.npz"
    data = data if data.exists() else written(folder, str(place), place)
    environment = {"PYTHONPATH": str(CLIENT), "PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1"}
    own = folder / f"device-{place}"
    command = [sys.executable, "-m", "fedzero_client", "join", where, "--data", str(data), "--folder", str(own)]
    return subprocess.Popen([*command, "--way", way], env=environment, stderr=subprocess.PIPE)


@contextmanager
def fleet(run: Path, folder: Path, ways: Sequence[str] = ("socket", "socket", "poll")) -> Iterator[list[Any]]:
    """Devices, which join one after the other once the gateway of the run listens, so that each has its place."""
    registry, ticket = ticket_of(run)
    processes: list[Any] = []

    def begin() -> None:
        where = address_of(registry, ticket)
        for place, way in enumerate(ways):
            processes.append(device(where, folder, place, way))
            end = time.monotonic() + 60
            while len(registry.places()) <= place and time.monotonic() < end:
                time.sleep(0.02)

    beginning = threading.Thread(target=begin)
    beginning.start()
    try:
        yield processes
        beginning.join()
        for process in processes:
            process.wait(30)
    finally:
        beginning.join()
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stderr.close()
        registry.close()


def head_of(folder: Path) -> bytes:
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        return ledger.head
