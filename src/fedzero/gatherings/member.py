"""What a host does in a secure sum: give an input, and, as a member of the committee, answer for one set of inputs.

Everything that is random in an input follows from the seed of its exchange, which is on disk before the input leaves
(`HostContext.entropy`): a retry sends the same bytes. Keys and nonce of the run are drawn once, and kept with the first
answer.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from fedzero.errors import Refused
from fedzero.gatherings import field, sealing
from fedzero.gatherings.field import LARGEST, U64, WIDTH
from fedzero.gatherings.messages import (
    SALT,
    Commit,
    Header,
    Input,
    Opening,
    Set,
    Shares,
    encode,
    entries_of,
    nonces_of,
    opening_of,
    set_of,
)
from fedzero.gatherings.roster import (
    NONCE,
    VERSION,
    Entries,
    Entry,
    commitment_of,
    committee,
    expect_entries,
    expect_nonces,
    fingerprint,
    hash_of,
    same_fingerprint,
)
from fedzero.gatherings.rules import Rules
from fedzero.gatherings.shamir import MOST, completed, threshold
from fedzero.gatherings.state import BEFORE, Attempts, Chain, Joined, Place, SetUp, read, write
from fedzero.links.contract import Contribution
from fedzero.links.gathering import AtHost, HostContext

ATTEMPTS = 3
"""The most set-ups with a drawn committee in which a host reveals: every further one would be another draw."""


def at_host(rules: Rules, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
    """The phases of an exchange at one host."""
    sealing.expect_library()
    place, opening = (host.round, host.exchange), opening_of(host.opening)
    joined = read(host.store, Joined)
    if joined is None:
        joined = yield from _made(place, opening.name, host)
    elif joined.place == place:  # another process made it, in the phases that are repeated now
        yield joined.commit
        yield joined.nonce
    if joined.name != opening.name:
        raise Refused(f"is called {opening.name!r}, and was {joined.name!r} when the roster was made")
    found = read(host.store, Chain)
    assert found is not None, "it is written with the roster"
    chain = found.at(place)
    given = _Given(rules, host, joined, chain)
    shares = given.shares(_integers(rules, mine, opening, host))
    write(host.store, chain)
    asked = set_of((yield encode(shares)))
    answer, seen = given.answered(asked)
    write(host.store, seen)
    yield answer


def _made(place: Place, name: str, host: HostContext) -> Generator[bytes, bytes, Joined]:
    """Make the roster: commit, reveal, and check what the others committed to and revealed."""
    own = read(host.store, SetUp)
    if own is None or own.place != place:
        own = SetUp(place, host.identity or sealing.fresh(), sealing.fresh(), os.urandom(NONCE))
        write(host.store, own)
    identity, ephemeral = sealing.public_of(own.identity), sealing.public_of(own.ephemeral)
    entry = Entry(name, identity, ephemeral, commitment_of(name, identity, ephemeral, own.nonce))
    commit = encode(Commit(entry))
    data = yield commit
    entries = entries_of(data)
    expect_entries(entries, entry)
    _expect_pinned(entries, host.pinned)
    if len(entries) > MOST and not own.revealed:
        _count_attempt(host)
        write(host.store, replace(own, revealed=True))
    nonces = nonces_of((yield own.nonce))
    expect_nonces(entries, nonces)
    whole, index = hash_of(host.run, entries, nonces), entries.index(entry)
    members = committee(entries, nonces, whole)
    joined = Joined(place, name, commit, own.nonce, data, whole, index, members)
    others = range(len(entries)) if index in members else members
    keys = {other: _pair(own, entries[other], whole) for other in others if other != index}
    write(host.store, joined)
    write(host.store, Chain(place[0], BEFORE, 0, keys, {}))
    host.store.pop(SetUp.__name__, None)  # the keys that could make those of pairs again
    return joined


def _count_attempt(host: HostContext) -> None:
    before = read(host.store, Attempts) or Attempts()
    if before.count >= ATTEMPTS:
        raise Refused(f"took part in {ATTEMPTS} set-ups before, and every one draws another committee")
    write(host.store, Attempts(before.count + 1))


def _expect_pinned(entries: Entries, pinned: str) -> None:
    found = fingerprint([(entry.name, entry.identity) for entry in entries])
    if pinned and not same_fingerprint(found, pinned):
        raise Refused(f"was sent the roster {found}, where {pinned} is pinned")


def _pair(own: SetUp, other: Entry, roster: bytes) -> bytes:
    """The first key of a pair: only who has a private key of both kinds makes it."""
    secret = sealing.agreed(own.ephemeral, other.ephemeral) + sealing.agreed(own.identity, other.identity)
    return sealing.derived(secret, b"pair", roster)


def _integers(rules: Rules, mine: Mapping[int, Contribution], opening: Opening, host: HostContext) -> field.I64:
    """The sum of the contributions that count, and this host's noise, also where none counts."""
    if set(opening.clients) - mine.keys() or len(set(opening.clients)) < len(opening.clients):
        raise Refused("was asked for clients that gave nothing here, or twice for one")
    total = np.zeros(host.numbers, np.int64)
    for client in opening.clients:
        total = total + field.fixed(mine[client].values, rules.scale, rules.rounding == "refuse")
    total = total + rules.noise(host.numbers, host.entropy)
    if len(total) and np.abs(total).max() > LARGEST:
        raise Refused(f"the sum of the clients here is larger than {LARGEST / rules.scale:g}")
    return total


