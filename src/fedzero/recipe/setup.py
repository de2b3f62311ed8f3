"""A recipe made concrete: task, base model, keys and plan. Errors in a recipe are found here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedzero.callbacks import ignore
from fedzero.directions import VERSION, Keys
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.records import Start, sha256_of
from fedzero.links import Chain
from fedzero.links.coders import Plain
from fedzero.methods.contract import Method, Scale
from fedzero.methods.shared.by_row import why_not_by_row
from fedzero.model.checkpoint import load_model
from fedzero.model.device import device_of
from fedzero.model.fixed import FACT
from fedzero.oracles.rows import persons_at_several, units_of, why_no_rows
from fedzero.protocol.replica import Replica
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment as Environment
from fedzero.recipe.environment import data_folder as data_folder
from fedzero.recipe.plan import Plan
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.secret import keys_of as keys_of
from fedzero.recipe.secret import secret_of as secret_of
from fedzero.tasks.contract import BuildContext, Phase, Problem

MOST_NUMBERS = 1 << 30
"""The most float32 numbers of one message: msgpack has 32 bits for a length."""
PUBLIC_FACTS = frozenset({"model", FACT})
"""The facts of a task that do not depend on the data of clients."""
MOST_QUERIES = 1 << 32
"""The most evaluations of one turn: a thousand per second would take seven weeks."""


@dataclass(frozen=True)
class Setup:
    """A recipe made concrete."""

    recipe: Recipe
    keys: Keys
    problem: Problem
    replaying: replay.Progress = ignore

    @property
    def algorithm(self) -> Method:
        return self.recipe.algorithm

    @property
    def chain(self) -> Chain:
        return chain_of(self.recipe, self.problem.params.size)

    @property
    def plan(self) -> Plan:
        return plan_of(self.recipe, self.keys, self.problem.params.size)

    def replica(self) -> Replica:
        """A replica of the base model. It uses the problem's own parameters, so there can be only one at a time."""
        return Replica(self.algorithm, self.problem.params, self.keys, self.recipe.federation.clients)

    @property
    def facts(self) -> dict[str, str]:
        """The facts of the task that may be told: with [privacy] those that do not depend on the data of clients."""
        facts = dict(self.problem.facts)
        if self.recipe.privacy:
            facts = {name: fact for name, fact in facts.items() if name in PUBLIC_FACTS}
        return facts

    @property
    def start(self) -> Start:
        base = self.problem.params.identity
        return Start(
            recipe=recipes.canonical(self.recipe),
            base=base.digest,
            parameters=self.problem.params.size,
            directions=VERSION,
            secret=self.keys.secret,
            facts=self.facts,
            needs=self.recipe.needs,
            base_sha256=sha256_of(base),
        )


def plan_of(recipe: Recipe, keys: Keys, size: int) -> Plan:
    privacy = recipe.privacy or None
    sampling, chain = bool(recipe.sampling or privacy), chain_of(recipe, size)
    place = recipe.algorithm, recipe.federation, keys, size, chain, recipe.task.least_loss
    numbers = recipes.most_numbers(recipe, size)
    return Plan(*place, private_sampling=sampling, privacy=privacy, rounds=recipe.rounds, numbers=numbers)


def chain_of(recipe: Recipe, size: int) -> Chain:
    """The chain of links of a recipe. size: d."""
    scale = Scale(size, recipe.federation.clients)
    if recipe.privacy:
        return recipe.privacy.chain(recipe.federation, recipes.most_numbers(recipe, size))
    return Chain(recipe.filters, recipe.algorithm.traits(scale).coder, recipe.gathering or None)


def prepare(
    recipe: Recipe, environment: Environment, phase: Phase = ignore, keys: Keys | None = None, foreign: bool = False
) -> Setup:
    """Build task and base model. Errors in a recipe are found here, before anything is written.

    phase: is told of the current activity. keys: of a run that has begun already, or begins elsewhere. foreign: see
    `BuildContext`.
    """
    phase(f"building the task: {recipe.task.label}")
    keys = keys or keys_of(recipe, environment.secret)
    device, own = device_of(recipe.engine.device), environment
    place = BuildContext(
        *(keys, device, own.data, own.functions, own.folder, phase, own.trusted, own.files, own.model, foreign),
        person=recipe.privacy.person or "" if recipe.privacy else "",
    )
    problem = recipe.task.build(recipe.federation.clients, place)
    if recipe.base is not None:
        path = place.path(recipe.base, "base")
        try:
            problem.params.load(load_model(Path(path)))
        except FedzeroError as error:
            raise FedzeroError(f"base = {recipe.base!r}: {error}") from error
    setup = Setup(recipe, keys, problem, environment.replaying)
    traits, method = setup.plan.traits, recipe.algorithm.name
    if traits.first_order and problem.metered is not None:
        raise FedzeroError(
            f"algorithm.kind = {method!r} needs gradients, which task.kind = 'black-box' does not have: "
            "choose a zeroth-order method, such as 'fedzo'"
        )
    if traits.delivery == "snapshot":
        why = f"{method} sends the model to clients"
        recipe.federation.expect(why, private=False, server_model=True, sync=False, pull_after=None)
    _check_size(setup)
    _check_privacy(setup)
    if environment.trusted:  # a site would tell a server, which chooses recipes, how many units it has
        _check_population(setup)
    if recipe.engine.attack is not None:
        recipe.engine.attack.check(method, traits.comparable)
    needs = traits.self_correcting, traits.whole, traits.reads_each_reply
    setup.chain.check(method, traits.comparable, recipe.federation.replies, *needs)
    _check_rows(setup)
    return setup


