"""Runs that differ only in their seed, read off at the same places: means, bands around them, values at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

import numpy as np

from fedzero.oracles.contract import F64
from fedzero.report.history import History, Point
from fedzero_papers.experiments.outcome import Line, Panel

Choice = TypeVar("Choice")
Reading = Callable[[Point], float]
Band = Callable[[F64], tuple[F64, F64]]
by_round: Reading = attrgetter("round")
by_query: Reading = attrgetter("queries")
loss: Reading = attrgetter("loss")


def percentage(point: Point) -> float:
    """Accuracy in per cent."""
    return 100 * (point.accuracy or 0.0)


def last_loss(run: History) -> float:
    """One that is not finite is larger than all others."""
    return run.final_loss if math.isfinite(run.final_loss) else math.inf


def lowest(trials: Mapping[Choice, History]) -> Choice:
    """The choice whose loss is lowest at the end, of equals the first."""
    return min(trials, key=lambda choice: last_loss(trials[choice]))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error s/√n; of one value alone there is no error."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), error


def extremes(values: F64) -> tuple[F64, F64]:
    """A band from the lowest to the highest."""
    return values.min(axis=0), values.max(axis=0)


def standard_error(values: F64) -> tuple[F64, F64]:
    """A band of one standard error to each side of the mean."""
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(len(values))
    return mean - error, mean + error


def drawn(label: str, style: int, x: Sequence[float], values: F64, band: Band) -> Line:
    """The mean of repetitions, values (repetitions, places), with a band where there are several."""
    ends = tuple(tuple(end.tolist()) for end in band(values)) if len(values) > 1 else ()
    return Line(label, tuple(x), tuple(values.mean(axis=0).tolist()), style, *ends)


def averaged(label: str, style: int, runs: Sequence[History], x: Reading, y: Reading, band: Band = extremes) -> Line:
    """All runs were evaluated at the same rounds; places on the x axis (bytes, queries) are averaged, too."""
    places, values = (np.array([[read(point) for point in run.points] for run in runs]) for read in (x, y))
    return drawn(label, style, places.mean(axis=0).tolist(), values, band)


@dataclass(frozen=True)
class Curve:
    """One method's repetitions, as numbers at the same places."""

    rounds: tuple[float, ...]
    queries: tuple[float, ...]
    """of all clients together; the mean over the repetitions"""
    values: tuple[tuple[float, ...], ...]
    """for every repetition"""

    @staticmethod
    def of(runs: Sequence[History], read: Callable[[History, Point], float]) -> Curve:
        """Of runs that were evaluated at the same rounds; `read` says what is drawn."""
        queries = np.array([[point.queries for point in run.points] for run in runs])
        return Curve(
            tuple(float(point.round) for point in runs[0].points),
            tuple(queries.mean(axis=0).tolist()),
            tuple(tuple(read(run, point) for point in run.points) for run in runs),
        )

    @property
    def mean(self) -> tuple[float, ...]:
        return tuple(np.mean(self.values, axis=0).tolist())

    @property
    def final(self) -> tuple[float, float]:
        """The last value: mean and standard error."""
        return mean_and_error([values[-1] for values in self.values])

    def places(self, by_queries: bool) -> tuple[float, ...]:
        return self.queries if by_queries else self.rounds

    def at(self, end: float, by_queries: bool) -> float:
        """The mean at the last evaluation that so many rounds or queries pay for."""
        return self.mean[max(i for i, place in enumerate(self.places(by_queries)) if place <= end)]

    def line(self, label: str, style: int, by_queries: bool = False) -> Line:
        """The mean, with a band of one standard error where there are several repetitions."""
        return drawn(label, style, self.places(by_queries), np.array(self.values), standard_error)


def pair(
    title: str,
    curves: Sequence[tuple[str, int, Curve]],
    y: str,
    queries: str = "queries (all clients)",
    log_y: bool = False,
) -> tuple[Panel, ...]:
    """By rounds, and by queries; curves with their labels and the numbers of their styles."""
    return tuple(
        Panel(title, tuple(curve.line(label, style, by) for label, style, curve in curves), axis, y, log_y=log_y)
        for by, axis in ((False, "rounds"), (True, queries))
    )


def repeated(runs: int, band: str) -> str:
    """How many runs a line is the mean of, and what its band shows."""
    return f"mean of {runs} runs{band}" if runs > 1 else "one run"
