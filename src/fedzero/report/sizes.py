"""The picture beside the headline: what a client exchanged, as squares whose areas are to scale.

Beside a run stands what it is measured by: one copy of the model, and the other run of the comparison, or sending the
model there and back in every round a client takes part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from fedzero.report.compare import Comparison
from fedzero.report.history import History
from fedzero.report.svg import SERIES
from fedzero.report.text import printable
from fedzero.report.units import human_bytes

LARGEST = 190.0
"""Side of the largest square, in CSS pixels."""
SMALLEST = 2.0
"""What is smaller could not be seen, and is drawn like this."""
WORTH = 1.5
"""A square that is to be compared is so many times as large at least."""


@dataclass(frozen=True)
class Square:
    """kind: `series-0` and so on of a run, `copy` of the model, `back-and-forth`."""

    amount: str
    words: str
    side: float
    kind: str
    true: bool  # its area is to scale


def to_scale(histories: Sequence[History], comparison: Comparison | None) -> tuple[Square, ...]:
    """Smallest first; none where there is nothing to compare with."""
    if comparison is not None and comparison.frugal_bytes > 0 and (comparison.ratio or 0) >= WORTH:
        runs = comparison.frugal, comparison.lavish
        sizes = comparison.frugal_bytes, comparison.lavish_bytes
        labels = [f"{printable(h.name, 40)}, to {comparison.goal_text}" for h in runs]
        kinds = [f"series-{histories.index(h) % len(SERIES)}" for h in runs]
        found = list(zip(sizes, labels, kinds, strict=True))
    elif len(histories) == 1 and (one := histories[0]).bytes > 0 and one.dense_bytes >= WORTH * one.bytes:
        runs = one, one
        found = [
            (one.bytes, f"{printable(one.name, 40)}, all in all", "series-0"),
            (one.dense_bytes, "the model, sent every round", "dense"),
        ]
    else:
        return ()
    copies = {float(h.model_bytes) for h in runs}
    if len(copies) == 1 and (copy := copies.pop()) > 0:
        found.append((copy, "one copy of the model", "copy"))
    largest = max(size for size, _, _ in found)
    squares = []
    for size, words, kind in sorted(found):
        side = LARGEST * sqrt(size / largest)
        squares.append(Square(human_bytes(size), words, max(SMALLEST, side), kind, side >= SMALLEST))
    return tuple(squares)
