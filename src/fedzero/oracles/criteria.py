"""What is measured of a module on a batch: the losses of its samples, and metrics of held-out batches.

A batch is a tensor, a tuple, a list or a dictionary of batches; the first axis of every tensor counts samples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.errors import FedzeroError
from fedzero.lines import printable
from fedzero.oracles.contract import Metrics

Batch = Any
ACCURACY = "accuracy"
IGNORED = -100
"""The label that torch's cross-entropy leaves out of its mean."""


RESERVED = frozenset(
    {"round", "loss", "seconds", "queries", "train_loss", "test_loss", "bytes_up", "bytes_down"}
    | {"bytes_up_per_client", "bytes_down_per_client"}
)
"""Columns of every history and export: names that no metric can have."""


CROSS_ENTROPY = partial(F.cross_entropy, reduction="none")


class Criterion(Protocol):
    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of every sample (n, …), or of the batch as a whole ()."""
        ...

    def measure(self, model: nn.Module, batches: Sequence[Batch]) -> Metrics:
        """Metrics of all batches together."""
        ...


@dataclass(frozen=True, eq=False)
class Supervised:
    """loss(model(x), y) of pairs (x, y); metrics(outputs, y) of all outputs together, by name."""

    loss: Callable[[Any, Any], Tensor] = CROSS_ENTROPY
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_reserved(self.metrics)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return self.loss(model(x), y)

    def measure(self, model: nn.Module, batches: Sequence[Batch]) -> Metrics:
        total, count, outputs = 0.0, 0, []
        for x, y in batches:
            output, samples = model(x), samples_of((x, y))
            values = self.loss(output, y).double()
            total += float(values.sum()) * (samples / values.numel())
            count += samples
            outputs.append(output)
        if not self.metrics:
            return Metrics(total / count)
        predicted, targets = joined(outputs), joined([y for _, y in batches])
        return metrics_of(
            total / count, {name: _number(name, f, predicted, targets) for name, f in self.metrics.items()}
        )


@dataclass(frozen=True, eq=False)
class Stepwise:
    """objective(model, batch) of any batch; metrics(model, batch), averaged over samples, by name."""

    objective: Callable[[nn.Module, Batch], Tensor]
    metrics: Mapping[str, Callable[[nn.Module, Batch], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_reserved(self.metrics)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.objective(model, batch)

    def measure(self, model: nn.Module, batches: Sequence[Batch]) -> Metrics:
        sizes = [samples_of(batch) for batch in batches]

        def mean(values: Sequence[Any]) -> float:
            return sum(float(value) * n for value, n in zip(values, sizes, strict=True)) / sum(sizes)

        loss = mean([self.objective(model, batch).double().mean() for batch in batches])
        named = {name: mean([_number(name, f, model, batch) for batch in batches]) for name, f in self.metrics.items()}
        return metrics_of(loss, named)


def _number(name: str, metric: Callable[..., Any], *arguments: Any) -> float:
    """What a metric of somebody's own gives; an error names it."""
    try:
        return float(metric(*arguments))
    except FedzeroError:
        raise
    except Exception as error:  # whatever it raises
        said = f"{type(error).__name__}: {printable(str(error), 200)}"
        raise FedzeroError(f"metrics[{name!r}] gave no number: {said}") from error


def refuse_reserved(names: Iterable[str]) -> None:
    """Names of metrics that would take the place of something else."""
    for name in names:
        if not isinstance(name, str) or not name or name in RESERVED:
            raise FedzeroError(
                f"metrics has the name {name!r}, which a history uses itself or which is no name: call it something "
                f"else; taken are {', '.join(sorted(RESERVED))}"
            )


def metrics_of(loss: float, named: Mapping[str, float]) -> Metrics:
    others = {name: value for name, value in named.items() if name != ACCURACY}
    return Metrics(loss, named.get(ACCURACY), others)


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest output is that of their label."""
    return int((outputs.argmax(-1) == labels).sum()) / len(labels)


MEANS = (
    *(F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss),
    *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits),
)
MODULES = (
    *(nn.CrossEntropyLoss, nn.NLLLoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.SoftMarginLoss),
    *(nn.BCELoss, nn.BCEWithLogitsLoss),
)
"""Losses of torch that are means over samples, unless they have weights."""


def per_sample(loss: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """A loss of torch without its mean, so that the batches of several clients can share one pass; others as they are.

    Labels that a loss ignores would count in the mean of samples, so they are refused (`refuse_ignored`).
    """
    if loss in MEANS:
        return partial(loss, reduction="none")
    if type(loss) in MODULES and loss.reduction == "mean" and getattr(loss, "weight", None) is None:  # type: ignore[attr-defined]
        whole = copy.copy(loss)
        whole.reduction = "none"  # type: ignore[attr-defined]
        return whole
    return loss


def refuse_ignored(loss: Callable[[Any, Any], Tensor], labels: Any) -> None:
    """Labels of −100 in a batch of a cross-entropy that is averaged over samples."""
    named = loss.func if isinstance(loss, partial) else type(loss)
    ignores = named in (F.cross_entropy, F.nll_loss, nn.CrossEntropyLoss, nn.NLLLoss) and isinstance(labels, Tensor)
    if ignores and not labels.is_floating_point() and bool((labels == IGNORED).any()):
        raise FedzeroError(
            f"labels of {IGNORED} are ignored by the loss, so it is no mean over samples: give `objective` instead of "
            "`loss`, for instance objective=lambda model, batch: cross_entropy(model(batch[0]), batch[1])"
        )


def samples_of(batch: Batch) -> int:
    """How many samples a batch has: the length of its first tensor."""
    if isinstance(batch, Mapping):
        return samples_of(next(iter(batch.values())))
    return samples_of(batch[0]) if isinstance(batch, tuple | list) else len(batch)


def joined(batches: Sequence[Batch]) -> Any:
    """Batches of the same structure as one, along the first axis; None where their shapes do not fit."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(batches)) if len({batch.shape[1:] for batch in batches}) == 1 else None
    if isinstance(first, Mapping):
        parts = {name: joined([batch[name] for batch in batches]) for name in first}
        return None if any(part is None for part in parts.values()) else parts
    if isinstance(first, tuple | list):
        columns = [joined(column) for column in zip(*batches, strict=True)]
        return None if any(column is None for column in columns) else tuple(columns)
    return None
