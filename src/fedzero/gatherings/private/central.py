"""The sum of a step with the server's noise: central differential privacy.

    host    Σ of its clients' integers, (P,)              one phase, int32 if all sums fit
    server  (Σ over hosts + round(N(0, σ² L))) / s        √L: the largest norm of one unit's integers, see `integers`

A client that is not there counts as zero, and the divisor is a constant, the expected number of units: nothing depends
on how many took part. The outcome names no client, and a step without clients is noise alone. Rounding the noise to
integers is rounding the noisy sum, so the bound of the continuous Gaussian holds.

The server sees the sums of hosts, so this protects against readers of the model and of the ledger, not against the
server.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedzero.links import Gathering, Total
from fedzero.links.contract import Contribution
from fedzero.links.gathering import AtHost, AtServer, HostContext, ServerContext
from fedzero.model.numbers import Positive, PositiveInt
from fedzero.privacy.integers import I64, Grid
from fedzero.privacy.noise import rounded_gaussian


class CentralSum(Gathering, tag="private-sum"):
    """Adds the integers of hosts, and noise."""

    clip: Positive
    """C"""
    exponent: int
    """The scale s is 2**exponent."""
    sigma: Positive
    """σ"""
    expected: Positive
    """q n, the divisor"""
    most: PositiveInt = 1
    """The most units of a client in a turn."""

    hides_clients = True

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        grid, total = Grid(self.clip, self.exponent, host.numbers), np.zeros(host.numbers, np.int64)
        for contribution in mine.values():
            total += np.ldexp(contribution.values.astype(np.float64), self.exponent).astype(np.int64)
        yield total.astype(_width(grid, self.most * len(mine))).tobytes()

    def at_server(self, hosts: Mapping[str, tuple[int, ...]], server: ServerContext) -> AtServer:
        grid, counted = Grid(self.clip, self.exponent, server.numbers), list[int]()
        total = np.zeros(server.numbers, np.int64)
        for host, answer in (yield dict.fromkeys(hosts, b"")).items() if hosts else ():
            found = _admitted(answer, grid, self.most * len(hosts[host]))
            if found is not None:
                total += found
                counted += hosts[host]
        total += rounded_gaussian(grid.noise(self.sigma), server.numbers, server.entropy)
        return Total(np.ldexp(total.astype(np.float64), -self.exponent), self.expected, tuple(sorted(counted)))

    def limit(self, numbers: int, clients: int) -> int:
        return 8 * numbers

    def bytes_up(self, numbers: int) -> int:
        """Of a host with one client."""
        return numbers * np.dtype(_width(Grid(self.clip, self.exponent, numbers), self.most)).itemsize


def _width(grid: Grid, units: int) -> str:
    """The type of sums of so many units."""
    return "<i4" if units * grid.largest < 1 << 31 else "<i8"


def _admitted(answer: bytes | Exception, grid: Grid, units: int) -> I64 | None:
    """The integers of a host; None, which counts as zero, if they cannot be a sum of so many units."""
    width = np.dtype(_width(grid, units))
    if not isinstance(answer, bytes) or len(answer) != width.itemsize * grid.count:
        return None
    found = np.frombuffer(answer, width).astype(np.int64)
    square = sum(number * number for number in found.tolist())  # Python's integers do not overflow
    return found if square <= units * units * grid.allowance else None
