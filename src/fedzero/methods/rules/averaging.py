"""The mean of past iterates as one additional step.

`average = n`: after every n rounds the model becomes the mean of its last n iterates. With Δ_1 … Δ_n the changes of the
window,

    mean(x_1 … x_n) = x_n − Σ_i ((i−1)/n) Δ_i

which is a sum of the window's own terms with different coefficients: one additional step, folded by everybody. Until
then the state carries the coefficients of the window. A window whose last round has no update is not averaged. While
the model still moves in one direction, a mean takes it back by half a window; `average_from = r` leaves out the rounds
before r, so `average_from` = `average` = half of the rounds gives one mean, over the second half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from fedzero.directions import Terms
from fedzero.directions.terms import F32
from fedzero.methods.contract import Numbers, RuleState
from fedzero.methods.rules.contract import At, Rule, RuleTraits, Step, joined
from fedzero.model.numbers import Natural
from fedzero.model.updates import pack, unpack


@dataclass(frozen=True)
class AveragingState(RuleState):
    """By round of the window so far: its coefficients, float32; for a step made of the replies of several rounds, these
    rounds after the coefficients."""

    coefficients: Mapping[int, bytes | tuple[Any, ...]] = field(default_factory=dict)

    def with_numbers(self, numbers: Numbers) -> RuleState:
        return RuleState.with_numbers(self, numbers) if numbers else AveragingState()  # 0: the state was empty

    def after(
        self, round: int, coefficients: F32, length: int, first: int = 0, asked: Sequence[int] = ()
    ) -> AveragingState:
        """This state with the coefficients of one more round; windows are counted from round `first`. The first round
        of each window is left out, because Δ_1 is in all of its iterates."""
        start = round - (round - first) % length
        kept = {r: c for r, c in self.coefficients.items() if start <= r < start + length}
        packed = pack(coefficients) if set(asked) <= {round} else (pack(coefficients), *asked)
        return AveragingState(kept | ({round: packed} if round > start else {}))

    def asked(self, round: int) -> Sequence[int]:
        """The rounds whose directions a round used."""
        found = self.coefficients[round]
        return (round,) if isinstance(found, bytes) else found[1:]

    def correction(self, length: int, first: int = 0) -> dict[int, F32]:
        """By round: the coefficients that take x_n to the mean."""
        return {
            round: (
                unpack(found if isinstance(found, bytes) else found[0]).astype(np.float64)
                * (-((round - first) % length) / length)
            ).astype(np.float32)
            for round, found in sorted(self.coefficients.items())
        }


class Averaging(Rule, tag="averaging"):
    """After every n rounds the model becomes the mean of its last n iterates."""

    rounds: Annotated[int, Meta(ge=1, le=1 << 16)]
    """n"""
    first: Natural = 0
    """the first round that is averaged; windows of n rounds are counted from it"""

    traits = RuleTraits(
        needs={
            "own": "steps that are the round's own",
            "sum": "plain steps, whose mean is a sum of the same directions",
            "rounds": "scalars by the round of their directions",
            "state": "a place for the scalars of a window",
        },
        lacks={"own": "averaging adds steps along directions of earlier rounds: put it right before the last rule"},
    )

    def init(self) -> RuleState:
        return AveragingState()

    def corrects(self, round: int) -> bool:
        return self.rounds > 1 and round >= self.first and (round + 1 - self.first) % self.rounds == 0

    def update(self, steps: list[Step], state: AveragingState, at: At) -> tuple[list[Step], AveragingState]:
        """Note the round's coefficients; at the end of a window, an additional step takes the model to its mean."""
        if at.round < self.first or not steps:
            return steps, state
        of_round = joined([step.change() for step in steps])
        own = Step.ready(of_round, steps[0].rounding)
        asked = [part.round for part in steps[0].parts]
        window = state.after(at.round, own.scalars, self.rounds, self.first, asked)
        if (at.round + 1 - self.first) % self.rounds:
            return [own], window
        parts = [
            Terms(at.terms_of(window.asked(r)), coefficients, of_round.stream)
            for r, coefficients in window.correction(self.rounds, self.first).items()
        ]
        correction = [Step.ready(joined(parts), at.keys.rounding(at.round, at.local_steps))] if parts else []
        return [own, *correction], AveragingState()
