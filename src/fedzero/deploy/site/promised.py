"""What a recipe with [privacy] promises, checked by the site that gives the data: nothing of it is believed.

    check_promise    σ is solved, and with it all rounds in force keep within ε, by this site's own accountant
    check_parts      no row of the site lies with two clients of a run, or it would count twice
    bind_clients     the clients of a run at this site stay the same, and so do its answers

None of these depends on how many rows there are. A refusal that did would tell the server, which chooses recipes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
from msgspec import UnsetType

from fedzero.deploy.site.journal import Journal
from fedzero.errors import FedzeroError, Sendable
from fedzero.privacy import renyi
from fedzero.recipe import recipe as recipes
from fedzero.recipe.recipe import Recipe
from fedzero.runs.spending.budget import Budget
from fedzero.runs.spending.data_sets import part_of

WHOLE_SITE = -(1 << 42)
"""The client number under which is kept what concerns all clients of a run at this site."""
CLIENTS = "clients"
TIMES, MORE = 4, 2
"""Rényi bounds of an honest recipe are below TIMES · ε + MORE."""


def check_promise(recipe: Recipe) -> None:
    """Refuse a recipe in which the server draws units, or whose σ is not there or does not pay for its rounds."""
    privacy = recipe.privacy
    if not privacy:
        return
    if isinstance(privacy.hosts, UnsetType):
        raise Sendable("sites draw their own units: the recipe has to say among how many, privacy.hosts")
    if isinstance(privacy.sigma, UnsetType):
        raise Sendable("privacy.sigma follows from privacy.epsilon, and the server has not solved it")
    try:
        _check_size(recipe)
        recipes.with_noise(recipe)
    except FedzeroError as error:  # of the recipe alone, or of a library that is missing here
        raise Sendable(str(error)) from error


def _check_size(recipe: Recipe) -> None:
    """Refuse by a bound that costs nothing what an exact account would need all memory for."""
    privacy, federation = recipe.privacy, recipe.federation
    assert privacy and isinstance(privacy.sigma, float)
    if isinstance(privacy.epsilon, UnsetType) or privacy.noise != "central":
        return
    curve = renyi.subsampled(renyi.gaussian(privacy.sigma), privacy.q(federation), recipe.rounds)
    if (bound := renyi.epsilon_of(curve, privacy.delta_of(federation), renyi.WHOLE)) > TIMES * privacy.epsilon + MORE:
        raise Sendable(
            f"privacy.epsilon = {privacy.epsilon:g} is less than the {bound:.4g} that {recipe.rounds} rounds with "
            f"privacy.sigma = {privacy.sigma:g} may spend"
        )


def check_parts(shards: object, clients: Iterable[int]) -> None:
    """Refuse clients that have the same rows here: each would add them to the sum."""
    parts: dict[int, int] = {}
    for client in sorted(clients):
        other = parts.setdefault(part_of(shards, client), client)
        if other != client:
            raise Sendable(
                f"clients {other} and {client} have the same rows here, which would count twice: use fewer clients"
            )


def bind_clients(journal: Journal, budget: Budget, clients: Collection[int]) -> None:
    """Keep the clients of a run; refused, if it had others, or if what was answered in it is not here any more."""
    mine, before = msgspec.msgpack.encode(sorted(clients)), journal.notes(WHOLE_SITE).get(CLIENTS)
    if before is None and budget.begun():
        raise Sendable(
            "this site has paid for rounds of this run, and has not kept what it answered (runs_kept and bytes_kept in "
            "its terms say how much it keeps): start another run"
        )
    if before is None:
        journal.change_notes(WHOLE_SITE, {CLIENTS: mine})
    elif before != mine:
        raise Sendable("was assigned other clients before, in the same run: they stay where they are")
