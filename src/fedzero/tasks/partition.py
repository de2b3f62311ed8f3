"""Who gets which samples: IID, Dirichlet(α) over labels, or sorted shards; and which of them make a mini-batch.

Pure functions of keys and labels.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.oracles import ALL_DATA

Indices = NDArray[np.int64]


class Iid(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="iid"):
    """A random equal split."""

    def split(self, labels: Indices, clients: int, keys: Keys) -> list[Indices]:
        order = keys.generator("partition").permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, clients)]


class Dirichlet(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="dirichlet"):
    """Each label's samples are dealt in proportions drawn from Dirichlet(α): the smaller α, the more uneven."""

    alpha: Annotated[float, Meta(gt=0)] = 1.0

    def split(self, labels: Indices, clients: int, keys: Keys) -> list[Indices]:
        generator = keys.generator("partition")
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(clients, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        dealt = [np.sort(np.concatenate(part)) for part in parts]
        # Nobody goes empty-handed: the poorest take one sample from the richest.
        for poor in sorted(range(clients), key=lambda c: len(dealt[c])):
            if len(dealt[poor]) == 0:
                rich = max(range(clients), key=lambda c: len(dealt[c]))
                dealt[poor], dealt[rich] = dealt[rich][:1], dealt[rich][1:]
        return dealt


class Shards(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="shards"):
    """Sort by label, cut into clients × per_client shards, deal `per_client` of them to each: few labels a client."""

    per_client: Annotated[int, Meta(ge=1)] = 2

    def split(self, labels: Indices, clients: int, keys: Keys) -> list[Indices]:
        if clients * self.per_client > len(labels):
            raise FedzeroError(
                f"task.partition.per_client = {self.per_client} makes {clients * self.per_client} shards of "
                f"{len(labels)} samples: lower it or federation.clients"
            )
        shards = np.array_split(np.argsort(labels, kind="stable"), clients * self.per_client)
        order = keys.generator("partition").permutation(len(shards))
        return [
            np.sort(np.concatenate([shards[s] for s in order[c * self.per_client : (c + 1) * self.per_client]]))
            for c in range(clients)
        ]


Partition = Iid | Dirichlet | Shards


def split(partition: Partition, labels: Indices, clients: int, keys: Keys) -> list[Indices]:
    if clients > len(labels):
        raise FedzeroError(f"federation.clients = {clients} but there are only {len(labels)} training samples")
    return partition.split(labels, clients, keys)


def drawn(
    part: Indices, size: int, keys: Keys, round: int, step: int, client: int, evenly: Indices | None = None
) -> Indices:
    """The mini-batch of a client's local step: `size` of its samples without replacement, or all with `ALL_DATA`.

    With the labels of all samples as `evenly`, its labels are equally often in it: one sample of each in turn, while
    the client has any left.
    """
    if len(part) <= size or step == ALL_DATA:
        return part
    generator = keys.generator("batch", round, step, client)
    if evenly is None:
        return generator.choice(part, size, replace=False, shuffle=False)
    order = generator.permutation(part)
    labels, turn = evenly[order], np.empty(len(order), np.int64)
    for label in np.unique(labels):
        (mine,) = np.nonzero(labels == label)
        turn[mine] = np.arange(len(mine))
    return order[np.argsort(turn, kind="stable")[:size]]
