"""The recipe in force: that of the start of a ledger, with rounds, evaluations and early end of its last extension.

All that derives from a recipe's bytes (keys, salts, folders of sites) derives from those of the start. A site approves
of the recipe in force.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from fedzero.ledger.records import Extended, Start
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.stopping import Stop


class Extension(Protocol):
    """What an entry of a ledger, or an order to a site, says of an extension."""

    @property
    def rounds(self) -> int: ...
    @property
    def evaluate_every(self) -> int: ...
    @property
    def stop(self) -> bytes: ...


def extended_by(recipe: Recipe, extension: Extension | None) -> Recipe:
    """A recipe as an extension changes it."""
    if extension is None:
        return recipe
    with recipes.written_elsewhere("the extension of this run"):
        stop = msgspec.convert(recipes.table_in(extension.stop), Stop)
    counts = {"rounds": extension.rounds, "evaluate_every": extension.evaluate_every}
    return msgspec.structs.replace(recipe, stop=stop, **counts)


def in_force(start: Start, extended: Extended | None) -> Recipe:
    """extended: the last extension of the ledger."""
    return extended_by(recipes.from_canonical(start.recipe, start.needs), extended)


def recipe_of(ledger: Ledger) -> Recipe:
    """The same, of a ledger that was not read yet."""
    return in_force(ledger.start(), ledger.extended())


def extension_to(recipe: Recipe, done: int) -> Extended:
    """The entry after `done` rounds by which a recipe comes into force."""
    return Extended(done, recipe.rounds, recipe.evaluate_every, msgspec.json.encode(recipe.stop, order="sorted"))
