"""Access to an objective, counted. A zeroth-order method asks for `Losses` and gets values, nothing else."""

from fedzero.oracles.contract import Answer, Ask, Gradient, Losses, Metrics, Objective, Shards
from fedzero.oracles.counted import GradientOracle, Oracle, answer_together

__all__ = [
    "Answer",
    "Ask",
    "Gradient",
    "GradientOracle",
    "Losses",
    "Metrics",
    "Objective",
    "Oracle",
    "Shards",
    "answer_together",
]
