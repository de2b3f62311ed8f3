"""Constraints g(x) ≤ 0 by penalty: w Σ max(0, g(x))² is added to the value of every box, before it is logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedzero.oracles.blackbox.attempts import Call, Cancellation, floats
from fedzero.oracles.blackbox.boxes import Functions, find
from fedzero.oracles.contract import F64


@dataclass(frozen=True)
class Limits:
    """Names of the functions g, and w."""

    names: tuple[str, ...] = ()
    penalty: float = 0.0

    def added_to(self, call: Call, functions: Functions) -> Call:
        """A box that adds the penalty. A constraint that fails is a failure of the attempt; where it is NaN or
        infinite, the box has no value."""
        if not self.names:
            return call
        limits = [find(name, functions) for name in self.names]

        def penalised(points: F64, timeout: float | None, cancellation: Cancellation) -> Any:
            values = floats(call(points, timeout, cancellation), len(points))
            excess = np.array([[floats(g(x.copy()), 1)[0] for g in limits] for x in points])
            with np.errstate(over="ignore", invalid="ignore"):
                total: F64 = np.asarray(values) + self.penalty * np.square(np.maximum(0.0, excess)).sum(axis=1)
            return total if len(total) > 1 else float(total[0])

        return penalised


NO_LIMITS = Limits()
