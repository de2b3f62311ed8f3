"""A run whose clients are at sites: the ledger is here, the work is there.

    conduct(recipe, folder, link, …)     start the run, or go on with the one that the folder holds

A server without a model builds nothing: what it has to know of the model the sites tell it, and they measure it, too.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fedzero import recipe as recipes
from fedzero import session
from fedzero.algorithms.contract import Scale
from fedzero.devices import threads
from fedzero.directions import VERSION, Keys
from fedzero.engines.remote import Interrupted, Link, Own, RemoteEngine, Run
from fedzero.engines.remote.dealing import Deal, dealt
from fedzero.engines.remote.messages import Prepared
from fedzero.errors import FedzeroError
from fedzero.federation import Books, Server
from fedzero.filters import Chain
from fedzero.ledger import replay
from fedzero.ledger.records import Record, Start
from fedzero.ledger.store import Ledger
from fedzero.oracles.blackbox import Metered
from fedzero.playing import Watch, play
from fedzero.recipe import Recipe
from fedzero.replica import Replica
from fedzero.session import LEDGER, MODEL, Setup, Surroundings
from fedzero.weights import save_model

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
    recipe: Recipe | None, folder: Path, around: Surroundings, watch: Watch, service: Service, overwrite: bool = False
) -> dict[str, Any]:
    """A run from where its ledger stands (from the start if there is none) to its end; the summary of what came out."""
    there = (folder / LEDGER).exists() and not overwrite
    recipe = _same(recipe, folder) if there else recipe
    if recipe is None:
        raise FedzeroError(f"{folder} holds no run: name a recipe to start one")
    if not recipe.algorithm.server_model:
        setup = None
    else:
        setup = session.prepare(recipe, around)
        if isinstance(setup.problem.objective, Metered):
            raise FedzeroError("black boxes are asked by the local engine only (`fedzero run`)")
    houses = (Houses.of(folder) if there else None) or Houses(secrets.token_hex(8), {})

    def deal(here: Collection[str]) -> Deal:
        nonlocal houses
        sites = list(dict.fromkeys([*service.roster(), *here]))
        houses = Houses(houses.run, dict(dealt(sites, recipe.federation.clients, houses.clients)))
        houses.write(folder)
        return houses.clients

    engine = RemoteEngine(service.link, houses.run, recipes.canonical(recipe), deal, service.deadline, service.say)
    first = _start(recipe, setup, _opened(engine, service.say))
    ledger = Ledger.open(folder / LEDGER, writable=True) if there else session.create(folder, first, overwrite)
    try:
        _expect_same_base(ledger.start(), first)
        return _conduct(recipe, setup, ledger, folder, watch, engine, service)
    finally:
        watch.end()
        ledger.close()


def _conduct(
    recipe: Recipe, setup: Setup | None, ledger: Ledger, folder: Path, watch: Watch, engine: RemoteEngine, how: Service
) -> dict[str, Any]:
    began, story, size = time.perf_counter(), replay.read(ledger), ledger.start().parameters
    replica = None if setup is None else setup.replica()
    if setup is not None and replica is not None:
        replay.rebuild(ledger, story, replica, progress=setup.replaying)
    books = session.books_of(story, recipe)
    server = Server(
        recipe.algorithm,
        recipe.federation,
        Keys.of_seed(recipe.seed),
        size,
        replica,
        ledger,
        books,
        story.saved.round if story.saved is not None else 0,
        Chain(recipe.filters),
    )
    scale = Scale(size, recipe.federation.clients)
    engine.run = Run(
        updates=lambda a, b: _updates(ledger, books, recipe.algorithm.pull_after, a, b),
        known=lambda client: books.known[client],
        limit=server.limit,
        catch_up=recipe.algorithm.delivery(scale) == "catch-up",
        own=None if setup is None or replica is None else _own(setup, replica),
    )

    def seconds() -> float:
        return story.seconds + time.perf_counter() - began

    def interrupted(reason: Interrupted) -> None:
        how.say(f"the epoch is over: {reason}")

    def pictures(after: int) -> list[Record]:
        return [] if setup is None or replica is None else session.pictures_of(setup, replica, after)

    with threads(None if recipe.engine.merge else 1):
        play(recipe, story, server, engine, watch, seconds, pictures, interrupted)
    if replica is not None:
        save_model(replica.state.params, folder / MODEL)
    return session.summary(ledger)


def _opened(engine: RemoteEngine, say: Callable[[str], None]) -> Prepared:
    """The first epoch, which may end while sites make ready like any other."""
    while True:
        try:
            return engine.open()
        except Interrupted as reason:
            say(f"the epoch is over: {reason}")


def _own(setup: Setup, replica: Replica) -> Own:
    return Own(replica.digest, lambda: setup.problem.objective.evaluate(replica.state.params))


def _updates(ledger: Ledger, books: Books, pull_after: int | None, first: int, last: int) -> list[bytes]:
    """Encoded updates of rounds first … last − 1: those somebody still needs are at hand, others on the ledger."""
    if pull_after is None and first >= min(books.known):
        return [books.history[round] for round in range(first, last) if round in books.history]
    rounds = replay.read(ledger).rounds[first:last]
    return [record.update for record in rounds if record.update is not None and not record.dense]


def _start(recipe: Recipe, setup: Setup | None, found: Prepared) -> Start:
    if setup is None:
        secret = found.secret if recipe.federation.private else None
        return Start(recipes.canonical(recipe), found.base, found.parameters, VERSION, secret, found.facts)
    if found.base != setup.start.base:
        raise FedzeroError(
            f"the sites start from model {found.base.hex()}, the server from {setup.start.base.hex()}: give all of "
            "them the same base model and the same release"
        )
    return setup.start


def _same(recipe: Recipe | None, folder: Path) -> Recipe:
    ledger = Ledger.open(folder / LEDGER)
    try:
        found = recipes.from_canonical(ledger.start().recipe)
    finally:
        ledger.close()
    if recipe is not None and recipe != found:
        raise FedzeroError(
            f"{folder} holds a run of another recipe: --out chooses another folder, --overwrite starts anew"
        )
    return found


def _expect_same_base(then: Start, now: Start) -> None:
    if (then.base, then.parameters, then.secret) != (now.base, now.parameters, now.secret):
        raise FedzeroError(
            f"this run was started from model {then.base.hex()} with secret {then.secret}; the sites have "
            f"{now.base.hex()} and {now.secret}"
        )


# ---- who lives where


class Houses(Struct, frozen=True):
    """What `sites.json` holds: what tells this run from all others, and which clients live at which site."""

    run: str
    clients: dict[str, tuple[int, ...]]

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{SITES}.new"
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        draft.replace(folder / SITES)

    @staticmethod
    def of(folder: Path) -> Houses | None:
        try:
            return msgspec.json.decode((folder / SITES).read_bytes(), type=Houses)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise FedzeroError(f"{folder / SITES}: {error}") from error
