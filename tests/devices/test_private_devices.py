"""[privacy] on devices: nothing but bounded integers leaves, ε is counted without amplification, at the server and on
the device; noise is never drawn twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from devices.fleet import fleet, recipe_of
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import PRIVACY
from fedzero.ledger.records import PrivateRound
from fedzero.privacy import gaussian
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs import session, statement
from fedzero.runs.progress import Silent
from ledgers import first_bad_round, rounds_of


def private(folder: Path, engine: dict[str, Any] | None = None, **privacy: Any) -> Recipe:
    table = msgspec.to_builtins(recipe_of(folder, engine))
    table["federation"] |= {"bound": 0.0}
    return recipes.decode(table | {"privacy": {"epsilon": 4.0, "present": True} | privacy})


def test_three_devices_make_a_run_with_privacy(tmp_path: Path) -> None:
    with fleet(tmp_path / "run", tmp_path) as processes:
        session.start(private(tmp_path), tmp_path / "run", Environment(), Silent())
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert first_bad_round(tmp_path / "run") is None
    rounds = rounds_of(tmp_path / "run")
    assert all(isinstance(record, PrivateRound) and not record.cohort and record.update for record in rounds)
    found = statement.statement_in(tmp_path / "run")
    readers, server = found.figures
    assert readers.epsilon == pytest.approx(gaussian.epsilon_of(found.sigma, 8, found.delta)) and server.epsilon is None
