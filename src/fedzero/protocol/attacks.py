"""Clients that attack, in simulations: a share of the clients sends other numbers than its own.

    [engine]
    attack = { kind = "sign-flip", fraction = 0.2 }

The attackers follow from the run's keys. They do their work first and then change their replies, so they keep the rules
of the protocol (model digest, queries, the filters of the chain): other replies would be refused. The change happens
between clients and server (`protocol.altered.Altered`), where all replies of an exchange are together, because some
attackers need the replies of the others. Neither methods nor the server know of it, and it does not exist at sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.links import Chain
from fedzero.links.chain import Sent
from fedzero.model.numbers import Positive, PositiveFraction, PositiveInt
from fedzero.model.value import TaggedConfig
from fedzero.oracles import Shards
from fedzero.protocol.altered import Pass
from fedzero.protocol.coalition import Seen, most_harmful, within
from fedzero.protocol.engine import Arrival
from fedzero.protocol.messages import decode_reply, encode_reply

Wired = Callable[[int], Sequence[int]]
Rule = Callable[[int, Mapping[int, F32]], F32]
"""(round, contributions by client) → the vector into which the server combines them"""


class Attacking(TaggedConfig):
    """The contract of attacks."""

    fraction: PositiveFraction = 0.2
    """share of the clients that attack"""

    def who(self, keys: Keys, clients: int) -> frozenset[int]:
        """The attackers, a function of the run's keys."""
        chosen = keys.generator("attack").choice(clients, round(self.fraction * clients), replace=False)
        return frozenset(int(client) for client in chosen)

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        """The values that an attacker sends in place of `own`. honest: the values of all honest clients."""
        return own

    def together(self, seen: Seen) -> F32 | None:
        """The common values of all attackers of the round; None: each attacker sends its own."""
        return None

    def check(self, method: str, comparable: bool) -> None:
        """Refuse a method whose numbers the attackers cannot read."""

    def data(self, shards: Shards, who: frozenset[int]) -> Shards:
        """The data with which clients work."""
        return shards


class SignFlip(Attacking, tag="sign-flip"):
    """The opposite values: v ← −factor · v."""

    factor: Positive = 1.0
    """how many times as long"""

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        return within(own * -np.float64(self.factor))


class Scaling(Attacking, tag="scaling"):
    """Its own numbers, but far larger: v ← factor · v."""

    factor: Positive = 100.0
    """how many times as long"""

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        return within(own * np.float64(self.factor))


class Constant(Attacking, tag="constant"):
    """The same number everywhere: v ← (value, value, …)."""

    value: float = 100.0

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        return np.full_like(own, self.value)


class LittleIsEnough(Attacking, tag="little-is-enough"):
    """Just within the spread of the others (Baruch et al., NeurIPS 2019): v_j ← mean_j − z · deviation_j.

    Mean and deviation are taken over all honest contributions of the round: the attackers know them, and all send the
    same values. The paper's own z is Φ⁻¹ of the share of honest clients that may be farther out than the attackers
    while these keep a majority: 0 for 2 of 10 and 0.3 for 12 of 50; its experiments use 1.5.
    """

    z: Positive = 1.5
    """how many deviations from the mean"""

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        if not honest:
            return own
        rows = np.stack(honest).astype(np.float64)
        return within(rows.mean(axis=0) - self.z * rows.std(axis=0))


class LabelFlip(Attacking, tag="label-flip"):
    """Honest work on false labels: y ← classes − 1 − y. For tasks whose batches are pairs (x, y), y whole numbers."""

    classes: PositiveInt = 10
    """how many labels there are"""

    def data(self, shards: Shards, who: frozenset[int]) -> Shards:
        return FlippedLabels(shards, who, self.classes)


class Adaptive(Attacking, tag="adaptive"):
    """The common value that harms the round most, tried on the server's own rule; attackers know everything.

    They know all honest contributions of the round and the rule; see `protocol.coalition`.
    """

    def together(self, seen: Seen) -> F32 | None:
        return most_harmful(seen)

    def check(self, method: str, comparable: bool) -> None:
        if not comparable:
            raise FedzeroError(
                f"engine.attack = adaptive works against the mean of the others, but with {method} numbers of clients "
                "belong to different directions or models: use form = 'dense', a method with shared directions "
                "(decomfl), or another attack"
            )


Attack = SignFlip | Scaling | Constant | LittleIsEnough | LabelFlip | Adaptive


class FlippedLabels:
    """The data of a federation, with other labels for some of its clients."""

    no_rows = "engine.attack = label-flip changes whole batches: leave it out"

    def __init__(self, shards: Shards, who: frozenset[int], classes: int):
        self.shards, self.who, self.classes = shards, who, classes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shards, name)

    @property
    def clients(self) -> int:
        return self.shards.clients

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Any:
        batch = self.shards.batch(keys, round, step, client)
        if client not in self.who:
            return batch
        whole = isinstance(batch, tuple) and isinstance(batch[-1], torch.Tensor) and not batch[-1].is_floating_point()
        if not whole or len(batch) != 2:
            raise FedzeroError("engine.attack = label-flip needs a task whose batches are pairs (x, y) with labels y")
        return batch[0], self.classes - 1 - batch[1]


def altering(attack: Attack, plan: Wired, keys: Keys, clients: int, chain: Chain, rule: Rule) -> Pass:
    """The change of an exchange's replies by the attackers. plan(round): how many numbers are sent in each exchange."""
    who = attack.who(keys, clients)

    def alter(round: int, exchange: int, replies: Sequence[Arrival]) -> Sequence[Arrival]:
        sent = {
            each.client: decode_reply(each.data, len(each.data)) for each in replies if isinstance(each.data, bytes)
        }
        values = {client: chain.decode(reply.values, plan(round)[exchange]) for client, reply in sent.items()}
        honest = {client: own for client, own in values.items() if client not in who}
        attackers = sorted(sent.keys() & who)

        def coded(client: int, value: F32) -> Sent:
            return chain.encode(value, None, partial(keys.generator, "filter", round, client, exchange))

        def outcome(value: F32) -> F32:
            return rule(round, honest | {client: coded(client, value).values for client in attackers})

        common = attack.together(Seen(list(honest.values()), outcome)) if attackers and honest else None

        def arriving(arrival: Arrival) -> Arrival:
            client = arrival.client
            if client not in attackers or not isinstance(arrival.data, bytes):
                return arrival
            wanted = attack.sent(values[client], list(honest.values())) if common is None else common
            data = encode_reply(msgspec.structs.replace(sent[client], values=coded(client, wanted).data))
            return msgspec.structs.replace(arrival, data=data)

        return [arriving(arrival) for arrival in replies]

    return alter
