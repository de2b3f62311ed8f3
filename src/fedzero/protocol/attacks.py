"""Clients that attack, in simulations: what a share of them sends in place of their own numbers.

    [engine]
    attack = { kind = "sign-flip", fraction = 0.2 }

Who attacks follows from the run's keys. Attackers do their part first and then change what they send, so they keep to
the rules of the protocol (model digest, queries, the filters of the chain): nothing else would be let in. It is the
local engine that does it, because there the replies of a round are together, which attackers who know the others' need;
neither methods nor the server know of it, and no other engine can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.filters import Chain
from fedzero.model.numbers import Positive, PositiveFraction, PositiveInt
from fedzero.model.value import Value
from fedzero.oracles import Shards
from fedzero.protocol.messages import decode_reply, encode_reply

Reply = tuple[int, bytes | Exception]
Alter = Callable[[int, int, Sequence[Reply]], Iterator[Reply]]
"""(round, exchange, what clients send) → what arrives"""
Wired = Callable[[int], Sequence[int]]


class Attacking(Value):
    """What attackers send."""

    fraction: PositiveFraction = 0.2
    """of the clients, who attack"""

    def who(self, keys: Keys, clients: int) -> frozenset[int]:
        """The attackers, a function of the run's keys."""
        chosen = keys.generator("attack").choice(clients, round(self.fraction * clients), replace=False)
        return frozenset(int(client) for client in chosen)

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        """What an attacker sends in place of `own`; honest: what everybody else of the round sends."""
        return own

    def data(self, shards: Shards, who: frozenset[int]) -> Shards:
        """What clients work on."""
        return shards


class SignFlip(Attacking, tag="sign-flip"):
    """The opposite: v ← −factor · v."""

    factor: Positive = 1.0
    """how many times as long"""

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        return _within(own * -np.float64(self.factor))


class Scaling(Attacking, tag="scaling"):
    """Its own numbers, but far larger: v ← factor · v."""

    factor: Positive = 100.0
    """how many times as long"""

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        return _within(own * np.float64(self.factor))


class Constant(Attacking, tag="constant"):
    """The same number everywhere: v ← (value, value, …)."""

    value: float = 100.0

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        return np.full_like(own, self.value)


class LittleIsEnough(Attacking, tag="little-is-enough"):
    """Just within the spread of the others (Baruch et al., NeurIPS 2019): v_j ← mean_j − z · deviation_j.

    Mean and deviation are those of all honest contributions of the round: attackers know them, and all send the same.
    The paper's own z, Φ⁻¹ of the share of honest clients that may be farther out than the attackers without these
    losing their majority, is 0 for 2 of 10 and 0.3 for 12 of 50; its experiments use 1.5.
    """

    z: Positive = 1.5
    """how many deviations from the mean"""

    def sent(self, own: F32, honest: Sequence[F32]) -> F32:
        if not honest:
            return own
        rows = np.stack(honest).astype(np.float64)
        return _within(rows.mean(axis=0) - self.z * rows.std(axis=0))


class LabelFlip(Attacking, tag="label-flip"):
    """Honest work on false labels: y ← classes − 1 − y. For tasks whose batches are pairs (x, y), y whole numbers."""

    classes: PositiveInt = 10
    """how many labels there are"""

    def data(self, shards: Shards, who: frozenset[int]) -> Shards:
        return FlippedLabels(shards, who, self.classes)


Attack = SignFlip | Scaling | Constant | LittleIsEnough | LabelFlip


def _within(values: Any) -> F32:
    """As float32; what is beyond it would be refused."""
    largest = float(np.finfo(np.float32).max)
    clipped: F32 = np.clip(values, -largest, largest).astype(np.float32)
    return clipped


class FlippedLabels:
    """The data of a federation, with other labels for some of its clients."""

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


def altering(attack: Attack, plan: Wired, keys: Keys, clients: int, chain: Chain) -> Alter:
    """What `LocalEngine` does with the replies of a round. plan(round): how many numbers are sent in each exchange."""
    who = attack.who(keys, clients)

    def alter(round: int, exchange: int, replies: Sequence[Reply]) -> Iterator[Reply]:
        def values(data: bytes) -> F32:
            return chain.decode(decode_reply(data, len(data)).values, plan(round)[exchange])

        honest = [values(data) for client, data in replies if client not in who and isinstance(data, bytes)]
        for client, data in replies:
            if client not in who or not isinstance(data, bytes):
                yield client, data
                continue
            draw = partial(keys.generator, "filter", round, client, exchange)
            coded = chain.encode(attack.sent(values(data), honest), None, draw).data
            yield client, encode_reply(msgspec.structs.replace(decode_reply(data, len(data)), values=coded))

    return alter
