"""The names of what a task measures beside loss and accuracy, as a ledger has them: anybody may have written them."""

from __future__ import annotations

from collections.abc import Mapping

from fedzero.lines import LONGEST_SAID, printable

MOST = 1_000
"""Names of a run that are kept, the first ones: each is a column of a table and a curve of a page."""


class Measures:
    """Folds over evaluations: their measures by names that are short, visible, and not too many in a run."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def of(self, others: Mapping[str, float]) -> dict[str, float]:
        found = {}
        for name, value in others.items():
            if name not in self._shown and len(self._shown) < MOST:
                self._shown[name] = printable(name, LONGEST_SAID)
            if name in self._shown:
                found[self._shown[name]] = value
        return found
