"""The samples of each client (IID, Dirichlet(α) over labels, or sorted shards) and of its mini-batches.

Pure functions of keys and labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.model.numbers import Positive, PositiveInt
from fedzero.model.value import Checked
from fedzero.oracles import ALL_DATA

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Parts(Sequence[Indices]):
    """The samples of every client in one array: client c has samples[ends[c] : ends[c + 1]], sorted."""

    samples: Indices
    ends: Indices

    @staticmethod
    def of(owners: Indices, clients: int) -> Parts:
        """From the client of every sample, (n,)."""
        ends = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=clients))])
        return Parts(np.argsort(owners, kind="stable"), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, client: Any) -> Any:
        if not -len(self) <= client < len(self):
            raise IndexError(client)
        client %= len(self)
        return self.samples[self.ends[client] : self.ends[client + 1]]


def _pieces(count: int, pieces: int) -> Indices:
    """The piece of each of `count` things cut into equal pieces, the first ones longer by one: as np.array_split."""
    return np.repeat(np.arange(pieces), count // pieces + (np.arange(pieces) < count % pieces))


class Iid(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="iid"):
    """A random equal split."""

    def split(self, labels: Indices, clients: int, keys: Keys) -> Parts:
        owners = np.empty(len(labels), np.int64)
        owners[keys.generator("partition").permutation(len(labels))] = _pieces(len(labels), clients)
        return Parts.of(owners, clients)


class Dirichlet(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="dirichlet"):
    """Each label's samples are divided in proportions drawn from Dirichlet(α): the smaller α, the more uneven."""

    alpha: Positive = 1.0
    """α"""

    def split(self, labels: Indices, clients: int, keys: Keys) -> Parts:
        generator, owners = keys.generator("partition"), np.empty(len(labels), np.int64)
        for label in np.unique(labels):
            members = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(clients, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            owners[members] = np.repeat(np.arange(clients), np.diff(cuts, prepend=0, append=len(members)))
        return _nobody_empty(owners, clients)


def _nobody_empty(owners: Indices, clients: int) -> Parts:
    """A client without samples takes the first of the client that has the most."""
    parts = Parts.of(owners, clients)
    sizes, firsts = np.diff(parts.ends), parts.ends[:-1].copy()
    most = [(-int(sizes[client]), int(client)) for client in np.flatnonzero(sizes > 1)]
    heapify(most)
    for empty in np.flatnonzero(sizes == 0):
        size, largest = most[0]
        owners[parts.samples[firsts[largest]]] = empty
        firsts[largest] += 1
        heapreplace(most, (size + 1, largest))
    return Parts.of(owners, clients)


class Shards(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="shards"):
    """Sort by label, cut into clients × per_client shards, give `per_client` to each client: few labels per client."""

    per_client: PositiveInt = 2

    def split(self, labels: Indices, clients: int, keys: Keys) -> Parts:
        count = clients * self.per_client
        if count > len(labels):
            raise FedzeroError(
                f"task.partition.per_client = {self.per_client} makes {count} shards of {len(labels)} samples: "
                "reduce it or federation.clients"
            )
        shards, owners = np.empty(count, np.int64), np.empty(len(labels), np.int64)
        shards[keys.generator("partition").permutation(count)] = np.arange(count) // self.per_client
        owners[np.argsort(labels, kind="stable")] = shards[_pieces(len(labels), count)]
        return Parts.of(owners, clients)


Partition = Iid | Dirichlet | Shards


def split(partition: Partition, labels: Indices, clients: int, keys: Keys) -> Parts:
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

    def rows(self, part: Indices, size: int) -> int:
        """How many samples of a client an evaluation is of at least, by weight: 1 / the largest weight of one, in
        batches of `size` and over all. Shares make a single sample of a rare label count for as much as they like."""
        counts = np.bincount(self.labels[part], minlength=len(self.shares))
        least = self._rows(counts, counts)
        if len(part) > size:
            turns = [(np.arange(count) + 0.5) / share for count, share in zip(counts, self.shares, strict=True)]
            last = np.sort(np.concatenate(turns))[size - 1]
            surely = np.array([np.count_nonzero(turn < last) for turn in turns])
            perhaps = np.array([np.count_nonzero(turn <= last) for turn in turns])
            least = min(least, self._rows(surely, perhaps))
        return least

    def _rows(self, surely: Indices, perhaps: Indices) -> int:
        """Of a batch that has so many samples of each label at least, and at most."""
        there, some = perhaps > 0, self.shares * (surely > 0)
        total = np.where(surely > 0, some.sum(), some.sum() + self.shares)
        weights = self.shares / total / np.maximum(surely, 1)
        return int(1 / weights[there].max() + 1e-9)


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

    no_rows = ""

    def rows(self, client: int) -> int:
        return len(self.parts[client])

    held = rows

    def taken(self, client: int, places: Indices) -> Any:
        return self.pick(self.parts[client][places])

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Any:
        return self.pick(drawn(self.parts[client], self.size, keys, round, step, client))
