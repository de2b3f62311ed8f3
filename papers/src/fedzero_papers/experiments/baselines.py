"""What the experiments of the FZooS paper have in common: the methods they compare, and means with standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedzero.report.history import History, Point
from fedzero_papers.experiments.contract import Line


@dataclass(frozen=True)
class Baseline:
    """A method; what a round of it costs, FedZO's being 1, and the share of the rounds that it is given for that."""

    label: str
    cost: float = 1.0
    share: float = 1.0

    def rounds(self, given: int) -> int:
        return max(1, round(self.share * given))


METHODS = {
    "fzoos": Baseline("FZooS", cost=13.0, share=1 / 3),
    "fedzo": Baseline("FedZO"),
    "fedprox": Baseline("FedProx-ZO"),
    "scaffold-1": Baseline("SCAFFOLD-ZO (type I)", cost=1.1),
    "scaffold-2": Baseline("SCAFFOLD-ZO (type II)"),
}
"""By the end of their recipes' names, `e6-fedzo` and so on."""


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
        columns = zip(*(run.points for run in runs), strict=True)
        return Curve(
            tuple(float(point.round) for point in runs[0].points),
            tuple(float(np.mean([point.queries for point in column])) for column in columns),
            tuple(tuple(read(run, point) for point in run.points) for run in runs),
        )

    @property
    def mean(self) -> tuple[float, ...]:
        return tuple(np.mean(self.values, axis=0).tolist())

    @property
    def final(self) -> tuple[float, float]:
        """The last value: mean and standard error."""
        return mean_and_error([values[-1] for values in self.values])

    def after(self, rounds: float) -> float:
        """The mean at the last evaluation by then."""
        return self.mean[max(i for i, done in enumerate(self.rounds) if done <= rounds)]

    def with_queries(self, queries: float) -> float:
        """The mean at the last evaluation that so many queries pay for."""
        return self.mean[max(i for i, made in enumerate(self.queries) if made <= queries)]

    def line(self, label: str, style: int, by_queries: bool = False) -> Line:
        """The mean, with a band of one standard error where there are several repetitions."""
        pairs = [mean_and_error(values) for values in zip(*self.values, strict=True)]
        x, mean = self.queries if by_queries else self.rounds, tuple(m for m, _ in pairs)
        if len(self.values) == 1:
            return Line(label, x, mean, style)
        return Line(label, x, mean, style, tuple(m - e for m, e in pairs), tuple(m + e for m, e in pairs))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error s/√n; of one value alone there is no error."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), error


@dataclass(frozen=True)
class Standing:
    """All methods where the first of them ends: methods are given different numbers of rounds."""

    at: float
    values: dict[str, float]


def by_rounds(curves: dict[str, Curve]) -> Standing:
    end = min(curve.rounds[-1] for curve in curves.values())
    return Standing(end, {method: curve.after(end) for method, curve in curves.items()})


def by_queries(curves: dict[str, Curve]) -> Standing:
    end = min(curve.queries[-1] for curve in curves.values())
    return Standing(end, {method: curve.with_queries(end) for method, curve in curves.items()})


def ranked(standing: Standing, lowest: bool, form: str = "{:.1f}") -> str:
    """`FZooS 12.0, FedZO 13.5, …`, the best first; of equals the order of the list."""
    order = sorted(standing.values, key=lambda method: standing.values[method] * (1 if lowest else -1))
    return ", ".join(f"{METHODS[method].label} {form.format(standing.values[method])}" for method in order)
