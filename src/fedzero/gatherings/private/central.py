"""The sum of a step with noise, where the server sees the sum of every host: central or local differential privacy.

    host    Σ of its clients' integers, (P,)              one phase, int32 if all sums fit
    server  (Σ over hosts + round(N(0, σ² L))) / s        √L: the largest norm of one unit's integers, see `integers`

A client that is not there counts as zero, and the divisor is a constant, the expected number of units: nothing depends
on how many took part. The outcome names no client, and a step without clients is noise alone. Rounding the noise to
integers is rounding the noisy sum, so the bound of the continuous Gaussian holds.

The server sees the sums of hosts, so this protects against readers of the model and of the ledger, not against the
server; unless every host, idle ones too, adds a discrete Gaussian of variance σ² L to its sum by itself (local).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from fedzero.links import Gathering, Total
from fedzero.links.contract import Contribution, Entropy
from fedzero.links.gathering import AtHost, AtServer, HostContext, ServerContext
from fedzero.model.numbers import Positive, PositiveInt
from fedzero.privacy.integers import F64, I64, TAIL, Grid
from fedzero.privacy.noise import discrete_gaussian, rounded_gaussian

ROUNDING = 1e-9
"""The relative tolerance of a squared norm, whose bound is computed in floating point."""


class PlainSum(Gathering, tag="private-sum"):
    """Adds the integers of hosts, and noise."""

    clip: Positive
    """C"""
    exponent: int
    """The scale s is 2**exponent."""
    sigma: Positive
    """σ"""
    expected: Positive
    """q n, the divisor"""
    by: Literal["server", "hosts"] = "server"
    """Who adds the noise."""
    most: PositiveInt = 1
    """The most units of a client in a turn."""

    hides_clients = True

    @property
    def idle(self) -> bool:  # type: ignore[override]
        return self.by == "hosts"

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        grid, total = Grid(self.clip, self.exponent, host.numbers), np.zeros(host.numbers, np.int64)
        for contribution in mine.values():
            total += np.ldexp(contribution.values.astype(np.float64), self.exponent).astype(np.int64)
        if self.by == "hosts":
            share = grid.noise(self.sigma)
            total += discrete_gaussian(share * share, host.numbers, host.entropy)
        yield total.astype(self._width(grid, len(mine))).tobytes()

    def at_server(self, hosts: Mapping[str, tuple[int, ...]], server: ServerContext) -> AtServer:
        grid, counted = Grid(self.clip, self.exponent, server.numbers), list[int]()
        total = np.zeros(server.numbers, np.int64)
        for host, answer in (yield dict.fromkeys(hosts, b"")).items() if hosts else ():
            found = self._admitted(answer, grid, len(hosts[host]))
            if found is not None:
                total += found
                counted += hosts[host]
        values = np.ldexp(total.astype(np.float64), -self.exponent)
        if self.by == "server":
            values = with_noise(values, grid, self.sigma, server.entropy)
        return Total(values, self.expected, tuple(sorted(counted)))

    def limit(self, numbers: int, clients: int) -> int:
        return 8 * numbers

    def bytes_up(self, numbers: int, hosts: int, asked: float) -> float:
        width = np.dtype(self._width(Grid(self.clip, self.exponent, numbers), 1)).itemsize
        return (hosts if self.idle else asked) * numbers * width

    def _width(self, grid: Grid, clients: int) -> str:
        """The type of sums of so many clients."""
        return "<i4" if self.by == "server" and self.most * clients * grid.largest < 1 << 31 else "<i8"

    def _admitted(self, answer: bytes | Exception, grid: Grid, clients: int) -> I64 | None:
        """The integers of a host; None, which counts as zero, if they cannot be a sum of so many clients' units."""
        width = np.dtype(self._width(grid, clients))
        if not isinstance(answer, bytes) or len(answer) != width.itemsize * grid.count:
            return None
        found = np.frombuffer(answer, width).astype(np.int64)
        longest = self.most * clients * math.sqrt(grid.allowance)
        if self.by == "hosts":
            longest += (math.sqrt(grid.count) + TAIL) * float(grid.noise(self.sigma))
        square = sum(number * number for number in found.tolist())  # Python's integers do not overflow
        return found if square <= longest * longest * (1 + ROUNDING) else None


def with_noise(values: F64, grid: Grid, sigma: float, entropy: Entropy) -> F64:
    """Σ + round(N(0, σ² L)) / s. values: multiples of 1/s, exact in float64."""
    whole = np.ldexp(values, grid.exponent).astype(np.int64) + rounded_gaussian(grid.noise(sigma), len(values), entropy)
    return np.ldexp(whole.astype(np.float64), -grid.exponent)
