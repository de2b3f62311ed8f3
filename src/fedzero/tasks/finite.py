"""NaN and infinity in data, found before a run begins: later they look like a rate that is too high.

A model may know what to do with them (a mask is often made of −inf), so data alone are no reason to refuse: what counts
is the loss of the model that the run begins with. Arrays are looked at in whole, of other datasets `LOOKED_AT` samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.criteria import Batch
from fedzero.tasks.samples import LOOKED_AT, Columns, Dealt, Samples, whole_of

ALONE = torch.device("cpu")


def expect_finite_model(params: Params) -> None:
    """Refuse a model that the run cannot begin with."""
    for name, tensor in params.tensors.items():
        if not _finite(tensor):
            raise FedzeroError(
                f"the model has NaN or infinite numbers in {name!r} before the run begins: load it again"
            )


def expect_finite(
    clients: Sequence[Samples],
    tests: Sequence[Sequence[Samples]],
    losses: Callable[[Batch], Tensor],
    device: torch.device,
) -> None:
    """Refuse data that make the loss of the model NaN or infinite. losses: of a batch."""
    for owner, samples in _owned(clients, tests):
        odd = list(islice(_odd(samples), LOOKED_AT))
        rows = np.unique(np.array([row for row, _, _ in odd], np.int64))
        if not len(rows) or _finite(losses(samples.batch(rows, device))):
            continue
        for row, place, value in odd:
            if not _finite(losses(samples.batch(np.array([row]), device))):
                raise FedzeroError(
                    f"{owner(row)} has {value} in row {row}, {place}, and the loss of the model is not finite there: "
                    "clean the data, or let the model deal with such numbers"
                )


def _owned(
    clients: Sequence[Samples], tests: Sequence[Sequence[Samples]]
) -> Iterator[tuple[Callable[[int], str], Samples]]:
    """All samples, each once, with words for whose a row is."""
    if isinstance(clients, Dealt):
        yield lambda row: f"the dataset that is dealt out (client {_owner(row, clients, *tests)})", clients.whole
    else:
        for client, samples in enumerate(clients):
            yield lambda row, client=client: f"client {client}", whole_of(samples)  # type: ignore[misc]
    seen = {id(clients.whole)} if isinstance(clients, Dealt) else {id(whole_of(samples)) for samples in clients}
    for samples in (each for test in tests for each in test):
        if id(whole_of(samples)) not in seen:
            yield lambda row: "the test data", samples


def _owner(row: int, *dealt: Sequence[Samples]) -> int | None:
    found = [each.owner(row) for each in dealt if isinstance(each, Dealt)]
    return next((client for client in found if client is not None), None)


def expect_finite_loss(losses: Tensor, owner: str) -> None:
    """Of the model that a run begins with, on data that were found to be in order."""
    if not _finite(losses):
        raise FedzeroError(
            f"the loss of the model is not finite on the data of {owner} before the run begins, although the data are: "
            "look at the model, its weights and the loss"
        )


def _odd(samples: Samples) -> Iterator[tuple[int, str, float]]:
    """Row, place and value of numbers that are not finite: of every array and row the first."""
    if isinstance(samples, Columns):
        yield from _odd_columns(samples)
        return
    for row in np.unique(np.linspace(0, len(samples) - 1, min(len(samples), LOOKED_AT)).astype(int)):
        for place, tensor in _parts(samples.batch(np.array([row]), ALONE)):
            if not _finite(tensor):
                yield int(row), place, float(tensor[~torch.isfinite(tensor)][0])


def _odd_columns(samples: Columns) -> Iterator[tuple[int, str, float]]:
    for place, tensor in _parts(samples.columns):
        if _finite(tensor):
            continue
        flat = tensor.reshape(len(tensor), -1)
        for row in torch.nonzero(~torch.isfinite(flat).all(dim=1))[:, 0].tolist():
            column = int(torch.nonzero(~torch.isfinite(flat[row]))[0, 0])
            where = f"{place}, column {column}" if tensor.dim() > 1 else place
            yield row, where, float(flat[row, column])


def _parts(batch: Batch, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors of a batch, with words for which they are."""
    if isinstance(batch, Tensor):
        yield name or "the array", batch
    elif isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from _parts(part, repr(key))
    elif isinstance(batch, tuple | list):
        for number, part in enumerate(batch):
            yield from _parts(part, name or (("x", "y")[number] if len(batch) == 2 else f"array {number}"))


def _finite(tensor: Tensor) -> bool:
    """A sum is quicker than a look at every number; where it is not finite, it may have overflown."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