@dataclass
class _Given:
    """An input of an exchange. After `shares`, `header` and `own` are of this host's own input."""

    rules: Rules
    host: HostContext
    joined: Joined
    chain: Chain

    def shares(self, integers: field.I64) -> Shares:
        """Seal a share for every member. Those of members 1…T − 1 are the pseudo-random function of the pair's key, the
        fresh salt and the place, so nothing is sent of them but a tag."""
        joined, host, count = self.joined, self.host, len(self.joined.members)
        clients = opening_of(host.opening).clients
        self.header = Header(joined.index, self.chain.last, self.rules.counted(clients), host.entropy(SALT))
        drawn = [self._drawn(self.header, seat) for seat in range(1, threshold(count))]
        found = completed(field.of_integers(integers), drawn, count)
        self.own = found.get(joined.seat)
        sealed = tuple(b"" if seat == joined.seat else self._seal(seat, share) for seat, share in found.items())
        return Shares(joined.roster, joined.seat, self.header, sealed)

    def _drawn(self, header: Header, seat: int) -> U64:
        if seat == self.joined.seat and header.index == self.joined.index:
            return field.uniform(self.host.entropy(WIDTH * self.host.numbers))
        key = self._key(b"share", header, seat)
        return field.uniform(sealing.stream(key, WIDTH * self.host.numbers))

    def _seal(self, seat: int, share: U64) -> bytes:
        plain = b"" if seat < threshold(len(self.joined.members)) else field.to_bytes(share)
        return sealing.seal(self._key(b"seal", self.header, seat), plain, self._about(self.header, seat))

    def _key(self, what: bytes, header: Header, seat: int) -> bytes:
        """A key of one input and one member: the salt is in it, so that no key is ever used for two inputs."""
        other = self.joined.members[seat - 1] if header.index == self.joined.index else header.index
        return sealing.derived(self.chain.keys[other], what + self._about(header, seat))

    def _about(self, header: Header, seat: int) -> bytes:
        """The associated data of a sealed share."""
        host = self.host
        return encode((VERSION, self.joined.roster, host.run, host.round, host.exchange, header, seat))

    # ---- as a member

    def answered(self, asked: Set) -> tuple[bytes, Chain]:
        """Σ_{i∈U} f_i(j), and what was seen. One set is answered in an exchange: `Hosting` refuses another."""
        if not self.joined.seat:
            raise Refused("was sent a set of inputs, and is not in the committee")
        if asked.roster != self.joined.roster:
            raise Refused("was sent a set of inputs of another roster")
        entries = entries_of(self.joined.entries)
        indices = [each.header.index for each in asked.inputs]
        if indices != sorted(set(indices)) or (indices and indices[-1] >= len(entries)):
            raise Refused("was sent a set with an input twice, out of order or of nobody")
        counts = [each.header.count for each in asked.inputs]
        self.rules.expect_enough(counts, len(self.joined.members))
        if not indices:
            raise Refused("was sent an empty set")
        found = [self._share(each, entries[each.header.index].name) for each in asked.inputs]
        seen = self.chain.seen | dict.fromkeys(indices, self.host.round + 1)
        total = field.total(np.stack(found))
        return field.to_bytes(total), replace(self.chain, seen=seen)

    def _share(self, given: Input, name: str) -> U64:
        header, seat = given.header, self.joined.seat
        if header.index == self.joined.index:
            if header != self.header or given.sealed or self.own is None:
                raise Refused("was sent a set with another input of this host than it gave")
            return self.own
        try:
            plain = sealing.unseal(self._key(b"seal", header, seat), given.sealed, self._about(header, seat))
        except Refused:
            raise Refused(f"the input of {name} does not open: other keys, or made for something else") from None
        seen = self.chain.seen.get(header.index, 0)
        if header.last < seen <= self.host.round:
            raise Refused(f"{name} was put back to an earlier state: it knows nothing of round {seen - 1}")
        if seat < threshold(len(self.joined.members)):
            if plain:
                raise Refused(f"the input of {name} has a share where none was expected")
            return self._drawn(header, seat)
        try:
            return field.from_bytes(plain, self.host.numbers)
        except Refused as why:
            raise Refused(f"{name} {why}") from None
