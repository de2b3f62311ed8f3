"""When a run ends before its last round because of its losses, and what counts as diverged.

Both are functions of the evaluations on the ledger, so a resumed run ends where an undisturbed one does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from fedzero.ledger.records import Evaluation

FACTOR = 10
"""A loss this many times the first one (or so far above it, where that is negative) is no detour any more."""


class Stop(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to end a run early; looked at after each evaluation."""

    above: float | None = None
    """End when the loss of an evaluation is above this, or is not a number."""
    patience: Annotated[int, Meta(ge=1)] | None = None
    """End after so many evaluations in a row without a better loss."""

    def reason(self, evaluations: Sequence[Evaluation]) -> str:
        """Why to end after these evaluations; empty to go on."""
        if not evaluations:
            return ""
        losses = [evaluation.metrics.loss for evaluation in evaluations]
        if self.above is not None and not losses[-1] <= self.above:
            return f"the loss after round {evaluations[-1].round} is {losses[-1]:g}, above stop.above = {self.above:g}"
        best = min(range(len(losses)), key=lambda n: losses[n] if math.isfinite(losses[n]) else math.inf)
        if self.patience is not None and len(losses) - 1 - best >= self.patience:
            return (
                f"no better loss than {losses[best]:g}, after round {evaluations[best].round}, in "
                f"{self.patience} evaluations (stop.patience)"
            )
        return ""

    def diverged(self, evaluations: Sequence[Evaluation]) -> bool:
        """Whether the last loss is not finite, above `above`, or far above the first."""
        if not evaluations:
            return False
        first, last = evaluations[0].metrics.loss, evaluations[-1].metrics.loss
        if not math.isfinite(last) or (self.above is not None and last > self.above):
            return True
        return last > first + (FACTOR - 1) * abs(first)
