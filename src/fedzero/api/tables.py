"""Data as people have it, as what clients hold: frames, `datasets` of Hugging Face, folders of images, and what a
partitioner of Flower Datasets deals out.

    fedzero.train(model, clients=frame, label="diagnosis", partition="dirichlet", count=20, …)

Nothing of these libraries is imported: their values are known by what they have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedzero.api.images import class_names, images, pixels
from fedzero.errors import Invalid, did_you_mean
from fedzero.lines import printable, said_of
from fedzero.model.value import quoted
from fedzero.tasks.samples import is_frame

Names = Sequence[str] | None
Array = NDArray[Any]


def is_dataset(data: Any) -> bool:
    """Whether this is a `datasets.Dataset` or has its columns."""
    return isinstance(getattr(data, "column_names", None), list) and hasattr(data, "__getitem__")


def is_partitioner(value: Any) -> bool:
    """Whether this deals a dataset out as partitioners of Flower Datasets do."""
    return callable(getattr(value, "load_partition", None))


def partitioned(clients: Any, partition: Any) -> tuple[Any, Any]:
    """Clients and partition; with those of a partitioner in its place, which may be either of both."""
    if is_partitioner(partition):
        return _dealt_by(partition, clients), None
    return _dealt_by(clients) if is_partitioner(clients) else clients, partition


def _dealt_by(partitioner: Any, dataset: Any = None) -> list[Any]:
    """The dataset of every client, from a partitioner that has one or is given one."""
    try:
        if dataset is not None:
            partitioner.dataset = dataset
        return [partitioner.load_partition(number) for number in range(int(partitioner.num_partitions))]
    except Exception as error:  # of a library of somebody else
        whose = f"the partitioner {type(partitioner).__name__} has not dealt out its dataset"
        raise Invalid(f"{whose}: {said_of(error)}") from error


def opened(
    clients: Any, apart: Mapping[str, Any], partition: Any, features: Names, label: str | None
) -> tuple[Any, dict[str, Any], Any]:
    """Clients, other data by name, partition: tables and folders as pairs of tensors (x, y), anything else as it is.

    Labels that are no numbers are numbered in their order, over all of them.
    """
    expect_names(features, label)
    clients, partition = partitioned(clients, partition)
    several = partition is None and isinstance(clients, list | tuple)
    parts = list(clients) if several else [clients]
    others = [part for data in apart.values() for part in (data if isinstance(data, list) else [data])]
    convert = _converter([*parts, *others], features, label)
    parts = [convert(part, f"client {number}" if several else "clients") for number, part in enumerate(parts)]
    found = {
        name: [convert(part, name) for part in data] if isinstance(data, list) else convert(data, name)
        for name, data in apart.items()
    }
    return parts if several else parts[0], found, partition


def expect_names(features: Any, label: Any) -> None:
    named = (
        isinstance(features, Sequence) and not isinstance(features, str) and all(isinstance(f, str) for f in features)
    )
    if features is not None and not (named and features):
        raise Invalid(f"features = {quoted(features)} is not valid: give a list of names of columns")
    if label is not None and not isinstance(label, str):
        raise Invalid(f"label = {quoted(label)} is not valid: give the name of a column")
    if features is not None and label is None:
        raise Invalid("features are given and no label: name the column of the targets, label = …")


def _converter(data: Sequence[Any], features: Names, label: str | None) -> Callable[[Any, str], Any]:
    """What makes pairs of every part of the data, with the same numbers for the same classes."""
    folders = [part for part in data if isinstance(part, str | os.PathLike)]
    names = class_names(folders) if folders else []
    tables = [part for part in data if label is not None and (is_frame(part) or is_dataset(part))]
    words = sorted({str(word) for part in tables for word in _words(_column(part, str(label), "data"))})

    def convert(part: Any, whose: str) -> Any:
        if isinstance(part, str | os.PathLike):
            return images(part, classes=names)
        if label is None or part is None:
            return part
        if not (is_frame(part) or is_dataset(part)):
            raise Invalid(
                f"{whose} has data of type {type(part).__name__}, and label = {label!r} names a column: give a frame "
                "or a dataset with columns, or leave label out"
            )
        return _inputs(part, features, label, whose), _targets(_column(part, label, whose), words, label, whose)

    return convert


def _names(table: Any) -> list[Any]:
    return list(table.columns if is_frame(table) else table.column_names)


def _column(table: Any, name: str, whose: str) -> Array:
    """A column as an array: of a dataset as it lists it, of objects where these are no numbers."""
    names = _names(table)
    if name not in names:
        advice = did_you_mean(name, [str(each) for each in names]) or f"there are {', '.join(map(str, names))}"
        raise Invalid(f"{whose} has no column {name!r}: {printable(advice, 200)}")
    if is_frame(table):
        return np.asarray(table[name].to_numpy())
    cells = list(table[name])
    if cells and hasattr(cells[0], "convert") and hasattr(cells[0], "size"):  # pictures of pillow
        return pixels(cells, whose)
    return np.asarray([np.asarray(cell) for cell in cells] if cells and np.ndim(cells[0]) else cells)


def _words(column: Array) -> list[Any]:
    """The labels of a column that are no numbers."""
    return [] if column.dtype.kind in "biuf" else [word for word in column.tolist() if isinstance(word, str | bool)]


def _inputs(table: Any, features: Names, label: str, whose: str) -> Tensor:
    """Columns side by side as float32, (n, k); one column of arrays or pictures as it is, (n, …)."""
    chosen = [name for name in _names(table) if name != label] if features is None else list(features)
    if not chosen:
        raise Invalid(f"{whose} has no column beside {label!r}: there is nothing to learn from")
    columns = [_numbers(_column(table, name, whose), name, whose) for name in chosen]
    if len(columns) == 1 and columns[0].ndim > 1:
        return torch.from_numpy(columns[0])
    return torch.from_numpy(np.concatenate([each.reshape(len(each), -1) for each in columns], axis=1))


def _numbers(column: Array, name: str, whose: str) -> Array:
    odd = "" if column.dtype.kind in "biufO" else f"values of type {column.dtype}"
    if column.dtype.kind == "O":
        try:
            column = column.astype(np.float64)
        except (TypeError, ValueError):
            odd = quoted(next((cell for cell in column.tolist() if not isinstance(cell, int | float)), None))
    if odd:
        advice = "inputs are numbers, so encode the column, or name others, features = [\u2026]"
        raise Invalid(f"{whose} has {odd} in the column {name!r}: {advice}")
    return np.ascontiguousarray(column, np.float32)


def _targets(column: Array, words: Sequence[str], label: str, whose: str) -> Tensor:
    """Whole numbers and truth values as int64, others as float32, words as their places in `words`."""
    if column.dtype.kind in "biu":
        return torch.from_numpy(column.astype(np.int64))
    if column.dtype.kind == "f":
        return torch.from_numpy(column.astype(np.float32))
    places = {word: place for place, word in enumerate(words)}
    odd = [cell for cell in column.tolist() if not isinstance(cell, str | bool)]
    if odd:
        raise Invalid(
            f"{whose} has {quoted(odd[0])} among the labels of {label!r}: give numbers or words, in every row"
        )
    return torch.tensor([places[str(cell)] for cell in column.tolist()])
