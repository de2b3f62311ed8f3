"""Shamir's secret sharing by values instead of coefficients (Shamir 1979).

f has degree T − 1 and f(0) = x. T values fix it: f(0) = x and, drawn at random, f(1), …, f(T − 1). The others follow:

    f(j) = Σ_m L_m(j) f(m),    L_m(j) = Π_{n≠m} (j − n)/(m − n) mod p

Any T − 1 values say nothing about x; any T give it; a sum of polynomials has the sum of the secrets at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from fedzero.errors import Refused
from fedzero.gatherings.field import U64, P, multiply, total

LEAST, MOST = 4, 16
"""Members of a committee. Three would tolerate no dropout."""


def threshold(members: int) -> int:
    """T = ⌊2c/3⌋ + 1."""
    return 2 * members // 3 + 1


def most_colluding(members: int) -> int:
    """The largest k with T > k and 2T > c + k: then k members that answer for every set, with the server, complete
    neither a secret nor two different sets."""
    found = threshold(members)
    return min(found - 1, 2 * found - members - 1)


def weight(points: tuple[int, ...], m: int, at: int) -> int:
    """L_m(at)."""
    above = below = 1
    for n in points:
        if n != m:
            above, below = above * (at - n) % P, below * (m - n) % P
    return above * pow(below, -1, P) % P


@lru_cache(1 << 14)
def _weights(points: tuple[int, ...], at: tuple[int, ...]) -> U64:
    """L_m(j), shape (places j, points m, 1)."""
    return np.array([[[weight(points, m, j)] for m in points] for j in at], np.uint64)


def values(known: Mapping[int, U64], at: Sequence[int]) -> dict[int, U64]:
    """f(j) of the polynomial through the known values, for all places j."""
    if not at:
        return {}
    points = tuple(sorted(known))
    found = total(multiply(_weights(points, tuple(at)), np.stack([known[m] for m in points])))
    return dict(zip(at, found, strict=True))


def completed(secret: U64, drawn: Sequence[U64], members: int) -> dict[int, U64]:
    """The shares of all members 1…c. drawn: the random ones of members 1…T − 1."""
    if len(drawn) != threshold(members) - 1:
        raise ValueError(f"{len(drawn)} shares were drawn for {members} members")
    first = {0: secret, **dict(enumerate(drawn, 1))}
    rest = values(first, range(len(first), members + 1))
    return {j: share for j, share in {**first, **rest}.items() if j}


def opened(answers: Mapping[int, U64], least: int) -> U64:
    """f(0) from the values of at least T members. All of them must lie on one polynomial of degree T − 1."""
    if len(answers) < least:
        raise Refused(f"only {len(answers)} members answered of at least {least}")
    if not _on_one(answers, least):
        raise Refused(_odd(answers, least))
    return values(_some(answers, least), [0])[0]


def _some(answers: Mapping[int, U64], least: int) -> dict[int, U64]:
    return {j: answers[j] for j in sorted(answers)[:least]}


def _on_one(answers: Mapping[int, U64], least: int) -> bool:
    first = _some(answers, least)
    expected = values(first, sorted(answers.keys() - first.keys()))
    return all(np.array_equal(found, answers[j]) for j, found in expected.items())


def _odd(answers: Mapping[int, U64], least: int) -> str:
    """Who answered something else, as far as it can be known: the rest must agree by itself. It stays abandoned, since
    another set would be asked for in its place."""
    said = "the answers of members do not lie on one polynomial"
    if len(answers) < least + 2:
        return said
    alone = [j for j in answers if _on_one({m: found for m, found in answers.items() if m != j}, least)]
    return f"{said}: that of member {alone[0]} is odd" if len(alone) == 1 else said
