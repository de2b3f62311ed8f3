"""A recipe that says fewer units than there are: δ would be for fewer, and a turn would have more of them than its
bound, so that one that comes pushes another one out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from slopes import Slopes

from fedzero import plugins
from fedzero.errors import FedzeroError
from fedzero.gatherings.private.units import PrivateUnits
from fedzero.links.contract import ClientContext, Contribution
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare


def recipe(population: int) -> recipes.Recipe:
    return recipes.decode(
        {
            "name": "more",
            "rounds": 2,
            "algorithm": {"kind": "decomfl", "rate": 0.001, "directions": 2},
            "task": {"kind": "test-slopes", "rows": 20},
            "federation": {"clients": 5, "cohort": 5},
            "privacy": {"sigma": 1.0, "unit": "example", "clip": 1.0, "population": population, "probability": 0.5},
        }
    )


def test_a_population_is_at_least_the_units_of_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins._registered["tasks"], "test-slopes", plugins.Plugin(Slopes, "", ""))
    prepare(recipe(100), Environment(folder=tmp_path))
    with pytest.raises(FedzeroError, match=r"privacy\.population = 99, and there are 100 units here"):
        prepare(recipe(99), Environment(folder=tmp_path))


def test_what_a_turn_with_more_units_than_its_bound_would_do() -> None:
    """Why it is refused: of two data sets that differ in one unit the sums differ by two."""
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], np.float32)
    link = PrivateUnits(clip=1.0, exponent=10, most=2)
    context = ClientContext(lambda: np.random.default_rng(0), entropy=np.random.default_rng(0).bytes)

    def sent(those: np.ndarray) -> np.ndarray:
        return link.on_client(Contribution(those.sum(0), None, rows=those), context).values

    assert np.linalg.norm(sent(rows) - sent(rows[1:])) > 1.9 > 1.0
