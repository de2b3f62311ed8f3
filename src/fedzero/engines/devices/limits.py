"""How much an address or a place may ask of a gateway: buckets that fill again with time.

An address may be a whole class, or all devices behind a proxy, so its buckets are large; what is refused to an address
is refused before anything is computed, and sessions that are open go on. A place has proved who it is: its bucket is
small.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

MOST_KEPT = 10_000
"""Buckets of a kind; the one that was not used for the longest time is forgotten."""


@dataclass(frozen=True)
class Allowance:
    """burst: at once; rate: a second."""

    burst: float
    rate: float


ENROLMENTS = Allowance(300, 2.0)
"""Of one address: a lecture hall at once."""
REFUSALS = Allowance(200, 1.0)
"""Sessions of one address that end by a fault of the device before it has proved who it is."""
SESSIONS = Allowance(30, 0.5)
"""Of one place, that begin by a true proof: each lets the run look up what the device lacks."""
FAULTS = Allowance(5, 1 / 30)
"""Sessions of one place that end by a fault of its device."""


class Buckets:
    """By key, what is left of an allowance."""

    def __init__(self, of: Allowance):
        self.of = of
        self._left = OrderedDict[object, tuple[float, float]]()

    def left(self, key: object, now: float) -> float:
        left, at = self._left.get(key, (self.of.burst, now))
        return min(self.of.burst, left + (now - at) * self.of.rate)

    def take(self, key: object, now: float) -> bool:
        """Take one; whether there was one."""
        left = self.left(key, now)
        self._left[key] = max(0.0, left - 1), now
        self._left.move_to_end(key)
        if len(self._left) > MOST_KEPT:
            self._left.popitem(last=False)
        return left >= 1

    def seconds(self, key: object, now: float) -> int:
        """Until there is one again."""
        return max(0, int((1 - self.left(key, now)) / self.of.rate + 0.999))


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 the first 64 bits, which one household has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
