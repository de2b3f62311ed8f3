"""Cases made of other cases: bytes changed, cut, repeated, exchanged; a function of the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
TELLING = [
    *(bytes([value]) for value in (0, 1, 0x7F, 0x80, 0xFF)),
    b"\xdd\xff\xff\xff\xff",  # an array of 2^32 − 1
    b"\xdf\xff\xff\xff\xff",  # a map of as many
    b"\xcf" + b"\xff" * 8,  # 2^64 − 1
    b"\xcb\x7f\xf0" + bytes(6),  # infinity
    b"\xcb\x7f\xf8" + bytes(6),  # NaN
    b"\x91" * 1500,
    b"[" * 1500,
    b'{"a":' * 300,
    b"\xc0",
    b"\xa1\xff",
    b"1e999",
    b"9" * 5000,
    b"[/x]",
    b"\x1b[2J",
    b"{x:>200000000}",
    b"__class__",
    b"-1",
]
"""What breaks readers."""
LONGEST = 1 << 16
"""Bytes of a case."""


def kept(target: str) -> list[bytes]:
    """The corpus of a target, in order."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*.bin"))]


def mutated(corpus: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` cases."""
    draw = random.Random(seed)
    for _ in range(count):
        body = bytearray(draw.choice(corpus))
        for _ in range(1 << min(draw.randrange(4), draw.randrange(4))):
            _change(body, corpus, draw)
        yield bytes(body[:LONGEST])


def _change(body: bytearray, corpus: Sequence[bytes], draw: random.Random) -> None:
    at, to = sorted((draw.randrange(len(body) + 1), draw.randrange(len(body) + 1)))
    kind = draw.randrange(8)
    if kind < 2 and at < len(body):
        body[at] = draw.randrange(256)
    elif kind == 2 and at < len(body):
        body[at] ^= 1 << draw.randrange(8)
    elif kind == 3:
        del body[at : min(to, at + 16)]
    elif kind == 4:
        body[at:at] = body[at : min(to, at + 64)]
    elif kind == 5:
        telling = draw.choice(TELLING)
        body[at : at + draw.choice((0, 1, len(telling)))] = telling
    elif kind == 6:
        other = draw.choice(corpus)
        start = draw.randrange(len(other) + 1)
        body[at : at + 8] = other[start : start + draw.randrange(64)]
    else:
        del body[at : len(body) if draw.random() < 0.2 else at + 1]
