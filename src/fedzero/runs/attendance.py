"""Who answered and when, what was refused and why, from the rounds of a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedzero.ledger.records import Round
from fedzero.ledger.store import Entry
from fedzero.report.history import Party

MOST = 40
"""Parties that are listed; those with refusals first, then those that have been silent for longest."""


@dataclass
class _Client:
    turns: int = 0
    answered: int | None = None
    at: float | None = None
    refused: int = 0
    reason: str = ""
    reason_round: int = -1


def parties(
    entries: Iterable[Entry], clients: int, sites: Mapping[str, Sequence[int]] | None = None
) -> tuple[Party, ...]:
    """Sites with the clients they have, or clients where there are no sites.

    The time of an answer is that at which its round was on disk.
    """
    found: dict[int, _Client] = {}
    for entry in entries:
        if not isinstance(record := entry.record, Round):
            continue
        refused = dict(record.refused)
        for client in set(record.cohort):
            one = found.setdefault(client, _Client())
            one.turns += 1
            if client in refused:
                one.refused, one.reason, one.reason_round = one.refused + 1, refused[client], record.round
            else:
                one.answered, one.at = record.round, entry.at
    groups = sites or {f"client {client}": [client] for client in range(min(clients, 10_000))}
    listed = [_party(name, mine, found) for name, mine in groups.items()]
    silent = sorted(listed, key=lambda p: (-p.refused, -1 if p.answered is None else p.answered))
    shown = set(silent[:MOST])
    return tuple(party for party in listed if party in shown)


def _party(name: str, clients: Sequence[int], found: Mapping[int, _Client]) -> Party:
    mine = [found[client] for client in clients if client in found]
    last = max((c for c in mine if c.answered is not None), key=lambda c: c.answered or 0, default=None)
    worst = max((c for c in mine if c.refused), key=lambda c: c.reason_round, default=None)
    return Party(
        name=name,
        clients=len(clients),
        turns=sum(c.turns for c in mine),
        answered=None if last is None else last.answered,
        at=None if last is None else last.at,
        refused=sum(c.refused for c in mine),
        reason="" if worst is None else worst.reason,
    )


def reasons(rounds: Iterable[Round]) -> tuple[tuple[str, int], ...]:
    """Why replies were refused, and how often, most frequent first."""
    return tuple(Counter(why for record in rounds for _, why in record.refused).most_common())
