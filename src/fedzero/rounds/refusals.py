"""Sentences about clients that are left out of rounds, or shortened: one sentence for all clients with the same reason,
not repeated in every round."""

from __future__ import annotations

from collections.abc import Collection

from fedzero.ledger.records import Round

SHOWN = 8
"""The most clients or sites that are listed by name."""
OFTEN = 10
"""A client is named after it was shortened in so many turns in a row; three in a row happen to honest clients."""
AT_SITE = "its site"
"""The beginning of a reason that holds for all clients of a site."""


def listed(things: Collection[str] | Collection[int]) -> str:
    """north, south; 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"""
    first = ", ".join(map(str, sorted(things)[:SHOWN]))
    return f"{first} and {len(things) - SHOWN} more" if len(things) > SHOWN else first


def named(clients: Collection[int]) -> str:
    """client 3; clients 3, 4, 5; clients 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"""
    return f"client{'s' * (len(clients) > 1)} {listed(clients)}"


class Refusals:
    """The new refusals of a round; a reason is repeated only after its client has counted in between.

    of_sites: include reasons that concern a whole site; an engine with sites reports these itself, as they happen.
    """

    def __init__(self, of_sites: bool = True):
        self._of_sites = of_sites
        self._said: dict[int, str] = {}
        self._shortened: dict[int, int] = {}

    def news(self, record: Round) -> list[str]:
        refused = dict(record.refused)
        fresh: dict[str, list[int]] = {}
        for client, reason in refused.items():
            if self._said.get(client) != reason and (self._of_sites or AT_SITE not in reason):
                fresh.setdefault(reason, []).append(client)
        for client in record.cohort:
            self._said.pop(client, None)
        self._said |= refused
        lines = [f"round {record.round}: {named(clients)} {reason}" for reason, clients in fresh.items()]
        return lines + self._often(record)

    def _often(self, record: Round) -> list[str]:
        bounded = record.bounded or ()
        for client in set(record.cohort) - dict(record.refused).keys():
            self._shortened[client] = self._shortened.get(client, 0) + 1 if client in bounded else 0
        again = [client for client in bounded if self._shortened.get(client) == OFTEN]
        if not again:
            return []
        what = (
            f"sent numbers far larger than the others', or a loss far from theirs, in {OFTEN} turns one after the "
            "other: see federation.bound"
        )
        return [f"round {record.round}: {named(again)} {what}"]
