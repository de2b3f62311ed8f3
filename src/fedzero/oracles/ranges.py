"""Which figures can be true at all: the ranges of losses and metrics that others report.

A figure that is not finite is no matter of its range: a model that diverged has such figures, and most have to say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedzero.oracles.contract import Metrics

LARGEST = float(np.finfo(np.float32).max)
"""|loss| is at most this: replies carry it as float32, and a model's numbers are no wider."""
SHARES = frozenset({"accuracy", "f1", "precision", "recall", "success", "held-out success"})
"""Metrics that are shares of something, by name: from 0 to 1."""
ROUNDED = 1e-3
"""What sums in float32 may miss the end of a range by."""


def strange_loss(loss: float, least: float) -> str:
    """Why a loss cannot be true, empty where it can. least: the smallest loss that the task has."""
    if math.isfinite(loss) and abs(loss) > LARGEST:
        return f"a loss of {loss:.4g}, beyond the largest number of a model, {LARGEST:.4g}"
    if -math.inf < loss < least - ROUNDED:
        return f"a loss of {loss:.4g}, but losses of this task are at least {least:g}"
    return ""


def strange(metrics: Metrics, least: float) -> str:
    """Why metrics cannot be true, empty where they can."""
    if why := strange_loss(metrics.loss, least):
        return why
    for name, value in _named(metrics):
        if name in SHARES and math.isfinite(value) and not -ROUNDED <= value <= 1 + ROUNDED:
            return f"{name} {value:.4g}, which is from 0 to 1"
    return ""


def _named(metrics: Metrics) -> Iterator[tuple[str, float]]:
    if metrics.accuracy is not None:
        yield "accuracy", metrics.accuracy
    yield from metrics.others.items()
