"""The samples of one client, whatever they are kept in, as batches by position."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from fedzero.errors import FedzeroError, Invalid
from fedzero.lines import printable
from fedzero.oracles.criteria import Batch

Indices = NDArray[np.int64]
Collate = Callable[[list[Any]], Batch]
LOOKED_AT = 64
"""Items of a dataset that its digest covers: spread evenly, with the first and the last."""


class Samples(Protocol):
    def __len__(self) -> int: ...

    def batch(self, chosen: Indices, device: torch.device) -> Batch: ...

    def digest(self) -> bytes: ...


class Columns:
    """Tensors of equal length, side by side: a batch has the structure of `columns` (a tuple or a dictionary)."""

    def __init__(self, columns: tuple[Tensor, ...] | Mapping[str, Tensor]):
        self.columns = columns
        self._moved: tuple[torch.device, Any] | None = None

    def __len__(self) -> int:
        return len(next(iter(self._tensors())))

    def _tensors(self) -> Sequence[Tensor]:
        return tuple(self.columns.values()) if isinstance(self.columns, Mapping) else self.columns

    def batch(self, chosen: Indices, device: torch.device) -> Batch:
        if self._moved is None or self._moved[0] != device:  # once: batches are taken on the device
            self._moved = device, moved(self.columns, device)
        index, columns = torch.from_numpy(chosen).to(device), self._moved[1]
        if isinstance(columns, Mapping):  # `tensor[index]` gives the same, and takes up to 3 ms on a CPU
            return {name: tensor.index_select(0, index) for name, tensor in columns.items()}
        return tuple(tensor.index_select(0, index) for tensor in columns)

    def digest(self) -> bytes:
        hashed = hashlib.sha256()
        for tensor in self._tensors():
            hashed.update(content(tensor))
        return hashed.digest()


class Items:
    """A map-style dataset; `collate` makes a batch of a list of its items."""

    def __init__(self, dataset: Any, collate: Collate | None = None):
        self.dataset, self.collate = dataset, collate or default_collate

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, chosen: Indices, device: torch.device) -> Batch:
        return moved(self.collate([self.dataset[int(i)] for i in chosen]), device)

    def digest(self) -> bytes:
        """Of the length and some items, which must be the same when they are read again."""
        places = np.unique(np.linspace(0, len(self) - 1, min(len(self), LOOKED_AT)).astype(int))
        found = [hashlib.sha256(b"".join(_bytes(self.dataset[int(i)]) for i in places)).digest() for _ in range(2)]
        if found[0] != found[1]:
            raise FedzeroError(
                f"{type(self.dataset).__name__} gives other items when it is read again: a run could not be resumed to "
                "the same model; turn random transformations off"
            )
        return hashlib.sha256(str(len(self)).encode() + found[0]).digest()


class Part:
    """Some samples of a dataset that is dealt out."""

    def __init__(self, whole: Samples, indices: Indices):
        self.whole, self.indices = whole, indices

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, chosen: Indices, device: torch.device) -> Batch:
        return self.whole.batch(self.indices[chosen], device)

    def digest(self) -> bytes:
        return hashlib.sha256(self.indices.tobytes()).digest()


class Dealt(Sequence[Part]):
    """A dataset that is dealt out to clients; a part is made when it is asked for."""

    def __init__(self, whole: Samples, parts: Sequence[Indices]):
        self.whole, self.parts = whole, parts

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, client: Any) -> Any:
        return Part(self.whole, self.parts[client])

    def owner(self, row: int) -> int | None:
        """The client that has a row of the dataset."""
        return next((client for client, part in enumerate(self.parts) if row in part), None)


def whole_of(data: Samples) -> Samples:
    """What they are some samples of; else themselves."""
    return data.whole if isinstance(data, Part) else data


def samples(data: Any, collate: Collate | None = None, whose: str = "a client") -> Samples:
    """Pairs (or longer tuples) of arrays or frames, dictionaries of arrays, or a map-style dataset.

    whose: they are, for the sentence that refuses anything else.
    """
    if isinstance(data, TensorDataset) and collate is None:
        data = data.tensors
    if isinstance(data, Mapping) and data and all(map(_is_array, data.values())):
        return _columns({name: _column(column, whose, f"{name!r}") for name, column in data.items()}, whose)
    if isinstance(data, tuple) and len(data) > 1 and all(map(_is_array, data)):
        return _columns(tuple(_column(column, whose, f"array {i}") for i, column in enumerate(data)), whose)
    if is_frame(data):
        raise Invalid(
            f"{whose} has a frame of {_names(data)}: name its column of targets, label = …, or give a pair, "
            "(frame[inputs], frame[target])"
        )
    if isinstance(data, tuple) and data and all(isinstance(column, list) for column in data):
        raise Invalid(f"{whose} has a tuple of lists: give arrays, such as (numpy.array(x), numpy.array(y))")
    if isinstance(data, str | Mapping) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise Invalid(
            f"{whose} has data of type {type(data).__name__}: give a pair of arrays (x, y), a dictionary of arrays, or "
            "a dataset with a length whose items can be had by number"
        )
    if not len(data):
        raise Invalid(f"{whose} has no samples: give at least one")
    return Items(data, collate)


def _columns(columns: Any, whose: str) -> Columns:
    lengths = {len(c) for c in (columns.values() if isinstance(columns, Mapping) else columns)}
    if len(lengths) != 1 or 0 in lengths:
        raise Invalid(f"{whose} has arrays that have {sorted(lengths)} rows: give as many of each, at least one")
    return Columns(columns)


def _column(column: Any, whose: str, which: str) -> Tensor:
    """A column as a tensor. Frames have numbers of 64 bits whether anybody wants them or not: they become float32."""
    array = np.array(column.to_numpy()) if hasattr(column, "to_numpy") else column
    try:
        found = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        names = f" of {_names(column)}" if is_frame(column) else ""
        raise Invalid(
            f"{whose} has in {which}{names} values of type {getattr(array, 'dtype', '?')}, which torch does not read: "
            f"give numbers ({error})"
        ) from None
    if found.layout != torch.strided or found.is_complex():
        raise Invalid(
            f"{whose} has in {which} a sparse or a complex tensor: give real numbers, all of them (.to_dense())"
        )
    return found.float() if array is not column and found.dtype == torch.float64 else found


def is_frame(data: Any) -> bool:
    """Whether this is a table of pandas, polars or the like."""
    return hasattr(data, "to_numpy") and hasattr(data, "columns")


def _names(frame: Any) -> str:
    return f"the columns {printable(', '.join(map(str, frame.columns)), 80)}"


def labels_of(data: Samples, numbered: bool = True) -> NDArray[Any]:
    """The labels of a dataset that is dealt out by them: the last column, `targets`, or the last entry of each item.

    numbered: from 0, in their order; else as they are.
    """
    if isinstance(data, Columns):
        named = data.columns.get("label", data.columns.get("labels")) if isinstance(data.columns, Mapping) else None
        found: Any = data._tensors()[-1] if named is None else named
    else:
        dataset = data.dataset  # type: ignore[attr-defined]
        found = getattr(dataset, "targets", None)
        try:
            found = [dataset[i][-1] for i in range(len(dataset))] if found is None else found
        except (KeyError, TypeError, IndexError):
            found = ()
    array = np.asarray(found)
    if array.ndim != 1 or len(array) != len(data):
        raise FedzeroError("the dataset has no labels: use partition = 'iid', or give a list of datasets")
    return np.unique(array, return_inverse=True)[1].astype(np.int64) if numbered else array


def moved(batch: Batch, device: torch.device) -> Batch:
    """All tensors of a batch on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: moved(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(moved(part, device) for part in batch)
    return batch


def content(tensor: Tensor) -> bytes:
    """Shape, type and bytes of a tensor."""
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{tuple(tensor.shape)} {tensor.dtype}".encode() + values


def _is_array(value: Any) -> bool:
    return (isinstance(value, Tensor | np.ndarray) or hasattr(value, "to_numpy")) and getattr(value, "ndim", 1) > 0


def _bytes(item: Any) -> bytes:
    if isinstance(item, Tensor):
        return content(item)
    if isinstance(item, Mapping):
        return b"".join(str(name).encode() + _bytes(item[name]) for name in item)
    if isinstance(item, tuple | list):
        return b"".join(map(_bytes, item))
    return item.tobytes() if isinstance(item, np.ndarray | np.generic) else pickle.dumps(item, 5)
