"""What every party of a secure sum has to know: the fields of `[gathering]` that both halves use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedzero.errors import Refused
from fedzero.gatherings.field import I64
from fedzero.gatherings.shamir import LEAST, most_colluding
from fedzero.links.contract import Entropy


class Rules(Protocol):
    """scale: values are integers of 1 / scale; rounding: what becomes of other values."""

    @property
    def scale(self) -> float: ...

    @property
    def rounding(self) -> str: ...

    def noise(self, numbers: int, entropy: Entropy) -> I64: ...

    def counted(self, clients: Sequence[int]) -> int: ...

    def expect_enough(self, counts: Sequence[int], members: int) -> None: ...


def expect_enough(counts: Sequence[int], members: int, colluding: int | None, least: int, noisy: int) -> None:
    """Refuse a set in which, without k of its hosts, fewer than `least` with clients are left, or fewer than `noisy`
    with or without. counts: how many clients are in each input; members: c."""
    if members < LEAST:
        raise Refused(f"{members} members are no committee: at least {LEAST} hosts are needed")
    most = most_colluding(members)
    k = most if colluding is None else colluding
    if k > most:
        raise Refused(f"a committee of {members} withstands {most} colluding hosts, and the recipe says {k}")
    if (given := sum(count > 0 for count in counts)) - k < least:
        raise Refused(f"a set of {given} hosts with clients is too small: {least} besides {k} that may collude")
    if len(counts) - k < noisy:
        raise Refused(f"a set of {len(counts)} hosts is too small: the noise of {noisy} is needed besides {k}")
