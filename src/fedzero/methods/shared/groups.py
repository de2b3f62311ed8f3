"""Steps made of the replies to questions of several rounds, see `Stepped`.

    c_a[p] = (1/K) Σ_{j asked in a} w_j g_j[p],                 K replies, w_j their discounts
    x_{v+1} = x_v − (η_v/P) Σ_a Σ_p c_a[p] z(a, p)

A reply is evaluated at the model of the round in which it was asked for, along directions of that round, independent of
the step. So a method can take such steps if neither its directions nor the use of its numbers depend on the state;
otherwise `Traits.reads_state` gives the reason.
"""

from __future__ import annotations

import numpy as np

from fedzero.directions.terms import F32
from fedzero.methods.contract import StepInputs, Traits
from fedzero.model.updates import Group, Stepped, pack


def why_one_round(traits: Traits, exchanges: int) -> str:
    """The reason why a method's steps need replies to the questions of one round; empty: they do not."""
    refusals = (
        (not traits.seeded, "its updates are numbers of the model, which belong to no round's directions"),
        (exchanges > 1, "its rounds have several exchanges, in which clients answer each other"),
        (traits.unanimous, "its rounds need the answers of all clients"),
        (traits.remembers, "its clients keep a memory, which follows the last round that counted"),
        (bool(traits.reads_state), traits.reads_state),
    )
    return next((why for holds, why in refusals if holds), "")


def summed(gathered: StepInputs) -> Stepped:
    """c_a of every round, for methods whose clients share directions; summed in the order of client numbers."""
    groups = []
    for asked, clients in _by_round(gathered):
        total = np.zeros(len(gathered.contributions[clients[0]]))
        for client in clients:
            total += _weight(gathered, client) * gathered.contributions[client].astype(np.float64)
        groups.append(Group(asked, pack((total / _turns(gathered)).astype(np.float32))))
    return Stepped(gathered.round, tuple(groups))


def listed(gathered: StepInputs) -> Stepped:
    """The weighted scalars of all clients, for methods whose clients have their own directions."""
    groups = []
    for asked, clients in _by_round(gathered):
        rows = [_scaled(gathered.contributions[c], _weight(gathered, c) / _turns(gathered)) for c in clients]
        groups.append(Group(asked, pack(np.concatenate(rows)), tuple(clients)))
    return Stepped(gathered.round, tuple(groups))


def _scaled(values: F32, factor: float) -> F32:
    return (values.astype(np.float64) * factor).astype(np.float32)


def _by_round(gathered: StepInputs) -> list[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {}
    for client in sorted(gathered.contributions):
        found.setdefault(gathered.asked.get(client, gathered.round), []).append(client)
    return sorted(found.items())


def _weight(gathered: StepInputs, client: int) -> float:
    return gathered.weights[client] * gathered.discounts.get(client, 1.0)


def _turns(gathered: StepInputs) -> int:
    return sum(gathered.weights[client] for client in gathered.contributions)
