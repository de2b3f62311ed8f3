"""Whether a model and a loss of somebody's own can be evaluated on the data of every client, and why not.

What torch raises names matrices, not clients; a run would raise it rounds later. One client of every shape and type of
data is tried before a run begins, and what is raised afterwards is said in a sentence, with the error as its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.directions import Terms
from fedzero.errors import FedzeroError, Invalid
from fedzero.lines import printable
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics
from fedzero.oracles.criteria import IGNORED, Batch, Criterion, Supervised
from fedzero.oracles.module import ModuleObjective
from fedzero.tasks.samples import Columns, Part, Samples

TRIED = 8
"""Samples of a client that the model is tried on."""
CLASSES = (F.cross_entropy, F.nll_loss, nn.CrossEntropyLoss, nn.NLLLoss)
"""Losses whose targets are numbers of classes."""
LONGEST = 200
"""Characters of what torch says."""


def check_fit(
    module: nn.Module,
    criterion: Criterion,
    data: Iterable[tuple[str, Samples]],
    device: torch.device,
    check: Callable[[Batch], None],
) -> None:
    """Evaluate the module on a client of every kind of data, by name; raise `Invalid` where that cannot be done.

    check: is shown every batch first.
    """
    module.eval()
    seen: dict[Any, int | None] = {}
    for whose, samples in data:
        kind = _kind(samples, whose, device)
        if kind not in seen:
            check(batch := _some(samples, whose, TRIED, device))
            seen[kind] = _tried(module, criterion, batch, whose)
        if (classes := seen[kind]) is not None:
            _check_labels(samples, whose, classes, _ignored(criterion))


def _some(samples: Samples, whose: str, count: int, device: torch.device) -> Batch:
    try:
        return samples.batch(np.arange(min(count, len(samples))), device)
    except FedzeroError:
        raise
    except Exception as error:  # of a dataset or a collate function of somebody's own
        raise Invalid(f"{whose}: its samples cannot be made into a batch: {_said(error)}; give `collate`") from error


def _kind(samples: Samples, whose: str, device: torch.device) -> Any:
    """What a batch depends on beside its numbers: shapes and types."""
    if isinstance(samples, Part):
        return _kind(samples.whole, whose, device)
    return _shape(samples.columns if isinstance(samples, Columns) else _some(samples, whose, 1, device))


def _shape(batch: Batch) -> Any:
    if isinstance(batch, Tensor):
        return batch.dtype, tuple(batch.shape[1:])
    if isinstance(batch, Mapping):
        return tuple((name, _shape(part)) for name, part in batch.items())
    if isinstance(batch, tuple | list):
        return tuple(map(_shape, batch))
    return type(batch)


def _tried(module: nn.Module, criterion: Criterion, batch: Batch, whose: str) -> int | None:
    """Evaluate a batch; how many classes its labels may name, if they name any."""
    entered: list[str] = []
    hooks = [
        part.register_forward_pre_hook(lambda _, __, name=name: entered.append(name))
        for name, part in module.named_modules()
        if name and not list(part.children())
    ]
    try:
        with torch.no_grad():
            classes = _classes(module, criterion, batch)
            if classes is not None:
                _expect_classes(batch[1], classes, _ignored(criterion), whose)
            criterion.losses(module, batch)
            return classes
    except FedzeroError:
        raise
    except Exception as error:  # whatever a model or a loss of somebody's own raises
        place = f" (in {entered[-1]!r}, {module.get_submodule(entered[-1])})" if entered else ""
        found = f"{whose}: the model and the loss cannot be evaluated on {_described(batch)}"
        advice = _advice(module, criterion, batch, error)
        raise Invalid(f"{found}: {_said(error)}{printable(place, LONGEST)}; {advice}") from error
    finally:
        for hook in hooks:
            hook.remove()


def _names_classes(criterion: Criterion) -> bool:
    loss = criterion.loss if isinstance(criterion, Supervised) else None
    named = loss.func if isinstance(loss, partial) else loss
    return named in CLASSES or type(named) in CLASSES


def _ignored(criterion: Criterion) -> int:
    """The label that a loss of classes leaves out."""
    loss = criterion.loss if isinstance(criterion, Supervised) else None
    found = loss.keywords.get("ignore_index") if isinstance(loss, partial) else getattr(loss, "ignore_index", None)
    return IGNORED if found is None else int(found)


def _classes(module: nn.Module, criterion: Criterion, batch: Batch) -> int | None:
    if not (_names_classes(criterion) and isinstance(batch, tuple | list) and len(batch) == 2):
        return None
    outputs, labels = module(batch[0]), batch[1]
    whole = isinstance(labels, Tensor) and labels.dtype in (torch.int64, torch.uint8) and labels.dim() != 2
    return outputs.shape[1] if whole and isinstance(outputs, Tensor) and outputs.dim() > 1 else None


def _check_labels(samples: Samples, whose: str, classes: int, ignored: int) -> None:
    """Labels of arrays that no output is for."""
    whole = samples.whole if isinstance(samples, Part) else samples
    if not isinstance(whole, Columns) or isinstance(whole.columns, Mapping):
        return
    labels = whole.columns[1]
    _expect_classes(labels[samples.indices] if isinstance(samples, Part) else labels, classes, ignored, whose)


def _expect_classes(labels: Tensor, classes: int, ignored: int, whose: str) -> None:
    counted = labels[labels != ignored]
    low, high = (int(each) for each in torch.aminmax(counted)) if len(counted) else (0, 0)
    if low < 0 or high >= classes:
        raise Invalid(
            f"{whose} has labels from {low} to {high}, but the model has {classes} outputs, for the labels 0 to "
            f"{classes - 1}: number the labels from 0, or give the model more outputs"
        )


def _described(batch: Batch) -> str:
    """Types and shapes, as people write them."""
    if isinstance(batch, Tensor):
        return f"{_name(batch.dtype)} {list(batch.shape)}"
    if isinstance(batch, Mapping):
        return printable(", ".join(f"{name} {_described(part)}" for name, part in batch.items()), LONGEST)
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return f"x {_described(batch[0])} and y {_described(batch[1])}"
    return f"a {type(batch).__name__}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _said(error: Exception) -> str:
    """The first line of what was raised."""
    return f"{type(error).__name__}: {printable((str(error).strip().splitlines() or ['nothing said'])[0], LONGEST)}"


def _advice(module: nn.Module, criterion: Criterion, batch: Batch, error: Exception) -> str:
    weights = next((p for p in module.parameters() if p.is_floating_point()), None)
    x, y = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)
    if isinstance(x, Tensor) and weights is not None and x.is_floating_point() and x.dtype != weights.dtype:
        name = _name(weights.dtype)
        return f"the model is {name} and the data are {_name(x.dtype)}: give x.to(torch.{name})"
    if weights is not None and weights.dtype == torch.float16 and weights.device.type == "cpu":
        return "half precision does not work for every layer on a CPU: use model.bfloat16() or model.float()"
    if isinstance(y, Tensor) and _names_classes(criterion):
        if y.dtype != torch.int64:
            return "labels of this loss are whole numbers of 64 bits: give y.long()"
        if y.dim() == 2 and y.shape[1] == 1:
            return "labels of this loss are one number for each sample: give y.squeeze(1)"
    elif isinstance(y, Tensor) and not y.is_floating_point() and isinstance(error, RuntimeError):
        return "targets of this loss may have to be of the type of the outputs: give y.float()"
    return "give data as the model and the loss read them"


@dataclass(frozen=True, eq=False)
class OwnObjective:
    """An objective whose model, loss and metrics are somebody's own: what they raise is said in a sentence."""

    inner: ModuleObjective

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Batch], basis: Basis | None = None
    ) -> F64:
        with _own_code():
            return self.inner.losses(base, points, batches, basis)

    @property
    def no_rows(self) -> str:
        return self.inner.no_rows

    def row_losses(self, base: Params, points: Sequence[Terms], batch: Batch) -> F64:
        with _own_code():
            return self.inner.row_losses(base, points, batch)

    def gradient(self, base: Params, batch: Batch) -> tuple[float, Tensor]:
        with _own_code():
            return self.inner.gradient(base, batch)

    def evaluate(self, params: Params) -> Metrics:
        with _own_code():
            return self.inner.evaluate(params)


@contextmanager
def _own_code() -> Iterator[None]:
    try:
        yield
    except (FedzeroError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a model or a loss of somebody's own raises
        if "can't allocate memory" in str(error):  # which torch has no type for on a CPU
            raise
        raise FedzeroError(f"the model, the loss or a metric failed: {_said(error)}") from error
