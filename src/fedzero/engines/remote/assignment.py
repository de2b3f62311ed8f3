"""Which clients are at which site."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from fedzero.model import files

SITES = "sites.json"
"""In the folder of a run: its `SiteAssignment`."""

Assignment = Mapping[str, tuple[int, ...]]


def assign(sites: Sequence[str], clients: int, before: Assignment | None = None) -> dict[str, tuple[int, ...]]:
    """Assign clients 0 … N−1 to sites in turn. A site that is added later gets clients without a site, or one client of
    the site with the most clients.

    Clients that are assigned already stay where they are: a client's data and memory are at its site.
    """
    if not before:
        return {site: tuple(range(first, clients, len(sites))) for first, site in enumerate(sites)}
    assigned = {site: list(before.get(site, ())) for site in {**before, **dict.fromkeys(sites)}}
    free = sorted(set(range(clients)) - {client for mine in assigned.values() for client in mine})
    for site in [site for site in sites if not assigned[site]]:
        if not free:
            fullest = max(assigned, key=lambda s: (len(assigned[s]), s))
            if len(assigned[fullest]) < 2:
                continue  # as many sites as clients
            free = [assigned[fullest].pop()]
        assigned[site].append(free.pop(0))
    for client in free:
        assigned[min(sites, key=lambda s: len(assigned[s]))].append(client)
    return {site: tuple(mine) for site, mine in assigned.items()}


def at_sites(assignment: Assignment, clients: Collection[int]) -> dict[str, tuple[int, ...]]:
    """Group clients by site; clients without a site are left out."""
    found = {site: tuple(c for c in mine if c in clients) for site, mine in assignment.items()}
    return {site: some for site, some in found.items() if some}


class SiteAssignment(Struct, frozen=True):
    """The content of `sites.json`: the run's unique name, and which clients are at which site."""

    run: str
    clients: dict[str, tuple[int, ...]]

    def write(self, folder: Path) -> None:
        files.write(folder / SITES, msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @staticmethod
    def of(folder: Path) -> SiteAssignment | None:
        return files.decoded(folder / SITES, SiteAssignment) if (folder / SITES).exists() else None
