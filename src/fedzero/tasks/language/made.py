"""Rows that are made, not read: `made:pairs:train` and `made:pairs:test` in the place of files.

A row is a pair of different numbers below 100, with the larger of them and their sum as text. The pairs of the test set
are the same in every run, and none of them is among the others, in either order.
"""

from __future__ import annotations

from itertools import combinations

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.tasks.language.texts import Row

MADE = "made:"
BELOW, HELD_OUT = 100, 1000
"""Numbers are below the first; so many unordered pairs are held out, each in both orders."""


def rows_of(source: str) -> list[Row]:
    """The rows of a source that begins with `made:`."""
    if source not in (MADE + "pairs:train", MADE + "pairs:test"):
        raise FedzeroError(f"{source}: rows that are made are {MADE}pairs:train and {MADE}pairs:test")
    unordered = list(combinations(range(BELOW), 2))
    order = Keys.of_seed(0).generator("pairs").permutation(len(unordered))
    chosen = order[:HELD_OUT] if source.endswith("test") else order[HELD_OUT:]
    both = (pair for i in chosen for pair in (unordered[i], unordered[i][::-1]))
    return [{"a": a, "b": b, "larger": str(max(a, b)), "sum": str(a + b)} for a, b in both]