def _check_rows(setup: Setup) -> None:
    """Refuse a link that reads single rows where there are none, or where everybody knows which were drawn."""
    chain, problem = setup.chain, setup.problem
    if chain.rows is None:
        return
    why = why_not_by_row(setup.algorithm, setup.plan.scale, chain)
    if not why and not problem.incomplete:
        why = why_no_rows(problem.objective, problem.shards, chain.rows.persons)
        why = why or (persons_at_several(problem.shards) if chain.rows.persons else "")
    if not why and chain.rows.rate < 1 and not setup.plan.private_sampling:
        why = "everybody who knows the seed would know which: set sampling = 'private'"
    if why:
        reader = next(f"filters: {link.name!r}" for link in chain.client_links if link.traits.rows is not None)
        reader = f"privacy.unit = {setup.recipe.privacy.unit!r}" if setup.recipe.privacy else reader
        raise FedzeroError(f"{reader} reads the contributions of single rows, but {why}")


def _check_privacy(setup: Setup) -> None:
    """Refuse methods and tasks of which something is shown that nobody accounts for."""
    recipe, traits = setup.recipe, setup.plan.traits
    if not recipe.privacy:
        return
    method = setup.algorithm.name
    exchanges = len(setup.plan.cost(0).replies)
    here = not getattr(setup.problem.shards, "engine", "")
    refusals = (
        (here and recipe.privacy.present, "its clients are always there, so privacy.present = true says nothing"),
        (setup.problem.metered is not None, "queries of black boxes are logged one by one"),
        (exchanges > 1, f"{method} has {exchanges} exchanges a round, and each would be a release"),
        (traits.remembers, f"clients of {method} remember their turns, so a turn shows what earlier data were"),
        (traits.whole or not traits.comparable, f"{method} does not work with the sum of bounded numbers"),
        (traits.unanimous, f"{method} needs the replies of all clients"),
        (not isinstance(traits.coder, Plain), f"{method} codes its numbers in its own way"),
        (traits.delivery == "snapshot", f"{method} sends a state to the clients that take part"),
    )
    for holds, why in refusals:
        if holds:
            raise FedzeroError(f"[privacy] does not work with this recipe: {why}")


def _check_population(setup: Setup) -> None:
    """Refuse more units than the recipe says; see `too_many_units`."""
    if why := too_many_units(setup):
        raise FedzeroError(why)


def too_many_units(setup: Setup) -> str:
    """Why there are more units than the recipe says; empty: there are not. δ is for so many, and so is the most that a
    turn may have of them. Where a turn had more, a unit that comes would push another one out, and both would show."""
    recipe, shards, rows = setup.recipe, setup.problem.shards, setup.chain.rows
    if not recipe.privacy or setup.problem.incomplete or rows is None:
        return ""
    if why_no_rows(setup.problem.objective, shards, rows.persons):
        return ""
    if rows.persons and persons_at_several(shards):  # counted twice; refused with the reason
        return ""
    most = recipe.privacy.n(recipe.federation)
    if (found := units_of(shards, rows.persons)) <= most:
        return ""
    return (
        f"privacy.population = {most:,}, and there are {found:,} units here: it is a public constant that is at "
        "least their number, such as the size that was planned"
    )


def _check_size(setup: Setup) -> None:
    """Refuse turns that are too large for any client, before a ledger is made."""
    costs = recipes.costs_of(setup.recipe, setup.plan.size)
    numbers, queries = max(max(cost.replies) for cost in costs), max(cost.queries for cost in costs)
    most = MOST_NUMBERS * (32 if setup.chain.codes else 1)  # a coder needs a bit for a number at least
    if numbers >= most or queries >= MOST_QUERIES:
        raise FedzeroError(
            f"algorithm.kind = {setup.algorithm.name!r}: a turn would take {queries:,} evaluations and a reply of "
            f"{numbers:,} numbers; the limits are {MOST_QUERIES:,} and {most:,}: lower algorithm.directions or "
            "algorithm.local_steps, or train fewer parameters"
        )
