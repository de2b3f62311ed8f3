"""Metrics of more data than those by which anything is chosen.

Whatever chooses (a stop, the best model, a search) reads `loss`, `accuracy` and the names of `others`. With data for
validation these are theirs, and metrics of test data stand beside them as `test loss`, `test accuracy`, ….
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from torch import Tensor

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics, Objective, Readied
from fedzero.oracles.rows import inner_no_rows, inner_row_losses

TEST = "test"


@dataclass(frozen=True, eq=False)
class Reported:
    """An objective, and others of the same function whose evaluations are reported beside its own, by name."""

    inner: Objective
    others: Mapping[str, Objective]

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[object], basis: Basis | None = None
    ) -> F64:
        return self.inner.losses(base, points, batches, basis)

    @property
    def no_rows(self) -> str:
        return inner_no_rows(self.inner)

    def row_losses(self, base: Params, points: Sequence[Terms], batch: object) -> F64:
        return inner_row_losses(self.inner, base, points, batch)

    def gradient(self, base: Params, batch: object) -> tuple[float, Tensor]:
        return self.inner.gradient(base, batch)

    def evaluate(self, params: Params) -> Metrics:
        metrics = self.inner.evaluate(params)
        beside = {
            f"{name} {metric}": value
            for name, objective in self.others.items()
            for metric, value in named(objective.evaluate(params)).items()
        }
        return msgspec.structs.replace(metrics, others=metrics.others | beside)

    def ready(self) -> None:
        for objective in (self.inner, *self.others.values()):
            if isinstance(objective, Readied):
                objective.ready()


def named(metrics: Metrics) -> dict[str, float]:
    """All metrics by name, as a history has them."""
    accuracy = {} if metrics.accuracy is None else {"accuracy": metrics.accuracy}
    return {"loss": metrics.loss} | accuracy | metrics.others
