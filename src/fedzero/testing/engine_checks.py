"""What every engine must do, whatever is between server and clients."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from fedzero.protocol.messages import decode_reply
from fedzero.recipe.engines import Engine
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import prepare
from fedzero.rounds.server import Server
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.runs.summary import Summary
from fedzero.tasks.contract import BuildContext, Problem
from fedzero.tasks.quadratic import Quadratic
from fedzero.testing.engines import Delayed, Failing
from fedzero.testing.trial import Check, expect, known, recipe_of, run_checks

METHODS: tuple[Method, ...] = (
    DeComFL(rate=2e-3, directions=5),
    FedAvg(rate=2e-3, local_steps=2),
    FZooS(rate=1e-2),
    ScaffoldZO(rate=2e-3, directions=5, form="dense"),
)
"""Seeded; whole models sent as snapshots; two exchanges and a growing memory; a memory of d numbers."""
ROUNDS, STOP, BROKEN = 6, 2, 1
PAUSE, SHORT, SOON = 0.03, 0.02, 0.75
"""Seconds: of an evaluation, of a short wait; the part of the time of all clients in which a short wait has to end."""


def check_engine(engine: Engine, checks: Sequence[Check] | None = None) -> None:
    """Make runs with an engine, and raise `CheckFailed` with what does not hold.

    Checks: the ledger is that of one process, to its last byte, with methods of several kinds; a client that fails is
    refused by name, and the others count; every client that is asked arrives once, or leaves with its host, also
    where several questions are open; waiting ends in time; a run that was stopped ends in the same ledger, also where
    another engine goes on.
    """
    with known(Troubled), known(Slow):
        run_checks(type(engine), msgspec.structs.replace(engine, merge=False, device="cpu"), checks or CHECKS)


class Troubled(Quadratic, tag="troubled-quadratic"):
    """A quadratic of which one client's function cannot be evaluated."""

    def build(self, clients: int, context: BuildContext) -> Problem:
        problem = super().build(clients, context)
        return replace(problem, objective=Failing(problem.objective, problem.shards, context.keys, BROKEN))


class Slow(Quadratic, tag="slow-quadratic"):
    """A quadratic whose evaluations take a while."""

    def build(self, clients: int, context: BuildContext) -> Problem:
        problem = super().build(clients, context)
        return replace(problem, objective=Delayed(problem.objective, PAUSE))


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


@contextmanager
def _serving(
    engine: Engine, folder: Path, task: Quadratic | None = None, oldest: int = 0
) -> Iterator[tuple[Clients, Server]]:
    """The clients of a new run, and its server, which plays no round."""
    setup = prepare(_recipe(METHODS[0], engine, task), Environment())
    with session.opened(setup, Environment(), Silent(), oldest=oldest) as found:
        server = Server(setup.plan, found.run.replica, session.create(folder / "run", setup.start))
        found.past.attach(server)
        try:
            yield found.clients, server
        finally:
            server.ledger.close()


def _send(clients: Clients, server: Server, round: int, who: Sequence[int]) -> set[int]:
    """Ask some clients in a round; returns them."""
    sending = server.delivery.instructions(round, who)
    clients.send(round, 0, sending.messages, sending.which)
    return set(who)


def says_what_happens(engine: Engine, folder: Path) -> None:
    """Message by message: clients that are asked arrive once or leave; those asked before are awaited beside those
    asked now; questions of a round that is over have no answer."""
    with _serving(engine, folder) as (clients, server):
        asked = _send(clients, server, 0, (0, 1))
        expect_each_once(_until_nothing(clients), asked)
        asked = _send(clients, server, 0, (1, 0)) | _send(clients, server, 0, (2, 3))
        expect_each_once(_until_nothing(clients), asked)
        _send(clients, server, 0, range(server.plan.federation.clients))  # and given up
        with suppress(FedzeroError):
            clients.receive(0.0)
        clients.settle(0, None, {}, ())
        asked = _send(clients, server, 1, (2, 3))
        expect_each_once(_until_nothing(clients), asked)
        expect(not clients.receive(FOREVER), "nobody is awaited, and yet something happens")


def awaits_earlier_rounds(engine: Engine, folder: Path) -> None:
    """If replies may come late, two rounds are asked before anything is received, and each reply names its own; or the
    engine refuses the second question in a sentence."""
    with _serving(engine, folder, oldest=1) as (clients, server):
        asked = dict.fromkeys(_send(clients, server, 0, (0, 1)), 0)
        try:
            asked |= dict.fromkeys(_send(clients, server, 1, (2, 3)), 1)
        except FedzeroError as why:
            expect(bool(str(why)), "a second question is refused without a reason")
        events = _until_nothing(clients)
        expect_each_once(events, set(asked))
        for event in events:
            if isinstance(event, Arrival) and isinstance(event.data, bytes):
                reply, wanted = decode_reply(event.data, len(event.data)), asked[event.client]
                expect(reply.round == wanted, f"asked in round {wanted}, client {event.client} answers {reply.round}")
                expect(event.asked in (None, wanted), f"its arrival names round {event.asked}, not {wanted}")
        _send(clients, server, 0, (0, 1))
        clients.settle(0, None, {}, ())
        clients.settle(1, None, {}, ())
        late = _send(clients, server, 2, (2, 3))
        expect_each_once(_until_nothing(clients), late)


def waits_as_long_as_it_is_told(engine: Engine, folder: Path) -> None:
    """`receive` returns before all clients are done if its time is over, and misses nobody."""
    with _serving(engine, folder, Slow(dimension=20)) as (clients, server):
        _send(clients, server, 0, (0, 1))
        _until_nothing(clients)  # whatever has to be got ready, is ready now
        asked, began = _send(clients, server, 0, range(2, 8)), time.monotonic()
        events = list(clients.receive(SHORT))
        first = time.monotonic() - began
        expect_each_once([*events, *_until_nothing(clients)], asked)
        whole = time.monotonic() - began
        expect(first < SOON * whole, f"receive({SHORT}) took {first:.2f} s, and all that there was {whole:.2f} s")


def _until_nothing(clients: Clients) -> list[Event]:
    found: list[Event] = []
    while events := clients.receive(FOREVER):
        found += events
    return found


def expect_each_once(events: Sequence[Event], asked: Collection[int]) -> None:
    """Every client that was asked arrives once, or leaves with its host."""
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
    awaits_earlier_rounds,
    waits_as_long_as_it_is_told,
    resumes_what_was_stopped,
)
