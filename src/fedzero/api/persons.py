"""The column that names persons, taken out of the data before anything is made of them: it is no feature.

fedzero.train(model, clients=[frame_a, frame_b], label="diagnosis", test=frame_c,
              privacy=fedzero.Privacy(epsilon=2, unit="person", person="patient_id", …), …)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedzero.api import given, tables
from fedzero.errors import Invalid, did_you_mean
from fedzero.lines import printable
from fedzero.tasks.persons import numbered
from fedzero.tasks.samples import Dealt, Indices, Samples, is_frame

WANTED = "give frames, datasets with columns, or dictionaries of arrays"


class Without:
    """A dataset without one of its columns."""

    def __init__(self, dataset: Any, name: str):
        self._dataset, self._name = dataset, name

    @property
    def column_names(self) -> list[str]:
        return [each for each in self._dataset.column_names if each != self._name]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            return self._dataset[place]
        return {name: cell for name, cell in self._dataset[place].items() if name != self._name}


def taken_out(
    clients: Any, apart: Mapping[str, Any], partition: Any, person: str, features: Any, label: str | None
) -> tuple[Any, dict[str, Any], Any, list[Indices]]:
    """Clients, other data by name and the partition, without the column; and the persons of the rows of each part of
    the clients' data."""
    tables.expect_names(features, label)
    if person in (label, *(features or ())):
        raise Invalid(f"privacy.person = {person!r} is a feature or the label, too: name another column")
    clients, partition = tables.partitioned(clients, partition)
    several = partition is None and isinstance(clients, list | tuple)
    parts = list(clients) if several else [clients]
    columns = [_column(part, person, f"client {number}" if several else "clients") for number, part in enumerate(parts)]
    parts = [_without(part, person) for part in parts]
    others = {
        name: [_without(part, person) for part in data] if isinstance(data, list) else _without(data, person)
        for name, data in apart.items()
    }
    return parts if several else parts[0], others, partition, numbered(columns, person)


def of_clients(persons: Sequence[Indices], dealt: Sequence[Samples]) -> list[Indices]:
    """The persons of every client's rows, from those of the parts that were given."""
    found = [persons[0][part] for part in dealt.parts] if isinstance(dealt, Dealt) else list(persons)
    for client, (mine, samples) in enumerate(zip(found, dealt, strict=True)):
        if len(mine) != len(samples):
            raise Invalid(f"client {client} has {len(samples):,} rows, and persons of {len(mine):,}: give one for each")
    return found


def of_rows(rows: Sequence[Sequence[Mapping[str, Any]]], person: str) -> list[Indices]:
    """The persons of rows that are dictionaries; a row without the column has nobody."""
    return numbered([[row.get(person) for row in each] for each in rows], person)


def _column(data: Any, person: str, whose: str) -> list[Any]:
    if isinstance(data, Mapping):
        names, found = list(data), data.get(person)
    elif is_frame(data):
        names = list(data.columns)
        found = data[person].to_numpy() if person in names else None
    elif tables.is_dataset(data):
        names = data.column_names
        found = data[person] if person in names else None
    else:
        raise Invalid(f"{whose} has data without columns, and privacy.person = {person!r} is one: {WANTED}")
    if found is None:
        advice = did_you_mean(person, [str(name) for name in names]) or f"there are {', '.join(map(str, names))}"
        raise Invalid(f"{whose} has no column privacy.person = {person!r}: {printable(advice, 200)}")
    if isinstance(found, np.ndarray | Tensor) or hasattr(found, "to_numpy"):
        return list(np.asarray(found.to_numpy() if hasattr(found, "to_numpy") else found).tolist())
    return list(found)


def _without(data: Any, person: str) -> Any:
    if isinstance(data, Mapping):
        return {name: column for name, column in data.items() if name != person}
    if is_frame(data):
        return data[[name for name in data.columns if name != person]]
    return Without(data, person) if tables.is_dataset(data) and person in data.column_names else data


def read(privacy: Mapping[str, Any] | None) -> str | None:
    """The column of a table of `[privacy]`; None: units are no persons."""
    person = None if privacy is None else privacy.get("person")
    return None if person is None else given.each(str, person=person)[0]
