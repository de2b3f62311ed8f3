"""Checkpoints of a run in progress, so that a resume reads only the last rounds."""

from __future__ import annotations

from pathlib import Path

from fedzero.ledger import checkpoints, replay
from fedzero.ledger.checkpoints import Checkpoint
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Ledger
from fedzero.protocol.replica import Replica


class Checkpointer:
    """Writes checkpoints from the ledger's content. kept: the checkpoint that exists already, if any."""

    def __init__(
        self,
        folder: Path,
        ledger: Ledger,
        view: LedgerView,
        replica: Replica | None,
        evaluate_every: int,
        kept: Checkpoint | None,
    ):
        self.folder, self.ledger, self.view, self.replica = folder, ledger, view, replica
        self.evaluate_every, self.since = evaluate_every, 0 if kept is None else kept.outline.done
        self._private = ledger.start().secret is not None

    def __call__(self, done: int, evaluated: int) -> bool:
        """Whether one was due, and is written."""
        due = checkpoints.due(done, self.since, evaluated, self.evaluate_every)
        if due:
            self.view, self.since = replay.read(self.ledger, self.view), done
            kept = Checkpoint.of(self.view.outline, self.view.turns, self.replica)
            checkpoints.write(self.folder, kept, self._private)
        return due
