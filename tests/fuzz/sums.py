"""A secure sum of four hosts, of which one is sent, or sends, what is being tried; everything else is as it was."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from fedzero.gatherings.committee import SecureSum
from fedzero.links.contract import Contribution
from fedzero.links.gathering import HostContext, ServerContext, repeatable

HOSTS, NUMBERS = {name: (i,) for i, name in enumerate("abcd")}, 2
RULES = SecureSum(scale=8.0)
Said = dict[str, bytes]


def host(name: str, round: int, opening: bytes, store: dict[str, bytes]) -> Any:
    mine = {client: Contribution(np.ones(NUMBERS, np.float32), None) for client in HOSTS[name]}
    context = HostContext(round, 0, NUMBERS, opening, repeatable(name.encode()), "run", store)
    return RULES.at_host(mine, context)


@cache
def played(round: int) -> tuple[list[Said], list[Said], list[dict[str, dict[str, bytes]]]]:
    """Bodies and answers of the phases of round 0 or 1, and what every host kept before each phase."""
    stores: dict[str, dict[str, bytes]] = {name: {} for name in HOSTS}
    if round:
        stores = {name: dict(kept) for name, kept in played(0)[2][-1].items()}
    server = RULES.at_server(HOSTS, ServerContext(round, 0, NUMBERS, dict.fromkeys(range(4), 1)))
    found: tuple[list[Said], list[Said], list[dict[str, dict[str, bytes]]]] = [], [], []
    bodies: Mapping[str, bytes] = next(server)
    hosts = {name: host(name, round, bodies[name], stores[name]) for name in HOSTS}
    while True:
        found[2].append({name: dict(kept) for name, kept in stores.items()})
        answers = {n: next(hosts[n]) if not found[0] else hosts[n].send(bodies[n]) for n in HOSTS}
        found[0].append(dict(bodies))
        found[1].append(answers)
        try:
            bodies = server.send(answers)
        except StopIteration:
            found[2].append(stores)
            return found


def to_a_host(which: int, data: bytes) -> None:
    """which: of the four phases of round 0 and the two of round 1."""
    round, phase = divmod(which, 4)
    bodies, _, kept = played(round)
    store = dict(kept[0]["b"] if round else kept[1]["b"] if phase else {})
    playing = host("b", round, data if not phase else bodies[0]["b"], store)
    next(playing)
    for number in range(1, phase):
        playing.send(bodies[number]["b"])
    if phase:
        playing.send(data)


def to_the_server(which: int, data: bytes) -> None:
    round, phase = divmod(which, 4)
    _, answers, _ = played(round)
    playing = RULES.at_server(HOSTS, ServerContext(round, 0, NUMBERS, dict.fromkeys(range(4), 1)))
    next(playing)
    for number in range(phase):
        playing.send(answers[number])
    try:
        playing.send(answers[phase] | {"c": data})
    except StopIteration as done:
        assert np.isfinite(done.value.values).all() and done.value.weight in (3.0, 4.0)
