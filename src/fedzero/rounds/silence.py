"""Black boxes that do not answer, in runs whose rounds need the answers of all boxes.

A box is silent in a round if it was asked and neither gave a value nor said that it has none. If a round needs all
boxes, queries to the others would be wasted: the run stops, without an end on its ledger, and can be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedzero.errors import FedzeroError
from fedzero.ledger.query_log import LedgerLog, silent
from fedzero.rounds.server import Server

AT_FIRST, LATER = 3, 10
"""Silent rounds in a row after which the run stops: for a box that never answered, and for a box that did. The latter
may only have been asked at points where its function raises an error; a search turns away from such points."""


class Unanswered(FedzeroError):
    """A box was silent for too long."""


def patience(answered: bool) -> int:
    return LATER if answered else AT_FIRST


class Listener:
    """Counts the rounds in a row in which a box was silent, since this process began. labels: of all boxes."""

    def __init__(self, server: Server, labels: Sequence[str]):
        self.server, self.labels = server, labels
        self._silent = [0] * len(labels)

    def after(self, round: int) -> list[str]:
        """Warnings about boxes that were silent in a round; raises `Unanswered`."""
        meter = self.server.meter
        if meter is None or not self.server.plan.traits.unanimous:
            return []
        told = []
        for client, label in enumerate(self.labels):
            rows = meter.log.begun(client, round)
            self._silent[client] = self._silent[client] + 1 if silent(rows) else 0
            if not self._silent[client]:
                continue
            cause = next((row.cause for row in reversed(rows) if row.cause), "")
            what = f"box {label} of client {client} gave no value"
            if self._silent[client] >= patience(_answered(meter.log, client, round)):
                raise Unanswered(
                    f"{what} in {self._silent[client]} rounds in a row ({cause}), and a round needs all boxes: repair "
                    "it, and resume the run"
                )
            told.append(f"round {round}: {what}: {cause}")
        return told


def _answered(log: LedgerLog, client: int, round: int) -> bool:
    return bool(log.latest(client, round + 1) or log.absent(client))
