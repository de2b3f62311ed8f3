"""When a run ends before its last round because of its losses, and what counts as diverged.

Both are functions of the evaluations on the ledger (`EvaluationHistory`), so a resumed run ends where an undisturbed
one does.
"""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta

from fedzero.ledger.outline import EvaluationHistory
from fedzero.model.value import Checked

FACTOR = 10
"""A loss this many times the first one (or so far above it, where that is negative) is no detour any more."""


class Stop(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to end a run early; looked at after each evaluation."""

    above: float | None = None
    """End when the loss of an evaluation is above this, or is not a number."""
    patience: Annotated[int, Meta(ge=1)] | None = None
    """End after so many evaluations in a row without a better loss."""

    def reason(self, evaluations: EvaluationHistory) -> str:
        """Why to end after these evaluations; empty to go on."""
        last, best = evaluations.last, evaluations.best
        if last is None or best is None:
            return ""
        if self.above is not None and not last.metrics.loss <= self.above:
            return f"the loss after round {last.round} is {last.metrics.loss:g}, above stop.above = {self.above:g}"
        if self.patience is not None and evaluations.since_best >= self.patience:
            return (
                f"no better loss than {best.metrics.loss:g}, after round {best.round}, in "
                f"{self.patience} evaluations (stop.patience)"
            )
        return ""

    def diverged(self, evaluations: EvaluationHistory) -> bool:
        """Whether the last loss is not finite, above `above`, or far above the first."""
        if evaluations.first is None or evaluations.last is None:
            return False
        first, last = evaluations.first.metrics.loss, evaluations.last.metrics.loss
        if not math.isfinite(last) or (self.above is not None and last > self.above):
            return True
        return last > first + (FACTOR - 1) * abs(first)
