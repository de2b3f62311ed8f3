"""A run that is interrupted behind a round."""

from __future__ import annotations

from fedzero.ledger.records import Round
from fedzero.runs.progress import Silent


class StopAt(Silent):
    """Raises an error behind a round, by default as Ctrl-C does; None: behind no round."""

    def __init__(self, round: int | None, error: type[BaseException] = KeyboardInterrupt):
        self.at, self.error = round, error

    def round(self, record: Round) -> None:
        if record.round == self.at:
            raise self.error
