"""Counted access to an objective. A zeroth-order method asks for `Losses` and gets values, nothing else."""

from fedzero.oracles.contract import (
    ALL_DATA,
    Answer,
    Ask,
    Basis,
    Gradient,
    Losses,
    Metrics,
    Objective,
    Pictures,
    Readied,
    RowLosses,
    Sample,
    Shards,
)
from fedzero.oracles.counted import GradientOracle, Oracle, answer_together
from fedzero.oracles.poisson import Poisson

__all__ = [
    "ALL_DATA",
    "Answer",
    "Ask",
    "Basis",
    "Gradient",
    "GradientOracle",
    "Losses",
    "Metrics",
    "Objective",
    "Oracle",
    "Pictures",
    "Poisson",
    "Readied",
    "RowLosses",
    "Sample",
    "Shards",
    "answer_together",
]
