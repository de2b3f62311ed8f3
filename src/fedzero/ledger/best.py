"""The best evaluation of a run, by any of its metrics: the one rule for `run.best()`, patches and the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from fedzero.errors import FedzeroError, Invalid, did_you_mean
from fedzero.ledger.records import Evaluation
from fedzero.lines import printable

Mode = Literal["min", "max"]
LESS = frozenset(("loss", "error", "perplexity", "mse", "rmse", "mae", "nll", "wer", "regret"))
MORE = frozenset(("accuracy", "f1", "auc", "precision", "recall", "score", "reward", "match", "bleu", "rouge", "r2"))
"""The last word of a metric's name that says whether less or more of it is better."""


def best(evaluations: Iterable[Evaluation], metric: str | None = None, mode: Mode | None = None) -> Evaluation:
    """The evaluation with the best value, of equals the first one.

    metric: default: accuracy, and among equals the loss; where there is none, the loss. mode: whether a small or a
    large value is good, where the metric's name does not say it.
    """
    found = list(evaluations)
    if not found:
        raise FedzeroError("this run has no evaluation yet")
    if metric is None:
        return max(found, key=_by_accuracy)
    sign = 1 if mode_of(metric, mode) == "max" else -1
    values = [value_of(each, metric) for each in found]
    able = [(sign * value, -i) for i, value in enumerate(values) if value is not None and math.isfinite(value)]
    if not able:
        known = names(found)
        advice = did_you_mean(metric, known) or f"there are {', '.join(printable(name, 60) for name in known)}"
        raise Invalid(f"metric = {printable(repr(metric), 80)} has no finite value in this run: {advice}")
    return found[-max(able)[1]]


def _by_accuracy(evaluation: Evaluation) -> tuple[float, float]:
    values = evaluation.metrics.accuracy or 0.0, -evaluation.metrics.loss
    return values if all(map(math.isfinite, values)) else (-math.inf, -math.inf)


def mode_of(metric: str, mode: Mode | None = None) -> Mode:
    """Whether a small or a large value of a metric is good."""
    if mode is not None:
        if mode not in get_args(Mode):
            raise Invalid(f"mode = {mode!r} is not valid: give 'min' or 'max'")
        return mode
    word = metric.lower().replace("_", " ").replace("-", " ").split()[-1:]
    if not (LESS | MORE).intersection(word):
        raise Invalid(
            f"metric = {printable(repr(metric), 80)}: say whether less or more is better, mode = 'min' or 'max'"
        )
    return "min" if LESS.intersection(word) else "max"


def value_of(evaluation: Evaluation, metric: str) -> float | None:
    """The value of a metric by its name; None where it was not measured."""
    metrics = evaluation.metrics
    return {**metrics.others, "loss": metrics.loss, "accuracy": metrics.accuracy}.get(metric)


def names(evaluations: Sequence[Evaluation]) -> list[str]:
    """All metrics that were measured."""
    others = dict.fromkeys(name for each in evaluations for name in each.metrics.others)
    accuracy = ["accuracy"] if any(each.metrics.accuracy is not None for each in evaluations) else []
    return ["loss", *accuracy, *(name for name in others if name not in ("loss", "accuracy"))]
