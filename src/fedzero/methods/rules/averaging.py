"""The mean of past iterates as one step more.

`average = n`: after every n rounds the model becomes the mean of its last n iterates. With Δ_1 … Δ_n the changes of the
window,

    mean(x_1 … x_n) = x_n − Σ_i ((i−1)/n) Δ_i

which is a sum of the window's own terms with other coefficients: one step more, folded by everybody. The coefficients
of the window are carried in the state until then. A window whose last round has no update is not averaged. While the
model still moves in one direction, a mean takes it back by half a window; `average_from = r` leaves out the rounds
before r, so that `average_from` = `average` = half of the rounds is the mean of the second half, taken once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedzero.directions.terms import F32
from fedzero.methods.contract import Numbers, RuleState
from fedzero.model.updates import pack, unpack


@dataclass(frozen=True)
class AveragingState(RuleState):
    """Coefficients of the window's rounds so far, float32, by round."""

    coefficients: Mapping[int, bytes] = field(default_factory=dict)

    def with_numbers(self, numbers: Numbers) -> RuleState:
        return RuleState.with_numbers(self, numbers) if numbers else AveragingState()  # 0: it is empty there

    def after(self, round: int, coefficients: F32, length: int, first: int = 0) -> AveragingState:
        """With a round's; windows are counted from round `first`. The first round of each is left out: Δ_1 is in all of
        its iterates."""
        start = round - (round - first) % length
        kept = {r: c for r, c in self.coefficients.items() if start <= r < start + length}
        return AveragingState(kept | ({round: pack(coefficients)} if round > start else {}))

    def correction(self, length: int, first: int = 0) -> dict[int, F32]:
        """By round, the coefficients that take x_n to the mean."""
        return {
            round: (unpack(packed).astype(np.float64) * (-((round - first) % length) / length)).astype(np.float32)
            for round, packed in sorted(self.coefficients.items())
        }
