"""A run whose clients are at sites: the ledger is here, the work is there.

    conduct(recipe, folder, link, …)     start the run, or go on with the one that the folder holds

A server without a model builds nothing: what it has to know of the model the sites tell it, and they measure it, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fedzero.deploy.assignment import Assignment, assign
from fedzero.deploy.engine import Own, RemoteEngine, Run
from fedzero.deploy.link import Link
from fedzero.deploy.messages import Prepared
from fedzero.directions import VERSION, Keys
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.records import Start
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Ledger
from fedzero.model import files
from fedzero.protocol.engine import Interrupted
from fedzero.protocol.replica import Replica
from fedzero.run import recipe as recipes
from fedzero.run import session
from fedzero.run.loop import Watch
from fedzero.run.recipe import Recipe
from fedzero.run.server import Server
from fedzero.run.session import LEDGER, Assembly, Environment, Setup

SITES = "sites.json"
"""In the folder of a run: which clients live at which site."""


@dataclass(frozen=True)
class Service:
    """How a run is served. roster: all sites there are, whether present or not; deadline: seconds of an exchange."""

    link: Link
    roster: Callable[[], Sequence[str]]
    deadline: float = 60.0
    say: Callable[[str], None] = lambda text: None


def conduct(
    recipe: Recipe | None,
    folder: Path,
    environment: Environment,
    watch: Watch,
    service: Service,
    overwrite: bool = False,
) -> dict[str, Any]:
    """A run from where its ledger stands (from the start if there is none) to its end; the summary of what came out."""
    there = (folder / LEDGER).exists() and not overwrite
    recipe = session.recipe_in(folder, recipe) if there else recipe
    if recipe is None:
        raise FedzeroError(f"{folder} holds no run: name a recipe to start one")
    setup = session.prepare(recipe, environment) if recipe.federation.server_model else None
    if setup is not None and setup.problem.metered is not None:
        raise FedzeroError("black boxes are asked by the local engine only (`fedzero run`)")
    sites = (SiteAssignment.of(folder) if there else None) or SiteAssignment(secrets.token_hex(8), {})
    clients = recipe.federation.clients

    def assigned(here: Collection[str]) -> Assignment:
        nonlocal sites
        names = list(dict.fromkeys([*service.roster(), *here]))
        sites = SiteAssignment(sites.run, dict(assign(names, clients, sites.clients)))
        sites.write(folder)
        return sites.clients

    engine = RemoteEngine(service.link, sites.run, recipes.canonical(recipe), assigned, service.deadline, service.say)
    first = _start(recipe, setup, _opened(engine, service.say))
    ledger = Ledger.open(folder / LEDGER, writable=True) if there else session.create(folder, first, overwrite)
    try:
        _expect_same_base(ledger.start(), first)
    except BaseException:
        ledger.close()
        raise

    def attach(engine: RemoteEngine, server: Server, view: LedgerView, replica: Replica | None) -> None:
        own = None
        if setup is not None and replica is not None:
            own = Own(replica.digest, lambda: setup.problem.objective.evaluate(replica.state.params))
        engine.run = Run(
            updates=lambda a, b: _updates(server, a, b),
            known=lambda client: server.tracker.known[client],
            limit=server.limit,
            catch_up=server.wire(0).delivery == "catch-up",
            own=own,
        )

    def interrupted(reason: Interrupted) -> None:
        service.say(f"the epoch is over: {reason}")

    plan = session.plan_of(recipe, Keys.of_seed(recipe.seed), first.parameters)
    how = Assembly(recipe, plan, setup, lambda replica: engine, attach, interrupted)
    return session.drive(how, ledger, folder, watch)


def _opened(engine: RemoteEngine, say: Callable[[str], None]) -> Prepared:
    """The first epoch, which may end while sites make ready like any other."""
    while True:
        try:
            return engine.open()
        except Interrupted as reason:
            say(f"the epoch is over: {reason}")


def _updates(server: Server, first: int, last: int) -> list[bytes]:
    """Encoded updates of rounds first … last − 1: those somebody still needs are at hand, others on the ledger."""
    tracker = server.tracker
    if server.federation.pull_after is None and first >= min(tracker.known):
        return [tracker.history[round] for round in range(first, last) if round in tracker.history]
    rounds = replay.read(server.ledger).rounds[first:last]
    return [record.update for record in rounds if record.update is not None and not record.dense]


def _start(recipe: Recipe, setup: Setup | None, found: Prepared) -> Start:
    if setup is None:
        secret = found.secret if recipe.federation.private else None
        return Start(
            recipes.canonical(recipe), found.base, found.parameters, VERSION, secret, found.facts, recipe.needs
        )
    if found.base != setup.start.base:
        raise FedzeroError(
            f"the sites start from model {found.base.hex()}, the server from {setup.start.base.hex()}: give all of "
            "them the same base model and the same release"
        )
    return setup.start


def _expect_same_base(then: Start, now: Start) -> None:
    if (then.base, then.parameters, then.secret) != (now.base, now.parameters, now.secret):
        raise FedzeroError(
            f"this run was started from model {then.base.hex()} with secret {then.secret}; the sites have "
            f"{now.base.hex()} and {now.secret}"
        )


# ---- who lives where


class SiteAssignment(Struct, frozen=True):
    """What `sites.json` holds: what tells this run from all others, and which clients live at which site."""

    run: str
    clients: dict[str, tuple[int, ...]]

    def write(self, folder: Path) -> None:
        files.write(folder / SITES, msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @staticmethod
    def of(folder: Path) -> SiteAssignment | None:
        try:
            return msgspec.json.decode((folder / SITES).read_bytes(), type=SiteAssignment)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise FedzeroError(f"{folder / SITES}: {error}") from error
