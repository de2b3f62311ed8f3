"""What a round costs a data set, and what a site allows: differential privacy over runs.

A *charge* is a round that was begun, with what the accountant has to know about its noise. Charges of one data set add
up as Rényi divergences (`privacy.journal.Filter`), so recipes may be chosen with knowledge of the answers before:
another recipe, a warm start and a trial of tuning are further charges. The order that is best for the first of them is
one of those that count; the others are always the same, or a first round that costs nothing could choose an order with
which no other recipe fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from fedzero.errors import FedzeroError, Sendable
from fedzero.privacy import renyi
from fedzero.privacy.journal import Filter
from fedzero.privacy.mechanism import Mechanism
from fedzero.privacy.renyi import Curve
from fedzero.recipe.recipe import Recipe

Adversary = Literal["readers", "server"]
Unit = Literal["client", "example", "person"]
ASSUMED = 8.0
"""ε for which the order is chosen, where a site sets no limit."""
OTHERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, 128)
"""Orders that count beside that of the first charge."""


class Said(NamedTuple):
    """How a sentence names a key of the policy, and what it advises at its end."""

    has: str
    advice: str


SETTINGS = Said("its settings have privacy.", "or the site allows more, `epsilon` in [privacy] of its settings")


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[privacy]` of a site's settings: what may be spent on each data set."""

    epsilon: Annotated[float, Meta(gt=0)] | None = None
    """ε of all runs together at most; without it there is no limit, and what is spent is counted."""
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-6
    """δ of all runs together."""
    unit: Unit | None = None
    """What has to be protected: recipes with another unit are refused."""
    adversary: Adversary = "readers"
    """From whom: readers of model and ledger, or the server as well, so that hosts have to add noise."""
    require: bool = False
    """Whether recipes without [privacy] are refused."""
    units: Annotated[int, Meta(ge=1)] | None = None
    """Recipes for fewer units are refused: a number that may be told, at least as large as that of units here."""
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    """A turn takes so long at least, so that its time does not show how many clients or rows took part."""

    def order(self, charge: Charge) -> int:
        """The order of divergences in which most of these rounds fit into the budget."""
        return _order(self, charge)

    def filter(self, order: int) -> Filter:
        """What adds up the charges of a data set; order: of the first of them."""
        return Filter(self.epsilon or ASSUMED, self.delta, order, OTHERS)

    def check(self) -> None:
        try:
            self.filter(renyi.WHOLE[-1])
        except FedzeroError as error:
            raise FedzeroError(f"privacy.epsilon = {self.epsilon} of this site is too small: {error}") from None

    def check_recipe(self, recipe: Recipe, said: Said = SETTINGS) -> None:
        if not recipe.privacy:
            if self.require:
                raise Sendable(f"{said.has}require = true, and the recipe has no [privacy]: add it")
            return
        unit = recipe.privacy.unit
        if self.unit is not None and unit != self.unit:
            raise Sendable(f"{said.has}unit = {self.unit!r}, and the recipe has {unit!r}: change it")
        if self.units is not None and recipe.privacy.n(recipe.federation) < self.units:
            raise Sendable(f"{said.has}units = {self.units:,}, more than privacy.population: raise it")
        if self.adversary == "server" and recipe.privacy.noise == "central":
            raise Sendable(
                f"{said.has}adversary = 'server', and the server of this recipe sees sums without "
                "noise: set privacy.noise = 'distributed' or 'local'"
            )


class Charge(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A round. sigma: noise multiplier; q: probability of a unit, for readers and as the server sees it; honest: h,
    hosts that add noise, of this variance in integers, to `count` numbers; 0: the server adds Gaussian noise. delta:
    of the recipe. warm: the base that the recipe names."""

    recipe: str
    unit: Unit
    adjacency: Literal["add or remove one"] = "add or remove one"
    warm: str = ""
    delta: float
    sigma: float
    q: tuple[float, float]
    honest: int = 0
    variance: float = 0.0
    count: int = 0
    allowance: int = 0

    def curve(self, adversary: Adversary, steps: int) -> Curve:
        """Divergences of so many rounds. `Sendable`, if this adversary is not bounded."""
        q = self.q[adversary == "server"]
        if self.honest:
            step = renyi.sum_of_discrete_gaussians(self.variance, self.honest, self.count, self.allowance)
            return renyi.subsampled(step, q, steps)
        if adversary == "server":
            raise Sendable("the server adds the noise of this recipe: nothing bounds what it learns")
        return renyi.subsampled(renyi.gaussian(self.sigma), q, steps)


@lru_cache(maxsize=64)
def _order(policy: Policy, charge: Charge) -> int:
    epsilon, step = policy.epsilon or ASSUMED, charge.curve(policy.adversary, 1)

    def rounds(order: int) -> float:
        return (epsilon - renyi.converted(order, policy.delta)) / step(order)

    best: int = max(renyi.WHOLE, key=rounds)
    return best


def charge_of(recipe: Recipe, recipe_hash: str, mechanism: Mechanism) -> Charge:
    """The charge of every round of a recipe with [privacy], whose σ is known."""
    privacy = recipe.privacy
    assert privacy and isinstance(privacy.sigma, float)
    grid, honest = mechanism.grid, mechanism.honest
    noise = (
        {
            "honest": honest,
            "variance": float(grid.noise(privacy.sigma, honest)) ** 2,
            "count": grid.count,
            "allowance": grid.allowance,
        }
        if honest
        else {}
    )
    known = mechanism.q if mechanism.secret else 1.0
    said = {"recipe": recipe_hash, "unit": privacy.unit, "warm": str(recipe.base or ""), "delta": mechanism.delta}
    return msgspec.convert({**said, "sigma": privacy.sigma, "q": (mechanism.q, known), **noise}, Charge)


def epsilon_of(spent: Iterable[tuple[Charge, int]], policy: Policy, order: int) -> float:
    """ε of charges, each so many times, at δ of the policy."""
    return policy.filter(order).epsilon_of([charge.curve(policy.adversary, steps) for charge, steps in spent])


def check_room(
    spent: Iterable[tuple[Charge, int]], further: Charge, steps: int, policy: Policy, order: int, said: Said = SETTINGS
) -> None:
    """Refuse rounds that would exceed the budget of a data set."""
    kept = list(spent)
    for other, _ in kept:
        if other.unit != further.unit:
            raise Sendable(
                f"this data was asked about with privacy.unit = {other.unit!r} before, and both do not add up: use it, "
                f"not {further.unit!r}"
            )
    more = further.curve(policy.adversary, steps)
    if policy.epsilon is None:
        return
    curves = [charge.curve(policy.adversary, count) for charge, count in kept]
    if not policy.filter(order).admits(curves, more):
        then = epsilon_of([*kept, (further, steps)], policy, order)
        raise Sendable(
            f"{said.has}epsilon = {policy.epsilon:g} (delta = {policy.delta:g}) for this data, and "
            f"with {steps} more of these rounds it is {then:.4g}: make fewer rounds or add more noise, {said.advice}"
        )
