"""A small run that callbacks and loggers are told of."""

from __future__ import annotations

from typing import Any

ROUNDS = 9
RECIPE: dict[str, Any] = {
    "name": "told",
    "rounds": ROUNDS,
    "evaluate_every": 3,
    "algorithm": {"kind": "decomfl", "rate": 0.01},
    "task": {"kind": "quadratic", "dimension": 4},
    "federation": {"clients": 3, "cohort": 2},
    "engine": {"kind": "local", "merge": False, "device": "cpu"},
}
