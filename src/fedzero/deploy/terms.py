"""The terms of a site: what it serves, in a section of its own settings that never leaves it.

    [terms]                                   local/fedzero.toml of a kit
    methods = ["decomfl"]
    approved = ["3b0c…"]                      `fedzero recipe-hash RECIPE` prints it
    queries_per_day = 100000

They are checked before data or a model are touched, and what they refuse is one sentence, here and at the server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fedzero import plugins
from fedzero.errors import Sendable
from fedzero.model import files
from fedzero.model.numbers import PositiveInt
from fedzero.runs import recipe as recipes
from fedzero.runs.recipe import Recipe

DAY = 86400
SPENT = "spent.json"
"""In the folder for what outlasts a restart: the queries of a day."""


class Terms(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a site serves. An empty list is no restriction."""

    methods: tuple[str, ...] = ()
    """Methods that are served, as `algorithm.kind` has them."""
    tasks: tuple[str, ...] = ()
    """Tasks that are served, as `task.kind` has them."""
    private: bool | None = None
    """Whether a recipe must have `federation.private = true`; default: where this site has a secret."""
    approved: tuple[Annotated[str, Meta(pattern="^[0-9a-f]{64}$")], ...] = ()
    """Hashes of the recipes that are served, each from `fedzero recipe-hash RECIPE`."""
    queries_per_day: PositiveInt | None = None
    """Evaluations that are made in a day (UTC) at most, over all clients here and all runs."""

    def check(self, recipe: Recipe, secret: bool) -> None:
        """Refuse what is not served; secret: whether this site has one."""
        chosen = (
            ("methods", self.methods, recipe.algorithm.name),
            ("tasks", self.tasks, plugins.tag_of(type(recipe.task))),
        )
        for what, served, wanted in chosen:
            if served and wanted not in served:
                raise Sendable(f"its terms serve the {what} {', '.join(served)}, not {wanted!r}")
        if (secret if self.private is None else self.private) and not recipe.federation.private:
            why = "its terms ask for it" if self.private else "it has a secret, and its terms do not say otherwise"
            raise Sendable(f"federation.private = false is not served, because {why}: set federation.private = true")
        if self.approved and (found := recipes.hash_of(recipe)) not in self.approved:
            raise Sendable(f"its terms do not approve of a recipe with the hash {found}")


class Spent(Struct, frozen=True):
    """What the file holds: queries of a day, days since 1970."""

    day: int
    queries: int


class Allowance:
    """The queries that a site makes in a day. What is spent is on the disk before the work begins, and outlasts
    processes and runs; a clock that is set back gives nothing back."""

    def __init__(self, most: int | None, folder: Path):
        self.most, self._path = most, folder / SPENT

    def spend(self, queries: int) -> None:
        """All of them, or none and `Sendable`."""
        if self.most is None:
            return
        with files.locked(self._path):
            before = files.decoded(self._path, Spent) if self._path.exists() else Spent(0, 0)
            day = max(int(time.time() // DAY), before.day)
            spent = before.queries if day == before.day else 0
            if spent + queries > self.most:
                raise Sendable(
                    f"its terms allow {self.most} queries a day, of which {self.most - spent} are left, and this takes "
                    f"{queries}: it takes part again after midnight UTC"
                )
            files.write(self._path, msgspec.json.encode(Spent(day, spent + queries)), durable=True)
