"""The model of a run, measured on any data: at the end, before any round, client by client.

The model is that of the ledger, whatever the module holds by now. What is measured is what the task measures; nothing
is written to the ledger, and no queries or bytes are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedzero.api import given
from fedzero.api.table import Table
from fedzero.errors import FedzeroError, Invalid
from fedzero.ledger.best import Mode, mode_of
from fedzero.model.params import Params
from fedzero.oracles.reported import named
from fedzero.tasks.language.given import InMemoryModel
from fedzero.tasks.own import LocalTask
from fedzero.tasks.samples import Items, Samples, samples


class ByClient(Table):
    """Metrics of one model on the data of every client: client, rows, loss, …."""

    def mean(self, metric: str) -> float:
        """Over clients, each of the same weight."""
        return float(np.mean(self[metric]))

    def spread(self, metric: str) -> float:
        """The standard deviation over clients."""
        return float(np.std(self[metric]))

    def worst(self, metric: str, mode: Mode | None = None) -> tuple[int, float]:
        """The client with the worst value, and the value; mode: as of `run.best`."""
        sign = 1 if mode_of(metric, mode) == "min" else -1
        found = int(np.argmax(np.nan_to_num(sign * self[metric], nan=np.inf)))
        return int(self["client"][found]), float(self[metric][found])


def evaluate(
    functions: Mapping[str, Any], tensors: Mapping[str, Tensor], data: Any, collate: Any = None
) -> dict[str, float]:
    """Metrics by name of a model on data, which are given as test data are."""
    local = material(functions)
    if isinstance(local, InMemoryModel):
        return _measured(local, tensors, given.rows(data, "data"))
    parts = data if isinstance(data, list) else [data]
    return _measured(local, tensors, [_samples(local, part, collate, "data") for part in parts])


def evaluate_clients(
    functions: Mapping[str, Any], tensors: Mapping[str, Tensor], data: Sequence[Any] | None = None
) -> ByClient:
    """Metrics on the data of every client. data: of each client; default: what it trains on."""
    local, rows = material(functions), []
    count = len(local.clients)
    if data is not None and (isinstance(data, str | Mapping) or len(data) != count):
        raise Invalid(f"data: give a list with the data of each of the {count} clients")
    for client in range(count):
        own: Any = local.clients[client] if data is None else data[client]
        if isinstance(local, LocalTask):
            own = own if data is None else _samples(local, own, None, f"client {client}")
            metrics = _measured(local, tensors, [own])
        else:
            metrics = _measured(local, tensors, own)
        rows.append({"client": client, "rows": len(own)} | metrics)
    return ByClient.of_rows(rows)  # type: ignore[return-value]


def material(functions: Mapping[str, Any]) -> LocalTask | InMemoryModel:
    """Model, data and loss of this process."""
    found = next((each for each in functions.values() if isinstance(each, LocalTask | InMemoryModel)), None)
    if found is None:
        raise FedzeroError(
            "this process has neither loss nor data of the run: repeat the call of train() or finetune() that made it, "
            "which resumes it, or returns it at once if it is finished"
        )
    return found


def names(functions: Mapping[str, Any]) -> tuple[str, ...]:
    """Of the trained parameters, in the order of the module of this process."""
    return Params.of_module(_module(material(functions))).names


def _module(local: LocalTask | InMemoryModel) -> nn.Module:
    if isinstance(local, LocalTask):
        return local.module
    assert local.opened is not None
    module: nn.Module = local.opened.module
    return module


def _samples(local: LocalTask, data: Any, collate: Any, whose: str) -> Samples:
    first = local.test[0]
    own = first.collate if isinstance(first, Items) else None
    return samples(data, own if collate is None else collate, whose)


def _measured(local: LocalTask | InMemoryModel, tensors: Mapping[str, Tensor], data: Any) -> dict[str, float]:
    assert local.measuring is not None
    objective, params = local.measuring(data), Params.of_module(_module(local)).clone()
    params.load(tensors)
    return named(objective.evaluate(params))
