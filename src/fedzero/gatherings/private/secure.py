"""The sum of a step where the server learns the total alone: the secure sum with the noise of differential privacy.

    central       the server adds round(N(0, σ² L)) to the total: protects against readers, and the server sees no host
    distributed   every host adds a discrete Gaussian of variance σ² L/h to its input, idle hosts too; a member answers
                  only for sets of h hosts besides those that may collude: protects against the server as well

Every input says that it has one client in it, whether any took part or not, so the other hosts do not learn who did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec.structs import replace

from fedzero.errors import Refused
from fedzero.gatherings import shamir
from fedzero.gatherings.committee import SecureSum
from fedzero.gatherings.field import I64, WIDTH
from fedzero.gatherings.messages import SALT, Header, Shares, encode, opening_of
from fedzero.gatherings.private.central import with_noise
from fedzero.gatherings.sealing import TAG
from fedzero.links.contract import Contribution, Entropy
from fedzero.links.gathering import AtHost, AtServer, HostContext, ServerContext, Total
from fedzero.model.numbers import Positive
from fedzero.privacy.integers import Grid
from fedzero.privacy.noise import discrete_gaussian

HASH = 32
"""Bytes of the hash of a roster."""


class PrivateSecureSum(SecureSum, tag="private-secure-sum"):
    """A secure sum with noise; `noisy` is h."""

    clip: Positive = 1.0
    """C"""
    exponent: int = 0
    """The scale s is 2**exponent."""
    sigma: Positive = 1.0
    """σ"""
    expected: Positive = 1.0
    """q n, the divisor"""
    by: Literal["server", "hosts"] = "server"
    """Who adds the noise."""

    hides_clients = True

    def noise(self, numbers: int, entropy: Entropy) -> I64:
        if self.by == "server":
            return np.zeros(numbers, np.int64)
        share = Grid(self.clip, self.exponent, numbers).noise(self.sigma, self.noisy)
        return discrete_gaussian(share * share, numbers, entropy)

    def counted(self, clients: Sequence[int]) -> int:
        return 1

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        chosen = set(opening_of(host.opening).clients)
        if chosen and chosen != mine.keys():  # each has its own coin, and nobody else chooses among them
            raise Refused("was asked for some of its clients, where all count or none")
        return SecureSum.at_host(self, mine, host)

    def at_server(self, hosts: Mapping[str, tuple[int, ...]], server: ServerContext) -> AtServer:
        total = yield from SecureSum.at_server(self, hosts, server)
        assert isinstance(total, Total)
        if self.by == "server":
            grid = Grid(self.clip, self.exponent, server.numbers)
            total = replace(total, values=with_noise(total.values, grid, self.sigma, server.entropy))
        return replace(total, weight=self.expected)

    def bytes_up(self, numbers: int, hosts: int, asked: float) -> float:
        """Σ over hosts of their inputs, and over members of their answers."""
        members = min(hosts, shamir.MOST)
        least = shamir.threshold(members)
        sealed = (bytes(TAG),) * (least - 1) + (bytes(WIDTH * numbers + TAG),) * (members - least + 1)
        shares = Shares(bytes(HASH), 1, Header(hosts, 1, 1, bytes(SALT)), sealed)
        return hosts * len(encode(shares)) + members * WIDTH * numbers
