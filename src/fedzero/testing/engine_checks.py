"""What every engine must do, whatever is between server and clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from fedzero.engines.local import Local
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.methods.contract import Method
from fedzero.methods.decomfl import DeComFL
from fedzero.methods.fedavg import FedAvg
from fedzero.methods.fzoos import FZooS
from fedzero.methods.scaffold import ScaffoldZO
from fedzero.protocol.engine import FOREVER, Arrival, Clients, Event, Joined, Left
from fedzero.recipe.engines import Engine
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import Setup, prepare
from fedzero.rounds.server import Server
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.runs.summary import Summary
from fedzero.tasks.contract import BuildContext, Problem
from fedzero.tasks.quadratic import Quadratic
from fedzero.testing.engines import Failing
from fedzero.testing.trial import Check, expect, known, recipe_of, run_checks

METHODS: tuple[Method, ...] = (
    DeComFL(rate=2e-3, directions=5),
    FedAvg(rate=2e-3, local_steps=2),
    FZooS(rate=1e-2),
    ScaffoldZO(rate=2e-3, directions=5, form="dense"),
)
"""Seeded; whole models sent as snapshots; two exchanges and a growing memory; a memory of d numbers."""
ROUNDS, STOP, BROKEN = 6, 2, 1


def check_engine(engine: Engine, checks: Sequence[Check] | None = None) -> None:
    """Make runs with an engine, and raise `CheckFailed` with what does not hold.

    Checks: the ledger is that of one process, to its last byte, with methods of several kinds; a client that fails is
    refused by name, and the others count; every client that is asked arrives once, or leaves with its host; a run that
    was stopped ends in the same ledger, also where another engine goes on.
    """
    with known(Troubled):
        run_checks(type(engine), msgspec.structs.replace(engine, merge=False, device="cpu"), checks or CHECKS)


class Troubled(Quadratic, tag="troubled-quadratic"):
    """A quadratic of which one client's function cannot be evaluated."""

    def build(self, clients: int, context: BuildContext) -> Problem:
        problem = super().build(clients, context)
        return replace(problem, objective=Failing(problem.objective, problem.shards, context.keys, BROKEN))


class _Stop(Silent):
    def round(self, record: Round) -> None:
        if record.round == STOP:
            raise KeyboardInterrupt


def _recipe(method: Method, engine: Engine, task: Quadratic | None = None) -> Recipe:
    return msgspec.structs.replace(recipe_of(method, task=task, rounds=ROUNDS), engine=engine)


def _run(method: Method, engine: Engine, folder: Path, task: Quadratic | None = None) -> Summary:
    return session.start(_recipe(method, engine, task), folder, Environment(), Silent())


def writes_the_ledger_of_one_process(engine: Engine, folder: Path, methods: Sequence[Method] = METHODS) -> None:
    for method in methods:
        here = _run(method, Local(merge=False, device="cpu"), folder / f"{method.name}-here")
        there = _run(method, engine, folder / f"{method.name}-there")
        same = (here.ledger_head, here.model_digest) == (there.ledger_head, there.model_digest)
        expect(same, f"{method.name}: another ledger than that of one process")


def names_clients_that_fail(engine: Engine, folder: Path) -> None:
    _run(METHODS[0], engine, folder / "run", Troubled(dimension=20))
    ledger = Ledger.open(folder / "run" / LEDGER)
    try:
        records = list(ledger.rounds(0, ROUNDS))
    finally:
        ledger.close()
    asked = [record for record in records if BROKEN in record.cohort]
    expect(bool(asked), f"client {BROKEN} was never asked")
    for record in records:
        refused, wanted = dict(record.refused), {BROKEN} & set(record.cohort)
        expect(refused.keys() == wanted, f"round {record.round}: refused are {refused}, not client {BROKEN} alone")
        expect(record.update is not None, f"round {record.round}: the other clients do not count")
        for why in refused.values():
            expect(why.startswith("failed: "), f"client {BROKEN} failed, and the ledger says: {why}")


def says_what_happens(engine: Engine, folder: Path) -> None:
    """Message by message: who is asked arrives once or leaves, what is given up does not come later."""
    recipe = _recipe(METHODS[0], engine)
    setup = prepare(recipe, Environment())
    with session.opened(setup, Environment(), Silent()) as found:
        server = Server(setup.plan, found.run.replica, session.create(folder / "run", setup.start))
        found.past.attach(server)
        try:
            _expect_events(found.clients, server, setup)
        finally:
            server.ledger.close()


def _expect_events(clients: Clients, server: Server, setup: Setup) -> None:
    everybody = range(setup.recipe.federation.clients)
    sending = server.delivery.instructions(0, everybody)
    first = {client: sending.which[client] for client in everybody[:2]}
    clients.send(0, 0, sending.messages, first)
    expect_each_once(_until_nothing(clients), first)
    clients.send(0, 0, sending.messages, sending.which)  # and given up at once
    with suppress(FedzeroError):
        clients.receive(0.0)
    others = {client: sending.which[client] for client in everybody[2:4]}
    clients.send(0, 0, sending.messages, others)
    expect_each_once(_until_nothing(clients), others)
    expect(not clients.receive(FOREVER), "nobody is awaited, and yet something happens")


def _until_nothing(clients: Clients) -> list[Event]:
    found: list[Event] = []
    while events := clients.receive(FOREVER):
        found += events
    return found


def expect_each_once(events: Sequence[Event], asked: object) -> None:
    """Of an exchange: every client that was asked arrives once, or leaves with its host."""
    assert isinstance(asked, dict)
    arrived = Counter(event.client for event in events if isinstance(event, Arrival))
    left = {client for event in events if isinstance(event, Left) for client in event.clients}
    expect(set(arrived) <= set(asked), f"clients {sorted(set(arrived) - set(asked))} arrive, who were not asked")
    expect(max(arrived.values(), default=0) <= 1, f"clients arrive more than once: {dict(arrived)}")
    missing = set(asked) - set(arrived) - left
    expect(not missing, f"clients {sorted(missing)} neither arrive nor leave")
    for event in events:
        if isinstance(event, Joined | Left):
            expect(bool(event.host), "a host that joins or leaves has no name")


def resumes_what_was_stopped(engine: Engine, folder: Path) -> None:
    local = Local(merge=False, device="cpu")
    for method in (METHODS[0], METHODS[-1]):
        whole = _run(method, local, folder / f"{method.name}-whole")
        for number, (begun, resumed) in enumerate(((engine, engine), (engine, local), (local, engine))):
            place = folder / f"{method.name}-{number}"
            with suppress(KeyboardInterrupt):
                session.start(_recipe(method, begun), place, Environment(), _Stop())
            found = session.resume(place, Environment(), Silent(), engine=resumed)
            how = f"begun with {type(begun).__name__}, resumed with {type(resumed).__name__}"
            expect(found.ledger_head == whole.ledger_head, f"{method.name}: {how}, another ledger")


CHECKS: tuple[Check, ...] = (
    writes_the_ledger_of_one_process,
    names_clients_that_fail,
    says_what_happens,
    resumes_what_was_stopped,
)
