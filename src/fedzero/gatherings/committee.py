"""The secure sum: the server learns Σ_{i∈U} v_i and no v_i (Shamir 1979; Bonawitz et al. 2017 for the setting, with a
committee as in Bell et al. 2020, and without masks that somebody has to take away again).

    every host i     draws f_i of degree T − 1 with f_i(0) = its integers, and seals f_i(j) for member j
    the server       fixes the set U of inputs and sends every member its shares of U
    every member j   answers Σ_{i∈U} f_i(j), for one set
    the server       interpolates Σ_{i∈U} f_i(0) from any T answers, and checks that all answers agree

Members are all hosts, at most 16, or 16 drawn by nobody (`roster`); T = ⌊2c/3⌋ + 1. The server and k members learn
nothing but the sum where T > k, and complete no two sets where 2T > c + k: (k, dropouts) = (2, 2) at c = 7, (5, 5) at
16. See docs/secure-sum.md for messages, threats and what this does not protect from.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, MutableMapping, Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from fedzero.errors import FedzeroError, Invalid, Refused
from fedzero.gatherings import field, rules, shamir
from fedzero.gatherings.field import I64
from fedzero.gatherings.member import at_host
from fedzero.gatherings.messages import Commit, Input, Opening, Set, Shares, answer_of, encode
from fedzero.gatherings.roster import NONCE
from fedzero.gatherings.sealing import TAG
from fedzero.gatherings.state import erase
from fedzero.links.contract import Contribution, Entropy
from fedzero.links.gathering import AtHost, AtServer, Gathering, HostContext, ServerContext, Total

Asking = Generator[Mapping[str, bytes], Mapping[str, bytes | Exception], dict[str, bytes]]


class SecureSum(Gathering, tag="secure-sum"):
    """The sum of all clients' numbers, and no client's."""

    scale: Annotated[float, Meta(gt=0)] = 2.0**20
    """Numbers are summed as integers of this part of one; a power of two."""
    rounding: Literal["nearest", "refuse"] = "nearest"
    """What becomes of a number that is no multiple of 1/scale."""
    least: Annotated[int, Meta(ge=1)] = 2
    """Hosts with clients that a sum must have besides those that may collude."""
    noisy: Annotated[int, Meta(ge=1)] = 1
    """Hosts, also without clients, that a sum must have besides those that may collude: their noise is counted on."""
    colluding: Annotated[int, Meta(ge=1)] | None = None
    """Hosts that may collude with the server; default: as many as the committee withstands."""

    idle = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.frexp(self.scale)[0] != 0.5 or not 2.0**-40 <= self.scale <= 2.0**40:
            raise Invalid(f"SecureSum: scale = {self.scale:g} is no power of two between 2⁻⁴⁰ and 2⁴⁰")

    def noise(self, numbers: int, entropy: Entropy) -> I64:
        """Integers that every host adds to its own, also with no client; here none. entropy: random bytes that are
        drawn once for an exchange."""
        return np.zeros(numbers, np.int64)

    def counted(self, clients: Sequence[int]) -> int:
        """How many clients the clear part of an input says that it has."""
        return len(clients)

    def expect_enough(self, counts: Sequence[int], members: int) -> None:
        rules.expect_enough(counts, members, self.colluding, self.least, self.noisy)

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        return at_host(self, mine, host)

    def at_server(self, hosts: Mapping[str, tuple[int, ...]], server: ServerContext) -> AtServer:
        if any(weight != 1 for weight in server.weights.values()):
            raise FedzeroError("a secure sum counts every client once: set federation.replacement = false")
        answers = yield {host: encode(Opening(host, mine)) for host, mine in hosts.items()}
        found = _read(answers)
        if found and not any(isinstance(answer, Shares) for answer in found.values()):
            found = _read((yield from _roster({h: a for h, a in found.items() if isinstance(a, Commit)})))
        given = _of_one_roster(found)
        members = _members(given)
        count = len(next(iter(given.values())).sealed)
        self.expect_enough([shares.header.count for shares in given.values()], count)
        least = shamir.threshold(count)
        if len(members) < least:
            raise Refused(f"only {len(members)} members of the committee are here, of at least {least}")
        sums = _sums((yield {host: _set_for(seat, given) for seat, host in members.items()}), members, server.numbers)
        total = field.integers_of(shamir.opened(sums, least))
        if len(total) and np.abs(total).max() > len(given) * field.LARGEST:
            raise Refused("the sum is larger than its inputs may be")
        clients = tuple(sorted(client for host in given for client in hosts[host]))
        if not (clients or self.hides_clients):
            raise Refused("no client is in the sum")
        return Total(total / self.scale, float(len(clients)), clients)

    def ended(self, store: MutableMapping[str, bytes]) -> None:
        erase(store)

    def limit(self, numbers: int, clients: int) -> int:
        return 4096 + shamir.MOST * (field.WIDTH * numbers + TAG + 8)


def _read(answers: Mapping[str, bytes | Exception]) -> dict[str, Commit | Shares]:
    """The answers of hosts that can be read; a host that writes something else is left out alone."""
    found: dict[str, Commit | Shares] = {}
    for host, answer in answers.items():
        if isinstance(answer, bytes):
            try:
                found[host] = answer_of(answer)
            except Refused:
                continue
    return found


def _roster(commits: Mapping[str, Commit]) -> Asking:
    """Nobody has a roster: make one. All who committed must reveal, or whoever saw the others' nonces could choose."""
    ordered = {host: commits[host] for host in sorted(commits) if commits[host].entry.name == host}
    if len(ordered) < shamir.LEAST:
        raise Refused(f"only {len(ordered)} hosts are here, where a secure sum needs at least {shamir.LEAST}")
    entries = encode(tuple(commit.entry for commit in ordered.values()))
    answers = yield dict.fromkeys(ordered, entries)
    nonces = {host: answer for host, answer in answers.items() if isinstance(answer, bytes) and len(answer) == NONCE}
    if missing := sorted(ordered.keys() - nonces.keys()):
        raise Refused(f"{missing[0]} did not reveal its nonce: the roster will be made in a later round")
    revealed = encode(tuple(nonces[host] for host in ordered))
    shares = yield dict.fromkeys(ordered, revealed)
    return {host: answer for host, answer in shares.items() if isinstance(answer, bytes)}


