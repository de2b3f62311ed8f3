"""Recipe, base model, model size and the clients' secret: all sites of a run must agree on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from msgspec import structs

from fedzero.engines.remote.messages import Prepare, Prepared, PrepareExtended
from fedzero.errors import FedzeroError
from fedzero.model.identity import Identity
from fedzero.recipe import recipe as recipes
from fedzero.recipe.in_force import extended_by
from fedzero.recipe.recipe import Recipe
from fedzero.rounds import votes


def recipe_in(order: Prepare) -> Recipe:
    """The recipe in force of a run, with the checks of one that somebody sent."""
    return extended_by(
        recipes.received(order.recipe, order.needs), order if isinstance(order, PrepareExtended) else None
    )


def basis(found: Prepared) -> tuple[Identity, int, str | None]:
    return found.identity, found.parameters, found.secret


def common(found: Mapping[str, Prepared], fits: Callable[[Prepared], bool]) -> Prepared:
    """The start of a run: the one that is known already, or the one that most sites have; a tie decides nothing. Its
    facts are the facts that more than half of these sites have."""
    found = {site: prepared for site, prepared in found.items() if fits(prepared)} or found
    ballots = {site: basis(prepared) for site, prepared in found.items()}
    right = votes.leading(ballots)
    if right is None:
        sides = votes.sides({site: base for site, (base, _, _) in ballots.items()}, "model {}")
        raise FedzeroError(
            f"the sites do not start from the same model and secret, and they are tied ({sides}): "
            "give all of them the same base model, secret and release"
        )
    having = [prepared for prepared in found.values() if basis(prepared) == right]
    counts = Counter(fact for prepared in having for fact in prepared.facts.items())
    return structs.replace(having[0], facts={n: v for (n, v), count in counts.items() if 2 * count > len(having)})


def differs(found: Prepared, right: Prepared) -> str:
    """How a site differs from the others; empty if it does not."""
    if found.base == right.base and not found.sha256:
        return "does not say the SHA-256 of its model: install the release of fedzero there that the others have"
    if found.identity != right.identity:
        return f"starts from model {found.identity}, not {right.identity}"
    return "" if basis(found) == basis(right) else "has another secret or another size of the model than most"
