"""Which clients live at which site."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Deal = Mapping[str, tuple[int, ...]]


def dealt(sites: Sequence[str], clients: int, before: Deal | None = None) -> Deal:
    """Clients 0 … N−1 to sites in turn. A site that comes later gets those nobody has, or one of the fullest site's.

    What was dealt stays where it is: a client's data and memory are at its site.
    """
    hands = {site: list(before.get(site, ())) for site in {**before, **dict.fromkeys(sites)}} if before else {}
    if not hands:
        return {site: tuple(range(first, clients, len(sites))) for first, site in enumerate(sites)}
    free = sorted(set(range(clients)) - {client for hand in hands.values() for client in hand})
    for site in [site for site in sites if not hands[site]]:
        if not free:
            fullest = max(hands, key=lambda s: (len(hands[s]), s))
            if len(hands[fullest]) < 2:
                continue  # as many sites as clients: no place
            free = [hands[fullest].pop()]
        hands[site].append(free.pop(0))
    for client in free:
        hands[min(sites, key=lambda s: len(hands[s]))].append(client)
    return {site: tuple(hand) for site, hand in hands.items()}


def home_of(deal: Deal) -> dict[int, str]:
    return {client: site for site, clients in deal.items() for client in clients}


def at_home(deal: Deal, clients: Collection[int]) -> dict[str, tuple[int, ...]]:
    """Some clients, by site; those without a site are left out."""
    found = {site: tuple(c for c in hand if c in clients) for site, hand in deal.items()}
    return {site: some for site, some in found.items() if some}
