"""Runs that differ only in their seed as one curve: the mean, and a band from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedzero.report.history import History, Point
from fedzero_papers.experiments.contract import Line

Reading = Callable[[Point], float]


def averaged(label: str, style: int, runs: Sequence[History], x: Reading, y: Reading) -> Line:
    """All runs were evaluated at the same rounds; places on the x axis (bytes, queries) are averaged, too."""
    groups = list(zip(*(run.points for run in runs), strict=True))
    places = [float(np.mean([x(point) for point in group])) for group in groups]
    values = np.array([[y(point) for point in group] for group in groups])
    mean, low, high = (tuple(v.tolist()) for v in (values.mean(axis=1), values.min(axis=1), values.max(axis=1)))
    return Line(label, tuple(places), mean, style, *((low, high) if len(runs) > 1 else ()))