def _of_one_roster(found: Mapping[str, Commit | Shares]) -> dict[str, Shares]:
    """Inputs under the roster that most hosts have, in its order, one of every host."""
    given = {host: answer for host, answer in found.items() if isinstance(answer, Shares)}
    if not given:
        raise Refused("no host gave an input")
    sizes: dict[tuple[bytes, int], int] = {}
    for shares in given.values():
        kind = shares.roster, len(shares.sealed)
        sizes[kind] = sizes.get(kind, 0) + 1
    kind = max(sorted(sizes), key=sizes.__getitem__)
    mine = {host: shares for host, shares in given.items() if (shares.roster, len(shares.sealed)) == kind}
    if len({shares.header.index for shares in mine.values()}) < len(mine):
        raise Refused("two hosts say that they have the same place in the roster")
    return dict(sorted(mine.items(), key=lambda each: each[1].header.index))


def _members(given: Mapping[str, Shares]) -> dict[int, str]:
    """By seat, the host that has it."""
    seated = [(shares.seat, host) for host, shares in given.items() if shares.seat]
    found = dict(seated)
    if len(found) < len(seated) or any(seat > len(next(iter(given.values())).sealed) for seat in found):
        raise Refused("two hosts say that they have the same seat in the committee")
    return found


def _set_for(seat: int, given: Mapping[str, Shares]) -> bytes:
    inputs = tuple(Input(shares.header, shares.sealed[seat - 1]) for shares in given.values())
    return encode(Set(next(iter(given.values())).roster, inputs))


def _sums(answers: Mapping[str, bytes | Exception], members: Mapping[int, str], numbers: int) -> dict[int, field.U64]:
    found: dict[int, field.U64] = {}
    for seat, host in members.items():
        answer = answers.get(host)
        if isinstance(answer, bytes):
            try:
                found[seat] = field.from_bytes(answer, numbers)
            except Refused as why:
                raise Refused(f"{host} {why}") from None
    return found
