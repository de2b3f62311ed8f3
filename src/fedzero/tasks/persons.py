"""Whose each row is: the column that `privacy.person` names, as numbers.

A person is one unit, whose rows lie with one client: coins and bounds of several clients are independent of each other,
so a person at two of them would have two coins and twice the bound. Nothing here says a value of the column: a sentence
has counts, and what is kept of the names is which of them are equal.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.directions import Keys
from fedzero.errors import Invalid
from fedzero.tasks.partition import Indices, Partition, Parts, split

NAMES = str | bytes | int | float | np.generic | uuid.UUID | decimal.Decimal | datetime.date
"""What a person can be called by: values that are equal if and only if their texts are."""


def numbered(columns: Sequence[Iterable[Any]], name: str) -> list[Indices]:
    """The persons of the rows of each client as numbers, (rows,); the same person has the same number everywhere."""
    texts = [_texts(list(column), name, client) for client, column in enumerate(columns)]
    which = np.unique(np.concatenate([np.empty(0, "U1"), *texts]), return_inverse=True)[1].astype(np.int64)
    ends = np.cumsum([len(each) for each in texts])
    return [which[end - len(each) : end] for end, each in zip(ends, texts, strict=True)]


def _texts(column: list[Any], name: str, client: int) -> NDArray[np.str_]:
    missing = sum(map(_missing, column))
    if missing:
        raise Invalid(
            f"privacy.person = {name!r}: {missing:,} of {len(column):,} rows of client {client} have nobody in this "
            "column: leave them out, or give each a name of its own"
        )
    odd = next((cell for cell in column if not isinstance(cell, NAMES)), None)
    if odd is not None:
        raise Invalid(
            f"privacy.person = {name!r}: client {client} has values of type {type(odd).__name__} in this column: give "
            "words or whole numbers"
        )
    return np.array([_text(cell) for cell in column], dtype=np.str_)


def _missing(cell: Any) -> bool:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return True
    if np.ndim(cell):
        return False
    try:
        return bool(cell != cell)  # NaN
    except (TypeError, ValueError):  # of pandas: NA, of which nobody knows
        return True


def _text(cell: Any) -> str:
    """7, 7.0 and "7" are the same person: a frame in which somebody has no number has numbers with a point."""
    cell = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return cell.hex() if isinstance(cell, bytes) else str(cell)


def split_persons(partition: Partition, labels: Indices, persons: Indices, clients: int, keys: Keys) -> Parts:
    """A partition that deals out persons, each with all rows. The label of a person is the one of most of the rows."""
    found, which = np.unique(persons, return_inverse=True)
    counts = np.zeros((len(found), int(labels.max(initial=0)) + 1), np.int64)
    np.add.at(counts, (which, labels), 1)
    if clients > len(found):
        raise Invalid(f"there are more clients ({clients:,}) than persons to deal out: use fewer")
    owners = np.empty(len(found), np.int64)
    for client, members in enumerate(split(partition, counts.argmax(axis=1), clients, keys)):
        owners[members] = client
    return Parts.of(owners[which], clients)
