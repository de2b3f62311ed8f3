"""Votes where no single voter is believed alone: the most frequent answer wins. A tie decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def leading(ballots: Mapping[str, T]) -> T | None:
    """The most frequent answer; None if no single answer leads."""
    counts = Counter(ballots.values()).most_common(2)
    tied = len(counts) == 2 and counts[0][1] == counts[1][1]
    return None if tied or not counts else counts[0][0]


def of_groups(ballots: Mapping[int, T], voters: Mapping[int, str]) -> dict[str, T]:
    """One ballot per voter, from the ballots of its clients; a voter whose clients are tied has none."""
    groups: dict[str, dict[str, T]] = {}
    for client, ballot in ballots.items():
        groups.setdefault(voters[client], {})[str(client)] = ballot
    found = {voter: leading(mine) for voter, mine in groups.items()}
    return {voter: ballot for voter, ballot in found.items() if ballot is not None}


def sides(ballots: Mapping[str, T], shown: str = "{}") -> str:
    """north, west: A; south: B"""
    said: dict[str, list[str]] = {}
    for voter, ballot in sorted(ballots.items()):
        text = ballot.hex() if isinstance(ballot, bytes) else str(ballot)
        said.setdefault(shown.format(text), []).append(voter)
    return "; ".join(f"{', '.join(voters)}: {text}" for text, voters in said.items())
