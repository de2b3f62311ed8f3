"""The terms of a site: the recipes that it serves and its limits, in a section of its settings that never leaves it.

    [terms]                                   local/fedzero.toml of a kit
    methods = ["decomfl"]
    approved = ["3b0c…"]                      `fedzero recipe-hash RECIPE` prints it
    queries_per_day = 20000

Terms are checked before data or models are touched, and a refusal is one sentence, here and at the server. The default
limits allow every packaged recipe, even with all its clients at one site.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fedzero import plugins
from fedzero.deploy.site.asked import Asked
from fedzero.errors import FedzeroError, Sendable
from fedzero.methods.contract import Cost, Method, Scale
from fedzero.model.numbers import Natural, PositiveInt
from fedzero.model.schedules import Count, most
from fedzero.recipe import recipe as recipes
from fedzero.recipe.recipe import Recipe


class Terms(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The terms of a site. An empty list is no restriction, and a limit of 0 is no limit."""

    methods: tuple[str, ...] = ()
    """Methods that are served, as `algorithm.kind` has them."""
    tasks: tuple[str, ...] = ()
    """Tasks that are served, as `task.kind` has them."""
    private: bool | None = None
    """Whether a recipe must have `federation.private = true`; default: where this site has a secret."""
    approved: tuple[Annotated[str, Meta(pattern="^[0-9a-f]{64}$")], ...] = ()
    """Hashes of the recipes that are served, each from `fedzero recipe-hash RECIPE`."""
    queries_per_day: Natural = 100_000
    """Evaluations that are made in 24 hours at most, over all clients here and all runs; 0: no limit."""
    least_batch: PositiveInt = 8
    """Rows of an evaluation at least: of a recipe's `batch`, and of every client here."""
    most_directions: Natural = 256
    """Directions of a local step at most (P); 0: no limit."""
    most_local_steps: Natural = 100
    """Local steps of a turn at most (K); 0: no limit."""
    projections: Natural = 2_000
    """Directions that a client is asked about at one and the same model at most, over all rounds and runs; 0: no
    limit."""
    directions_per_run: Natural = 30_000
    """Directions that a run asks about a row of this site's data at most, whatever the models are; 0: no limit."""
    directions_per_day: Natural = 30_000
    """Directions that are asked about a row of this site's data in 24 hours at most, over all models, recipes and runs;
    0: no limit."""
    runs_kept: PositiveInt = 8
    """Runs that are kept at most, besides those in progress; the least recently used are removed first."""
    bytes_kept: PositiveInt = 16 << 30
    """Bytes that are kept of these runs at most, and of the answers and memories of a run in progress."""

    def check(self, recipe: Recipe, secret: bool) -> None:
        """Refuse a recipe that is not served. secret: whether this site has one."""
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
        if self.approved and (found := recipes.approval_of(recipe)) not in self.approved:
            raise Sendable(f"its terms do not approve of a recipe with the hash {found}")
        self._check_size(recipe)

    def _check_size(self, recipe: Recipe) -> None:
        """Refuse a recipe that asks for fewer rows or more directions than the limits allow."""
        batch, K, P = getattr(recipe.task, "batch", None), *_steps_of(recipe.algorithm)
        if isinstance(batch, int) and batch < self.least_batch:
            raise Sendable(_beyond("least_batch", self.least_batch, f"task.batch = {batch}", batch))
        testing = getattr(recipe.task, "testing", None)  # it applies to evaluations of the model, too
        if isinstance(testing, int) and testing < self.least_batch:
            raise Sendable(_beyond("least_batch", self.least_batch, f"task.testing = {testing}", testing))
        limits = (
            ("most_directions", self.most_directions, P, f"algorithm.directions = {P}"),
            ("most_local_steps", self.most_local_steps, K, f"algorithm.local_steps = {K}"),
            ("projections", self.projections, K * P, f"a turn has {K * P} (local_steps × directions)"),
        )
        for name, limit, wanted, said in limits:
            if limit and wanted > limit:
                raise Sendable(_beyond(name, limit, said, wanted))

    def check_turn(self, method: Method, cost: Cost) -> None:
        """Refuse a turn of too many evaluations. For methods without a field for their directions this is known only
        now, and for methods whose directions grow with the rounds only in the round itself. A central difference takes
        two evaluations per direction, a forward difference one per direction and one more per step."""
        total = cost.queries + cost.first_queries
        K, _ = _steps_of(method)
        limit = 2 * (self.most_directions + 1) * K
        if self.most_directions and total > limit:
            said = f"a turn takes {total:,} evaluations where they allow {limit:,}"
            raise Sendable(_beyond("most_directions", self.most_directions, said, -(-total // (2 * K))))

    def check_rows(self, client: int, rows: int | None) -> None:
        """Refuse a client with fewer rows than an evaluation must have, whose single rows would weigh too much. The
        number of its rows is told to nobody."""
        if rows is not None and rows < self.least_batch:
            raise Sendable(
                f"its terms ask for least_batch = {self.least_batch}, and client {client} has fewer rows here: use "
                "fewer clients, or the site allows it, `fedzero join KIT --term least_batch=1`"
            )

    def projections_of(self, method: Method, cost: Cost) -> int:
        """The directions of a turn; if a method has no such field, every evaluation counts as one."""
        K, P = _steps_of(method)
        return K * P or cost.queries

    def check_projections(self, before: int, more: int) -> None:
        if self.projections and before + more > self.projections:
            raise Sendable(
                _beyond("projections", self.projections, f"at this model it was asked about {before:,}, and this is "
                        f"{more:,} more", before + more)
            )  # fmt: skip

    def directions_of(self, method: Method, cost: Cost) -> int:
        """The directions of a turn. Where the number follows a schedule, its field has the most of all rounds."""
        return min(self.projections_of(method, cost), cost.queries + cost.first_queries)

    def check_directions(self, before: Asked, part: int, more: int) -> None:
        """Refuse directions that are too many for the data set, whatever the model is."""
        for name, limit, had, with_more in (
            ("directions_per_run", self.directions_per_run, before.of_run(part), before.of_run(part) + more),
            ("directions_per_day", self.directions_per_day, before.of_day(part), before.of_day(part, more)),
        ):
            if limit and with_more > limit:
                of = "this run" if name == "directions_per_run" else "runs in 24 hours"
                said = f"{of} asked about {had:,} directions of this data, and this is {more:,} more"
                raise Sendable(_beyond(name, limit, said, with_more))

    def check_room(self, kept: int) -> None:
        if kept > self.bytes_kept:
            said = f"what its clients answered and remember takes more, {kept:,} so far"
            raise Sendable(_beyond("bytes_kept", self.bytes_kept, said, 2 * kept))

    def exposure(self) -> str:
        """A sentence about everything that a server can ask of this site under these terms."""
        often = (
            f"at most {self.queries_per_day:,} evaluations a day"
            if self.queries_per_day
            else "as many evaluations as it likes"
        )
        rows = f"each of at least {self.least_batch} rows" if self.least_batch > 1 else "of single rows, too"
        if self.approved:
            which = f"in {len(self.approved)} recipes that you approved" if len(self.approved) > 1 else (
                "in the recipe that you approved"
            )  # fmt: skip
        else:
            of = (("with the methods", self.methods), ("of the tasks", self.tasks))
            served = [f"{what} {', '.join(names)}" for what, names in of if names]
            which = " ".join(["in any recipe", *served, "(--approve HASH: only in those that you approve)"])
        learns = "it learns one number per evaluation"
        if gradients := _of_gradients(self.methods):
            learns += f", with {', '.join(gradients)} a whole update per turn"
        return f"the server can ask for {often}, {rows}, {which}; {learns}"


UNLIMITED = Terms(
    queries_per_day=0,
    least_batch=1,
    most_directions=0,
    most_local_steps=0,
    projections=0,
    directions_per_run=0,
    directions_per_day=0,
)
"""For sites that belong to the owner of the server."""


def with_options(options: Sequence[str]) -> dict[str, Any]:
    """The values of limits from options `--term NAME=VALUE`."""
    limits = [field.name for field in msgspec.structs.fields(Terms) if isinstance(field.default, int)]
    values: dict[str, Any] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in limits or not value.isdecimal():
            raise FedzeroError(f"--term {option}: write it as NAME=NUMBER, with one of {', '.join(limits)}")
        values[name] = int(value)
    return values


def _beyond(name: str, limit: int, wanted: str, allow: int) -> str:
    return (
        f"its terms have {name} = {limit:,}, and {wanted}: change the recipe, or the site allows it, "
        f"`fedzero join KIT --term {name}={allow}`"
    )


def _steps_of(method: Method) -> tuple[int, int]:
    """(K, P) from a method's fields; P = 0: it has no such field."""
    K, P = getattr(method, "local_steps", 1), getattr(method, "directions", 0)
    return K if isinstance(K, int) else 1, most(P) if isinstance(P, int | Count) else 0


def _of_gradients(methods: tuple[str, ...]) -> list[str]:
    """The first-order methods among the served ones (empty: among all that are installed)."""
    found = []
    for name in methods or sorted(plugins.kinds("methods")):
        with suppress(FedzeroError, msgspec.ValidationError, TypeError, ValueError):
            made = recipes.method({"kind": name, "rate": 0.01})
            if made.traits(Scale(1, 1)).first_order:
                found.append(name)
    return found
