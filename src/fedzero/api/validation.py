"""Data that a run is chosen by, apart from those that it is trained on and those that it is reported with.

validation = 0.1    a tenth of every client's samples, drawn by the run's seed, is kept from training
validation = data   other data, given as test data are
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedzero.directions import Keys
from fedzero.errors import Invalid
from fedzero.tasks.partition import Indices
from fedzero.tasks.samples import Dealt, Part, Samples


class Kept(Part):
    """Some samples of a client's own; what they are of belongs to what they are."""

    def digest(self) -> bytes:
        return hashlib.sha256(self.whole.digest() + super().digest()).digest()


def share_of(validation: Any) -> float | None:
    """The share of every client's data, where one is given."""
    if isinstance(validation, bool) or not isinstance(validation, int | float):
        return None
    if not 0 < validation < 1:
        raise Invalid(f"validation = {validation} is not valid: give a share between 0 and 1, or data")
    return float(validation)


def held_out(count: int, share: float, seed: int, client: int) -> tuple[Indices, Indices]:
    """Positions of a client's samples to train on, and of max(1, round(share × count)) of them for validation."""
    held = max(1, math.floor(share * count + 0.5))
    if held >= count:
        raise Invalid(
            f"client {client} has {count} sample{'s' if count > 1 else ''}: validation = {share:g} leaves none"
        )
    order = Keys.of_seed(seed).generator("validation", client).permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])


def split(clients: Sequence[Samples], share: float, seed: int) -> tuple[Sequence[Samples], Sequence[Samples]]:
    """What every client trains on, and what it keeps for validation."""
    halves = [held_out(len(samples), share, seed, client) for client, samples in enumerate(clients)]
    if isinstance(clients, Dealt):
        pairs = [(own[kept], own[held]) for own, (kept, held) in zip(clients.parts, halves, strict=True)]
        return Dealt(clients.whole, [kept for kept, _ in pairs]), Dealt(clients.whole, [held for _, held in pairs])
    parts = [(Kept(own, kept), Kept(own, held)) for own, (kept, held) in zip(clients, halves, strict=True)]
    return [kept for kept, _ in parts], [held for _, held in parts]
