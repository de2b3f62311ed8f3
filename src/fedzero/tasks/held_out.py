"""Samples that a client keeps for validation: it never trains on them, and evaluations are of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from fedzero.directions import Keys
from fedzero.errors import Invalid
from fedzero.tasks.partition import Indices
from fedzero.tasks.samples import Dealt, Part, Samples

Share = Annotated[float, Meta(gt=0, lt=1)]
"""Of the samples of every client."""


class Kept(Part):
    """Some samples of a client's own; what they are of belongs to what they are."""

    def digest(self) -> bytes:
        return hashlib.sha256(self.whole.digest() + super().digest()).digest()


def cut(count: int, share: float, keys: Keys, client: int, whose: str) -> tuple[Indices, Indices]:
    """Positions of a client's samples to train on, and of those to validate with, at least one of each; sorted."""
    if count < 2:
        raise Invalid(f"{whose} has one sample, and validation takes one: give it more, or leave validation out")
    held = min(count - 1, max(1, round(share * count)))
    order = keys.generator("validation", client).permutation(count)
    order[:held].sort()
    order[held:].sort()
    return order[held:], order[:held]


def held_out(clients: Sequence[Samples], share: float, keys: Keys) -> tuple[Sequence[Samples], Sequence[Samples]]:
    """The samples of every client to train on, and those to validate with."""
    cuts = [cut(len(samples), share, keys, i, f"client {i}") for i, samples in enumerate(clients)]
    if isinstance(clients, Dealt):  # one dataset, which stays one
        owned = list(zip(clients.parts, cuts, strict=True))
        sides = [[part[pieces[side]] for part, pieces in owned] for side in (0, 1)]
        return Dealt(clients.whole, sides[0]), Dealt(clients.whole, sides[1])
    pairs = list(zip(clients, cuts, strict=True))
    return [Kept(samples, each[0]) for samples, each in pairs], [Kept(samples, each[1]) for samples, each in pairs]
