"""Killed anywhere in a secure sum that loses a member in every round, a run ends in the same ledger."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import crash_child
import pytest
from killed import SameEnd

from fedzero.ledger.answers import files_of
from fedzero.ledger.store import Ledger

RECIPE = """
name = "secure"
rounds = 2
seed = 3
evaluate_every = 2
algorithm = { kind = "decomfl", rate = 0.01, directions = 2 }
task = { kind = "quadratic", dimension = 6, noise = 0.1 }
filters = [{ kind = "clip", norm = 4.0 }]
gathering = { kind = "secure-sum" }
federation = { clients = 5, cohort = 4 }
engine = { kind = "local", merge = false }
"""


def test_killed_now_and_then(warm_server: Any, tmp_path: Path) -> None:
    case = SameEnd(warm_server, tmp_path, RECIPE, crash_child.go_secure)
    with closing(Ledger.open(tmp_path / "whole" / "ledger.db")) as ledger:
        rounds = list(ledger.rounds())
    assert len(rounds) == 2 and all(record.update is not None and not record.refused for record in rounds)
    assert not any(path.exists() for path in files_of(tmp_path / "whole")), "keys of the run are left"
    case.check(every=31)


@pytest.mark.slow
def test_killed_at_every_step(warm_server: Any, tmp_path: Path) -> None:
    SameEnd(warm_server, tmp_path, RECIPE, crash_child.go_secure).check(every=1)
