"""A small federation, played round by round: what the checks look into."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from fedzero import plugins
from fedzero.engines.gathering import hosted
from fedzero.engines.local import Local, LocalClients
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.links import Link
from fedzero.methods.contract import Federation, Method
from fedzero.model.params import Params
from fedzero.protocol.replica import Replica
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import recorded
from fedzero.recipe.environment import Environment
from fedzero.recipe.sampling import batches_in, hidden_in
from fedzero.recipe.setup import Setup, prepare
from fedzero.rounds.server import Server
from fedzero.tasks.contract import Task
from fedzero.tasks.quadratic import Quadratic

DIMENSION = 50


class CheckFailed(AssertionError):
    """What is wrong, in words; one line for every check that failed."""


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailed(otherwise)


@dataclass
class Trial:
    """Setup, server, engine and ledger of one run."""

    setup: Setup
    replica: Replica
    engine: Any
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
        return dict(self.ledger.memories(replay.read(self.ledger).turns))


def federation_for(method: Method, cohort: int = 4, **options: Any) -> Federation:
    """Ten clients (or more, for a larger cohort), four of them a round, or what the method insists on."""
    refusals = []
    for clients, drawn in ((max(10, cohort), cohort), (cohort, cohort), (10, 1), (1, 1)):
        federation = Federation(clients=clients, cohort=drawn, **options)
        try:
            method.check(federation)
        except FedzeroError as refusal:
            refusals.append(f"{clients} clients, {drawn} a round: {refusal}")
            continue
        return federation
    raise CheckFailed(f"check() refuses every federation that was tried ({'; '.join(refusals)})")


def recipe_of(
    method: Method,
    federation: Federation | None = None,
    task: Task | None = None,
    filters: Sequence[Link] = (),
    rounds: int = 50,
    seed: int = 5,
    merge: bool = False,
    replicas: bool = False,
) -> recipes.Recipe:
    """A recipe on a small quadratic, as it comes out of a ledger."""
    recipe = recipes.Recipe(
        name="trial",
        rounds=rounds,
        seed=seed,
        evaluate_every=4,
        algorithm=method,
        task=task or Quadratic(dimension=DIMENSION, noise=0.1),
        filters=tuple(filters),
        federation=federation or federation_for(method),
        engine=Local(merge=merge, device="cpu", replicas=replicas),
    )
    return recipes.decode(msgspec.to_builtins(recipe))


def trial(
    folder: Path,
    recipe: recipes.Recipe,
    secret: bytes | None = None,
    objective: Any = None,
    recast: Callable[[Params], Params] | None = None,
    data: Path | None = None,
) -> Trial:
    """`recast` makes other tensors of the task's parameters: several of them, or shorter floats. data: see
    `Environment`."""

    def prepared() -> Setup:
        setup = prepare(recipe, Environment(data=data, secret=secret))
        if recast is None:
            return setup
        return replace(setup, problem=replace(setup.problem, params=recast(setup.problem.params)))

    setup, how = prepared(), recorded(recipe.engine)
    replica = setup.replica()
    objective, shards = objective or setup.problem.objective, setup.problem.shards
    assert isinstance(how, Local)
    place = replica, objective, shards, how.merge, how.replicas, setup.chain
    drawn, hidden = batches_in(recipe, folder), hidden_in(recipe, folder)
    clients = LocalClients(*place, answers=folder, drawn=drawn, hidden=hidden)
    engine = hosted(setup, clients, folder)
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger.create(folder / "ledger.db", setup.start)
    server = Server(setup.plan, replica if recipe.federation.server_model else None, ledger)
    return Trial(setup, replica, engine, server, ledger, prepared)


@contextmanager
def known(kind: type[Any]) -> Iterator[None]:
    """What is not installed is registered, so that recipes can name it."""
    try:
        plugins.register(kind)
    except FedzeroError as refusal:
        expect("comes with" in str(refusal), str(refusal))
    yield


Check = Callable[[Any, Path], None]


def run_checks(kind: type[Any], subject: Any, checks: Iterable[Check]) -> None:
    """All checks, each in a folder of its own; raises one `CheckFailed` with a line for each that failed."""
    failures = []
    with known(kind):
        for check in checks:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    check(subject, Path(folder))
                except CheckFailed as failure:
                    failures.append(f"{check.__name__}: {failure}")
                except Exception as error:  # whatever the code of somebody else raises is what is wrong with it
                    failures.append(f"{check.__name__}: raised {type(error).__name__}: {error}")
    expect(not failures, f"{kind.__name__} does not conform:\n" + "\n".join(failures))
