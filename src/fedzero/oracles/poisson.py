"""Poisson batches: every unit of a client's data is in a batch by a coin of its own, thrown in private.

    unit u is in the batch  ⇔  coin_u < q,      coin_0, coin_1, … uniform on [0, 1), a function of a private root

A unit is a row, or a person with all of their rows. Batches of a fixed size, and coins that follow from a public seed,
give no amplification by sampling; these do (Mironov, Talwar, Zhang, "Rényi differential privacy of the sampled Gaussian
mechanism"). A batch has any number of units, and none at all with probability (1 − q)^units. The coins have 53 bits, so
that the probability is q up to 2⁻⁵³.

All rows of a person have to lie with one client: coins of several clients are independent.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedzero.errors import FedzeroError, Invalid

Places = NDArray[np.int64]
"""Positions among a client's own rows, in order."""


class Poisson(Struct, frozen=True):
    """A draw of units, each with probability `rate`. persons: a unit is a person, not a row."""

    rate: float
    persons: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise Invalid(f"a Poisson batch has every unit with probability {self.rate!r}: give one above 0, up to 1")


def drawn_units(root: bytes, units: int, rate: float) -> Places:
    """Which of a client's units are in the batch of a turn. root: private, 32 bytes, of that turn alone."""
    key = hashlib.blake2b(b"", digest_size=16, key=root, person=b"poisson").digest()
    coins = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).random(units)
    found: Places = np.flatnonzero(coins < rate)
    return found


def drawn_persons(root: bytes, ids: NDArray[Any], rate: float) -> Places:
    """The rows of the persons whose coins are below the rate. ids: of the person of every row, (rows,)."""
    persons, which = np.unique(ids, return_inverse=True)
    mine = np.zeros(len(persons), np.bool_)
    mine[drawn_units(root, len(persons), rate)] = True
    found: Places = np.flatnonzero(mine[which])
    return found


def by_person(slopes: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
    """Σ over the rows of each person: (rows, P) and the person of every row to (persons, P), in the order of the ids.

    Sums are taken in float64. Clipping comes afterwards: the sum of a person's clipped rows would have no bound.
    """
    if len(ids) != len(slopes):
        raise FedzeroError(f"there are persons of {len(ids):,} rows, but {len(slopes):,} rows")
    persons, which = np.unique(ids, return_inverse=True)
    total = np.zeros((len(persons), *slopes.shape[1:]))
    np.add.at(total, which, slopes)
    return total.astype(slopes.dtype)
