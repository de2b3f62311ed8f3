"""Which clients live at which site."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Assignment = Mapping[str, tuple[int, ...]]


def assign(sites: Sequence[str], clients: int, before: Assignment | None = None) -> Assignment:
    """Clients 0 … N−1 to sites in turn. A site that comes later gets those nobody has, or one of the fullest site's.

    What was assigned stays where it is: a client's data and memory are at its site.
    """
    assigned = {site: list(before.get(site, ())) for site in {**before, **dict.fromkeys(sites)}} if before else {}
    if not assigned:
        return {site: tuple(range(first, clients, len(sites))) for first, site in enumerate(sites)}
    free = sorted(set(range(clients)) - {client for mine in assigned.values() for client in mine})
    for site in [site for site in sites if not assigned[site]]:
        if not free:
            fullest = max(assigned, key=lambda s: (len(assigned[s]), s))
            if len(assigned[fullest]) < 2:
                continue  # as many sites as clients: no place
            free = [assigned[fullest].pop()]
        assigned[site].append(free.pop(0))
    for client in free:
        assigned[min(sites, key=lambda s: len(assigned[s]))].append(client)
    return {site: tuple(mine) for site, mine in assigned.items()}


def site_of(assignment: Assignment) -> dict[int, str]:
    return {client: site for site, clients in assignment.items() for client in clients}


def at_sites(assignment: Assignment, clients: Collection[int]) -> dict[str, tuple[int, ...]]:
    """Some clients, by site; those without a site are left out."""
    found = {site: tuple(c for c in mine if c in clients) for site, mine in assignment.items()}
    return {site: some for site, some in found.items() if some}
