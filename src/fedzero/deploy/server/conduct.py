"""A run whose clients are at sites: the ledger is here, the work is there.

    run_at_sites(recipe, folder, environment, watch, service)     start a run, or resume the one in the folder

A server without a model builds nothing: the sites tell it the size and digest of the model, and evaluate it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

from msgspec import UNSET
from msgspec.structs import replace

from fedzero.deploy.site.tasks import named_for
from fedzero.directions import VERSION, Keys
from fedzero.engines.remote.assignment import Assignment, SiteAssignment, assign
from fedzero.engines.remote.engine import RemoteClients, Service
from fedzero.engines.remote.messages import Prepare, Prepared, PrepareExtended
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Extended, Start, sha256_of
from fedzero.ledger.store import Ledger, closed_on_failure, ledger_in
from fedzero.protocol.engine import Tied
from fedzero.recipe import coalitions, trust
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.in_force import extended_by
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import Setup, plan_of, prepare
from fedzero.recipe.view import RunView
from fedzero.rounds.loop import Watch
from fedzero.rounds.past import PastRounds
from fedzero.runs import growing, recorded, session
from fedzero.runs.clocked import expect_engine
from fedzero.runs.growing import UNCHANGED, Growth
from fedzero.runs.summary import Summary


def run_at_sites(
    recipe: Recipe | None,
    folder: Path,
    environment: Environment,
    watch: Watch,
    service: Service,
    overwrite: bool = False,
    said: Growth = UNCHANGED,
) -> Summary:
    """Play a run from the end of its ledger (from the start if there is none) to its end; returns its summary.

    said: options beside the recipe. A run that is there is extended if these, or the recipe, ask for it; its sites are
    asked for the recipe that is then in force.
    """
    resuming, how = (folder / LEDGER).exists() and not overwrite, (environment, watch, service)
    if not resuming:
        return _run(recipe, folder, *how, resuming, recipe is not None, overwrite)
    growth = said if recipe is None else growing.asked(folder, recipe, said)
    if growth and growing.unfinished(folder, growth):
        _run(recorded.recipe_in(folder), folder, *how, resuming, recipe is not None)
    extended = growing.extension(folder, growth) if growth else None
    now = extended_by(recorded.recipe_in(folder), extended)
    return _run(now, folder, *how, resuming, recipe is not None, extended=extended)


def _run(
    recipe: Recipe | None,
    folder: Path,
    environment: Environment,
    watch: Watch,
    service: Service,
    resuming: bool,
    given: bool,
    overwrite: bool = False,
    extended: Extended | None = None,
) -> Summary:
    """recipe: in force from here on; given: by the caller. extended: an extension that is not on the ledger yet."""
    if recipe is None:
        raise FedzeroError(f"{folder} holds no run: name a recipe to start one")
    _expect_sites(recipe)
    if not resuming:
        recipe = _for_sites(recipe, service)
    environment = named_for(recipe, environment)
    then, before = _start_of(folder) if resuming else (None, None)
    foreign = then is not None and not given and _is_foreign(then, recipe, environment)
    with session.ending(watch):
        setup = _built(recipe, environment, watch, foreign) if recipe.federation.server_model else None
        for line in () if resuming else coalitions.warnings(recipe, real=True):
            watch.warn(line)
    watch.phase("")  # from now on the activity of sites is reported in lines
    assigned = _Assigning(folder, recipe, service, SiteAssignment.of(folder) if resuming else None)

    def tied(reason: Tied) -> None:
        service.report(f"{reason}; it is tried again")

    prepare = _order(assigned.sites.run, recipe, then, extended or before)

    def fits(found: Prepared) -> bool:
        """Whether a site starts from the known base model: that of the server, or the one on the ledger."""
        if then is not None:
            return _continues(found, then)
        return setup is not None and found.identity == setup.start.identity

    clients = RemoteClients(service, prepare, assigned, None if setup is None else setup.problem.objective, fits)
    now = _start(recipe, setup, clients.agreed())
    _expect_same(now, then)
    past = PastRounds()
    plan = plan_of(recipe, Keys.of_seed(recipe.seed), now.parameters)
    opened = Ledger.open(folder / LEDGER, writable=True) if then else session.create(folder, now, overwrite)
    with closed_on_failure(opened) as ledger:
        if given:
            trust.note(then.recipe if then else now.recipe, recipe.task, environment.functions)
        if now.secret is not None:
            ledger.hide()
        replica = None if setup is None else setup.replica()
        clients.attach(RunView(recipe, plan, past, setup, replica, environment))
    found = session.Opened(clients.run, clients, past, tied)
    summary = session.run_to_end(found, ledger, folder, watch, extended=extended)
    if summary.complete:  # sites keep what they need to go on with a run that was paused
        clients.finish(summary.rounds)
    return summary


class _Assigning:
    """Which site has which clients, with those that are there now. sites: the assignment, which the folder has, too."""

    def __init__(self, folder: Path, recipe: Recipe, service: Service, before: SiteAssignment | None):
        self._folder, self._recipe, self._service = folder, recipe, service
        self.sites = before or SiteAssignment(secrets.token_hex(8), {})

    def __call__(self, here: Collection[str]) -> Assignment:
        if self._recipe.privacy and self.sites.clients:  # a site's clients have their coins and their rows there
            return self.sites.clients
        names = list(dict.fromkeys([*self._service.roster(), *here]))
        clients = assign(names, self._recipe.federation.clients, self.sites.clients)
        self.sites = SiteAssignment(self.sites.run, clients)
        self.sites.write(self._folder)
        return clients


def _expect_sites(recipe: Recipe) -> None:
    """Refuse recipes that only clients of one process can serve."""
    if recipe.engine.attack is not None:
        raise FedzeroError("engine.attack plays clients that attack, in a simulation: leave it out to run at sites")
    expect_engine(recipe, "sites")


def _for_sites(recipe: Recipe, service: Service) -> Recipe:
    """The recipe with which a run at sites begins: with [privacy] they draw their own units, and σ is solved."""
    if not recipe.privacy:
        return recipe
    count = min(len(set(service.roster())), recipe.federation.clients)
    if not count:
        raise FedzeroError("[privacy] needs to know how many sites there are, and the project has none")
    privacy = recipe.privacy.at_hosts(count)
    privacy.check(recipe.federation)
    return recipes.with_noise(replace(recipe, privacy=privacy))


def _order(run: str, recipe: Recipe, then: Start | None, extended: Extended | None) -> Prepare:
    """The order that begins an epoch. Sites find their folder of a run by the recipe on its ledger, which an older
    release may have written."""
    text, secret = (recipes.canonical(recipe), None) if then is None else (then.recipe, then.secret)
    said = run, text, (), recipe.needs, secret
    if extended is None:
        return Prepare(*said)
    return PrepareExtended(*said, extended.rounds, extended.evaluate_every, extended.stop)


def _expect_same(now: Start, then: Start | None) -> None:
    if then is not None and not _continues(now, then):
        raise FedzeroError(
            f"this run was started from model {then.identity} with secret {then.secret}; the sites have "
            f"{now.identity} and {now.secret}"
        )


def _built(recipe: Recipe, environment: Environment, watch: Watch, foreign: bool) -> Setup:
    """The set-up of a server with a model."""
    setup = prepare(recipe, environment, watch.phase, foreign=foreign)
    if setup.problem.metered is not None:
        raise FedzeroError("black boxes at sites need a server that queries none: set federation.server_model = false")
    setup.problem.ready()
    return setup


def _is_foreign(then: Start, recipe: Recipe, environment: Environment) -> bool:
    """Whether a run that is resumed without a recipe is somebody else's; then its recipe must name no code."""
    foreign = trust.is_foreign(then, environment)
    if foreign and recipe.federation.server_model:
        trust.expect_nothing_named(recipe.task, environment.functions)
    return foreign


def _start_of(folder: Path) -> tuple[Start, Extended | None]:
    with ledger_in(folder) as ledger:
        return ledger.start(), ledger.extended()


def _continues(found: Prepared | Start, then: Start) -> bool:
    """Whether model, size and secret are those from which the run was started."""
    same = (found.parameters, found.secret) == (then.parameters, then.secret)
    return same and found.identity.agrees(then.identity)


def _start(recipe: Recipe, setup: Setup | None, found: Prepared) -> Start:
    if setup is None:
        secret, text = found.secret if recipe.federation.private else None, recipes.canonical(recipe)
        sha256 = sha256_of(found.identity)
        return Start(text, found.base, found.parameters, VERSION, secret, found.facts, recipe.needs, UNSET, sha256)
    if found.identity != setup.start.identity:
        raise FedzeroError(
            f"the sites start from model {found.identity}, the server from {setup.start.identity}: give all of "
            "them the same base model and the same release"
        )
    return setup.start
