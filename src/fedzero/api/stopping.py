"""Callbacks that end a run: no better evaluations, a target that is reached, a budget that is spent.

All but a budget of seconds follow from the ledger alone: a run that is killed and resumed with them ends in the same
round as one that is not. Their state is made again at each begin, from the evaluations on the ledger.
"""

from __future__ import annotations

import math

from fedzero.api import given
from fedzero.callbacks import Callback, EvaluationInfo, RoundInfo, RunInfo, Stop
from fedzero.errors import FedzeroError, Invalid
from fedzero.model.numbers import NonNegative, Positive, PositiveInt

LOWER, HIGHER = ("loss",), ("accuracy",)
"""Metrics of which everybody knows which is better."""


class EarlyStopping(Callback):
    """End after `patience` evaluations in a row that are not better than the best so far by more than `least_delta`.

    higher: whether a higher number is better; not needed for loss and accuracy. A number that is not finite is no
    improvement.
    """

    def __init__(
        self, metric: str = "loss", patience: int = 5, least_delta: float = 0.0, higher: bool | None = None
    ) -> None:
        (self.metric,), (self.patience,) = given.each(str, metric=metric), given.each(PositiveInt, patience=patience)
        (self.least_delta,) = given.each(NonNegative, least_delta=least_delta)
        self.sign = _sign(metric, higher)
        self._best, self._at, self._since = -math.inf, 0, 0

    def begin(self, run: RunInfo) -> None:
        self._best, self._at, self._since = -math.inf, 0, 0
        for each in run.evaluations():
            self._note(each)

    def evaluation(self, result: EvaluationInfo) -> Stop | None:
        self._note(result)
        if self._since < self.patience:
            return None
        best = "finite value" if self._best == -math.inf else f"better value than {self.sign * self._best:g}"
        return Stop(f"no {best} of {self.metric}, after round {self._at}, in {self.patience} evaluations")

    def _note(self, result: EvaluationInfo) -> None:
        value = self.sign * _value(result, self.metric)
        if math.isfinite(value) and value > self._best + self.least_delta:
            self._best, self._at, self._since = value, result.rounds, 0
        else:
            self._since += 1


class Target(Callback):
    """End when an evaluation has reached a value. higher: as of `EarlyStopping`."""

    def __init__(self, metric: str, value: float, higher: bool | None = None) -> None:
        (self.metric,), (self.value,) = given.each(str, metric=metric), given.each(float, value=value)
        self.sign = _sign(metric, higher)

    def evaluation(self, result: EvaluationInfo) -> Stop | None:
        found = _value(result, self.metric)
        if not self.sign * found >= self.sign * self.value:
            return None
        return Stop(f"{self.metric} is {found:g} after round {result.rounds}, and the target was {self.value:g}")


class Budget(Callback):
    """End after the round in which so much is spent, since the start of the run and over all resumes.

    bytes: up and down, of all clients together. seconds: of computing, so where the run ends depends on the machine.
    """

    def __init__(self, bytes: int | None = None, seconds: float | None = None) -> None:
        (self.bytes,) = given.each(PositiveInt | None, bytes=bytes)
        (self.seconds,) = given.each(Positive | None, seconds=seconds)
        if bytes is None and seconds is None:
            raise Invalid("a budget of nothing: give bytes, seconds, or both")

    def round(self, result: RoundInfo) -> Stop | None:
        spent = result.totals
        if self.bytes is not None and spent.bytes >= self.bytes:
            return Stop(f"{spent.bytes:,} bytes are sent after round {result.rounds}; the budget is {self.bytes:,}")
        if self.seconds is not None and spent.seconds >= self.seconds:
            return Stop(
                f"{spent.seconds:.0f} s have passed after round {result.rounds}; the budget is {self.seconds:g}"
            )
        return None


def _sign(metric: str, higher: bool | None) -> float:
    """1 if a higher number is better, −1 if a lower one is."""
    (higher,) = given.each(bool | None, higher=higher)
    if higher is None and metric not in (*LOWER, *HIGHER):
        raise Invalid(f"higher: say whether a higher {metric!r} is better, with True or False")
    return 1.0 if (metric in HIGHER if higher is None else higher) else -1.0


def _value(result: EvaluationInfo, metric: str) -> float:
    if metric not in result.metrics:
        raise FedzeroError(f"no metric {metric!r} was evaluated: there are {', '.join(result.metrics)}")
    return result.metrics[metric]
