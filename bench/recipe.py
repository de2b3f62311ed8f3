"""A recipe whose clients compute next to nothing, so that a bench measures all the rest."""

from __future__ import annotations

from typing import Any

from fedzero.recipe import recipe as recipes


def quadratic(
    name: str, rounds: int, clients: int, cohort: int, directions: int, dimension: int = 10, **more: Any
) -> recipes.Recipe:
    """DeComFL on a quadratic, evaluated after the last round; more: further keys of the recipe and of its tables."""
    table = {
        "name": name,
        "rounds": rounds,
        "evaluate_every": rounds,
        "algorithm": {"kind": "decomfl", "rate": 0.001, "directions": directions, "distribution": "rademacher"},
        "task": {"kind": "quadratic", "dimension": dimension},
        "federation": {"clients": clients, "cohort": cohort},
    }
    return recipes.decode(table | more)
