"""What all sites of a run must have in common: base model, its size, the clients' secret."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from msgspec import structs

from fedzero.engines.remote.messages import Prepared
from fedzero.errors import FedzeroError
from fedzero.model.identity import Identity
from fedzero.rounds import votes


def basis(found: Prepared) -> tuple[Identity, int, str | None]:
    return found.identity, found.parameters, found.secret


def common(found: Mapping[str, Prepared], fits: Callable[[Prepared], bool]) -> Prepared:
    """What a run starts from: what is known already, or what most sites say; a tie decides nothing. Facts are those
    that more than half of these sites have."""
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
    """In what a site does not fit; empty where it does."""
    if found.base == right.base and not found.sha256:
        return "does not say the SHA-256 of its model: install the release of fedzero there that the others have"
    if found.identity != right.identity:
        return f"starts from model {found.identity}, not {right.identity}"
    return "" if basis(found) == basis(right) else "has another secret or another size of the model than most"
