"""What a recipe's rule does not withstand, said before a run begins.

A rule withstands f attackers among the n contributions of a round. Of N clients, A attack; a cohort of n drawn at
random has X attackers, hypergeometric (binomial with replacement), and nothing keeps X ≤ f:

    P(X > f) = Σ_{k > f} C(A, k) C(N − A, n − k) / C(N, n)        in some of R rounds: 1 − (1 − P)^R

A is what the recipe assumes: `engine.attack`, or the largest `fraction` of its rules. And within f, a rule that picks
contributions by how near they are can be led by attackers who know it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fedzero.links import Chain, Link
from fedzero.methods.contract import Federation
from fedzero.recipe.recipe import Recipe

TOLD = 1e-3
"""A probability of less, over a whole run, is not worth a line."""
_PLACE = "(docs/results/robustness.md; 82.5 % where nobody attacks and the mean counts)"
ADAPTIVE = {
    "krum": f"20 % of the clients leave 8.3 % accuracy on MNIST, where the median keeps 71.6 % {_PLACE}",
    "multi-krum": f"40 % of the clients leave 8.4 % accuracy on MNIST, where nnm + median keeps 33.1 % {_PLACE}",
    "bound": f"20 % of the clients leave 67.9 % accuracy on MNIST, 40 % leave 10.0 % {_PLACE}",
}
"""What was measured of adaptive attackers, by `bench/methods/coalitions.py`."""


def more_than(f: int, attackers: int, federation: Federation) -> float:
    """P(X > f) of one round."""
    clients, cohort = federation.clients, federation.cohort
    if federation.replacement:
        share = attackers / clients
        some = range(f + 1, cohort + 1)
        return math.fsum(math.comb(cohort, k) * share**k * (1 - share) ** (cohort - k) for k in some)
    some = range(f + 1, min(attackers, cohort) + 1)
    return sum(math.comb(attackers, k) * math.comb(clients - attackers, cohort - k) for k in some) / math.comb(
        clients, cohort
    )


def in_some_round(p: float, rounds: int) -> float:
    """1 − (1 − p)^rounds."""
    return 1.0 if p >= 1 else -math.expm1(rounds * math.log1p(-p))


def warnings(recipe: Recipe, real: bool = False) -> list[str]:
    """Sentences about the recipe's rule. real: at sites, where nobody knows who attacks."""
    return [*_by_chance(recipe), *_by_knowledge(recipe, real)]


def _rules(recipe: Recipe) -> Sequence[Link]:
    chain = Chain(recipe.filters)
    return [*chain.server_links, *([] if chain.combiner is None else [chain.combiner])]


def withstood(recipe: Recipe, count: int) -> int | None:
    """f of the recipe's rules among so many contributions; None: it has none, or nobody knows."""
    found = [f for rule in _rules(recipe) if (f := rule.withstands(count)) is not None]
    if found:
        return min(found)
    return max(0, (count - 1) // 2) if recipe.federation.bound else None


def assumed(recipe: Recipe) -> int | None:
    """How many of all clients attack, as the recipe says; None: it does not."""
    clients = recipe.federation.clients
    if recipe.engine.attack is not None:
        return round(recipe.engine.attack.fraction * clients)
    shares = [share for rule in _rules(recipe) if (share := getattr(rule, "fraction", None)) is not None]
    return max(1, int(max(shares) * clients)) if shares else None


def _by_chance(recipe: Recipe) -> Iterator[str]:
    federation, attackers = recipe.federation, assumed(recipe)
    f = withstood(recipe, federation.cohort)
    if attackers is None or f is None:
        return
    p = more_than(f, attackers, federation)
    ever = in_some_round(p, recipe.rounds)
    if ever < TOLD:
        return
    what = " + ".join(rule.name for rule in _rules(recipe)) or f"federation.bound = {federation.bound:g}"
    yield (
        f"{what} withstands {f} attackers among the {federation.cohort} clients of a round; if {attackers} of the "
        f"{federation.clients} clients attack, a round has more with a probability of {_percent(p)}, and some of "
        f"{recipe.rounds} rounds with {_percent(ever)}: raise federation.cohort, or a rule's `fraction` above the "
        "share of attackers that you expect"
    )


def _by_knowledge(recipe: Recipe, real: bool) -> Iterator[str]:
    names = {rule.name for rule in _rules(recipe)}
    for name in ("krum", "multi-krum"):
        if name in names:
            yield f"{name} picks contributions by distance, and attackers who know it are picked: {ADAPTIVE[name]}"
    alone = not names - {"server-clip"} and recipe.federation.bound > 0
    if alone and (real or recipe.engine.attack is not None):
        yield f"federation.bound bounds single clients, and a coalition less well: {ADAPTIVE['bound']}"


def _percent(p: float) -> str:
    return f"{100 * p:.3g} %"
