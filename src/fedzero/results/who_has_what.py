"""Which client has how many samples of which class: of data that are here. No ledger has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import FedzeroError
from fedzero.recipe.environment import Environment
from fedzero.runs.recorded import reopen
from fedzero.tasks.labels import labels_in
from fedzero.tasks.language.given import InMemoryModel
from fedzero.tasks.own import LocalTask
from fedzero.tasks.samples import Samples, labels_of, whole_of


@dataclass(frozen=True)
class Holdings:
    """counts: (clients, classes)."""

    counts: NDArray[np.int64]
    classes: tuple[str, ...]


def holdings(folder: Path, environment: Environment, label: str = "label") -> Holdings:
    """Of a run whose data this process has or can make again. label: the field of rows that are given."""
    for found in environment.functions.values():
        if isinstance(found, LocalTask):
            return counted([labels_by_name(samples) for samples in found.clients])
        if isinstance(found, InMemoryModel):
            return counted([np.array([str(row.get(label, "")) for row in rows]) for rows in found.clients])
    ledger, setup = reopen(folder, environment)
    ledger.close()
    if (labels := labels_in(setup.problem.shards)) is not None:
        return counted(labels)
    raise FedzeroError(f"the data of {folder} have no classes here: repeat the call that began the run")


def labels_by_name(samples: Samples) -> NDArray[Any]:
    """The labels of a client's samples, as they are."""
    whole, indices = whole_of(samples), getattr(samples, "indices", None)
    labels = labels_of(whole, numbered=False)
    return labels if indices is None else labels[indices]


def counted(labels: Sequence[NDArray[Any]]) -> Holdings:
    """A row for each client, a column for each label that anybody has, in order."""
    classes, numbers = np.unique(np.concatenate(labels), return_inverse=True)
    if len(classes) > 1000:
        raise FedzeroError(f"there are {len(classes):,} different labels: they are no classes")
    owners = np.repeat(np.arange(len(labels)), [len(each) for each in labels])
    counts = np.zeros((len(labels), len(classes)), np.int64)
    np.add.at(counts, (owners, numbers), 1)
    return Holdings(counts, tuple(str(name) for name in classes.tolist()))
