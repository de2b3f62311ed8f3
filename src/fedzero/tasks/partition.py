"""The samples of each client (IID, Dirichlet(α) over labels, or sorted shards) and of its mini-batches.

Pure functions of keys and labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.model.numbers import Positive, PositiveInt
from fedzero.oracles import ALL_DATA

Indices = NDArray[np.int64]


class Iid(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="iid"):
    """A random equal split."""

    def split(self, labels: Indices, clients: int, keys: Keys) -> list[Indices]:
        order = keys.generator("partition").permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, clients)]


class Dirichlet(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="dirichlet"):
    """Each label's samples are divided in proportions drawn from Dirichlet(α): the smaller α, the more uneven."""

    alpha: Positive = 1.0
    """α"""

    def split(self, labels: Indices, clients: int, keys: Keys) -> list[Indices]:
        generator = keys.generator("partition")
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(clients, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        assigned = [np.sort(np.concatenate(part)) for part in parts]
        # A client without samples takes one from the client with the most.
        for empty in [client for client in range(clients) if len(assigned[client]) == 0]:
            largest = max(range(clients), key=lambda c: len(assigned[c]))
            assigned[empty], assigned[largest] = assigned[largest][:1], assigned[largest][1:]
        return assigned


class Shards(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="shards"):
    """Sort by label, cut into clients × per_client shards, give `per_client` to each client: few labels per client."""

    per_client: PositiveInt = 2

    def split(self, labels: Indices, clients: int, keys: Keys) -> list[Indices]:
        if clients * self.per_client > len(labels):
            raise FedzeroError(
                f"task.partition.per_client = {self.per_client} makes {clients * self.per_client} shards of "
                f"{len(labels)} samples: reduce it or federation.clients"
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
        raise FedzeroError(f"federation.clients = {clients} exceeds the {len(labels)} training samples: reduce it")
    return partition.split(labels, clients, keys)


@dataclass(frozen=True, eq=False)
class Mix:
    """The wanted share of each label in batches: `labels` (n,) of all samples, `shares` by label."""

    labels: Indices
    shares: NDArray[np.float64]

    def weights(self, chosen: Indices) -> NDArray[np.float64] | None:
        """Of the samples of a batch, summing to one, so that its labels have the wanted shares; None: all equal.

        w_i = q_l / n_l / Σ q      l the label of i, n_l its count in the batch, the sum over the labels in the batch
        """
        labels = self.labels[chosen]
        held = np.bincount(labels, minlength=len(self.shares))
        each = self.shares / np.maximum(held, 1) / self.shares[held > 0].sum()
        found: NDArray[np.float64] = each[labels]
        return None if (found == found[0]).all() else found


def drawn(part: Indices, size: int, keys: Keys, round: int, step: int, client: int, mix: Mix | None = None) -> Indices:
    """The mini-batch of a client's local step: `size` of its samples without replacement, or all with `ALL_DATA`.

    With a `mix` labels have the wanted shares, as far as the client has samples of them.
    """
    if len(part) <= size or step == ALL_DATA:
        return part
    generator = keys.generator("batch", round, step, client)
    if mix is None:
        return generator.choice(part, size, replace=False, shuffle=False)
    order = generator.permutation(part)
    labels, turn = mix.labels[order], np.empty(len(order))
    for label in np.unique(labels):
        (mine,) = np.nonzero(labels == label)
        turn[mine] = (np.arange(len(mine)) + 0.5) / mix.shares[label]
    return order[np.argsort(turn, kind="stable")[:size]]


class DrawnShards:
    """Samples of every client; a batch is drawn without replacement from the client's own, `pick` makes it."""

    def __init__(self, parts: Sequence[Indices], size: int, pick: Callable[[Indices], Any]):
        self.parts, self.size, self.pick = parts, size, pick

    @property
    def clients(self) -> int:
        return len(self.parts)

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Any:
        return self.pick(drawn(self.parts[client], self.size, keys, round, step, client))
