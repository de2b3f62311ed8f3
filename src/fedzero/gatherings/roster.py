"""The roster of a secure sum: whose keys are whose, and who is in the committee.

    1. commit     a host sends its public keys and H(keys, nonce)
    2. reveal     it is sent everybody's, and sends its nonce
    3. roster     it is sent all nonces, and checks every one against what was committed

Keys are made by the hosts. A nonce is fixed before anybody knows another's, so nobody chooses the committee, the server
included; whoever does not reveal stops the set-up, so a host takes part in few set-ups of more than 16 hosts.

The *fingerprint* is of names and identities, which outlast runs where hosts keep them: people compare it by another way
than the server, and pin it. The *hash* is of everything, and is in the header of every sealed share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from fedzero.errors import Refused
from fedzero.gatherings.shamir import LEAST, MOST

VERSION = b"fedzero secure sum 1"
NONCE = 32
"""Bytes."""
KEY = 32
LONGEST_NAME = 200
MOST_HOSTS = 1 << 16
_encode = msgspec.msgpack.encode


class Entry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A host before its nonce is known. identity, ephemeral: X25519 public keys, of the host and of this run."""

    name: str
    identity: bytes
    ephemeral: bytes
    commitment: bytes


Entries = tuple[Entry, ...]


def commitment_of(name: str, identity: bytes, ephemeral: bytes, nonce: bytes) -> bytes:
    return hashlib.sha256(_encode((VERSION, "commit", name, identity, ephemeral, nonce))).digest()


def expect_entries(entries: Entries, own: Entry) -> None:
    """Refuse a roster that has not this host as it is, or a host twice, or too few or too many."""
    names = [entry.name for entry in entries]
    if names != sorted(set(names)):
        raise Refused("was sent a roster in which a name occurs twice, or that is out of order")
    if not LEAST <= len(entries) <= MOST_HOSTS:
        raise Refused(f"was sent a roster of {len(entries)} hosts, where at least {LEAST} are needed")
    for entry in entries:
        sizes = len(entry.identity), len(entry.ephemeral), len(entry.commitment)
        if sizes != (KEY, KEY, KEY) or len(entry.name) > LONGEST_NAME:
            raise Refused(f"was sent a roster that is malformed at {entry.name[:LONGEST_NAME]!r}")
    if own not in entries:
        raise Refused("was sent a roster without this host, or with other keys for it")
    for kind in ([entry.identity for entry in entries], [entry.ephemeral for entry in entries]):
        if len(set(kind)) < len(kind):
            raise Refused("was sent a roster in which two hosts have the same key")


def expect_nonces(entries: Entries, nonces: Sequence[bytes]) -> None:
    if len(nonces) != len(entries):
        raise Refused(f"was sent {len(nonces)} nonces for {len(entries)} hosts")
    for entry, nonce in zip(entries, nonces, strict=True):
        if commitment_of(entry.name, entry.identity, entry.ephemeral, nonce) != entry.commitment:
            raise Refused(f"was sent another nonce of {entry.name} than it committed to")


def hash_of(run: str, entries: Entries, nonces: Sequence[bytes]) -> bytes:
    return hashlib.sha256(_encode((VERSION, "roster", run, entries, tuple(nonces)))).digest()


def canonical(identities: Sequence[tuple[str, bytes]]) -> bytes:
    """(name, identity) of all hosts, in the order of names, as msgpack."""
    return _encode(sorted(identities))


def fingerprint(identities: Sequence[tuple[str, bytes]]) -> str:
    """128 bits of SHA-256 of the canonical roster, in groups of four hexadecimal digits."""
    digits = hashlib.sha256(VERSION + canonical(identities)).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two are the same, however people wrote the groups."""
    first, second = ("".join(each.lower().split()) for each in (one, other))
    return first == second


def committee(entries: Entries, nonces: Sequence[bytes], whole: bytes) -> tuple[int, ...]:
    """Members 1…c, as places in the roster: all of at most 16 hosts, otherwise those 16 whose H(all nonces, name) is
    smallest."""
    if len(entries) <= MOST:
        return tuple(range(len(entries)))
    seed = hashlib.sha256(_encode((VERSION, "committee", whole, tuple(nonces)))).digest()
    drawn = {i: hashlib.sha256(seed + entry.name.encode()).digest() for i, entry in enumerate(entries)}
    return tuple(sorted(sorted(drawn, key=drawn.__getitem__)[:MOST]))
