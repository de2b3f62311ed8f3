"""The client's half of differential privacy: the vectors of units, bounded, as integers, and their sum.

    v_i → C v_i / max(C, ‖v_i‖)  or  C v_i / ‖v_i‖      the whole vector of a unit in a turn, (P,)
    k_i = s v_i rounded at random, ‖k_i‖² ≤ L             integers, see `integers`
    sent: Σ_i k_i as int32, and no loss

A unit whose numbers are NaN, infinite or zero counts as zero, and nobody is told. The random numbers are the operating
system's, so a contribution is on disk before it leaves.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import structs

from fedzero.errors import Refused
from fedzero.links.contract import F32, ClientContext, Coder, Contribution, Draw, Link, LinkTraits, Promise
from fedzero.model.numbers import Positive, PositiveInt
from fedzero.oracles.poisson import Poisson
from fedzero.privacy.integers import EXACT, Grid, clipped, floats, normalised, quantised


class PrivateUnits(Link, tag="private-units"):
    """Bounds the vector of each unit, rounds it to integers, and sums the units of a turn."""

    clip: Positive
    """C"""
    exponent: int
    """The scale s is 2**exponent."""
    normalise: bool = False
    """Every vector gets the norm C, not only the longer ones."""
    most: PositiveInt = 1
    """The most units of a turn; others do not count."""
    rows: Poisson | None = None
    """The units of a turn are those of such a batch of a client's rows; None: the client itself is the unit."""

    @property
    def traits(self) -> LinkTraits:
        return LinkTraits(hides_loss=True, draws_privately=True, silent=True, rows=self.rows)

    def on_client(self, mine: Contribution, client: ClientContext) -> Contribution:
        grid, bound = Grid(self.clip, self.exponent, mine.values.size), normalised if self.normalise else clipped
        vectors = mine.values[None] if mine.rows is None else mine.rows[: self.most]
        whole = quantised(bound(vectors, self.clip), grid, client.entropy)
        return structs.replace(mine, values=floats(whole.sum(axis=0), grid), loss=None, rows=None)

    def admits(self, given: Promise) -> Promise:
        grid = Grid(self.clip, self.exponent, given.count)
        return Promise(given.count, given.count, self.most * math.sqrt(grid.allowance) / float(grid.scale))


class Integers(Coder, tag="integers"):
    """Multiples of 2**−exponent, as int32."""

    exponent: int

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        return b"", np.ldexp(values, self.exponent).astype("<i4").tobytes()

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        found = np.frombuffer(codes, "<i4")
        if (np.abs(found.astype(np.int64)) >= EXACT).any():
            raise Refused("sent integers that float32 does not hold exactly")
        values: F32 = np.ldexp(found.astype(np.float32), -self.exponent)
        return values

    def length(self, count: int) -> int:
        return 4 * count

    def longest(self, length: float, count: int) -> float:
        return length
