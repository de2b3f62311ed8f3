"""Killed anywhere in the phases of a gathering, also where a host is lost between them, a run ends in the same
ledger."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import crash_child
import pytest
from killed import SameEnd

from fedzero.ledger.answers import files_of
from fedzero.ledger.store import Ledger

RECIPE = """
name = "summed"
rounds = 2
seed = 3
evaluate_every = 2
algorithm = { kind = "decomfl", rate = 0.01, directions = 2 }
task = { kind = "quadratic", dimension = 6, noise = 0.1 }
filters = [{ kind = "clip", norm = 4.0 }]
gathering = { kind = "test-masks" }
federation = { clients = 4, cohort = 3 }
engine = { kind = "local", merge = false }
"""


def test_killed_now_and_then(warm_server: Any, tmp_path: Path) -> None:
    case = SameEnd(warm_server, tmp_path, RECIPE, crash_child.go_summed)
    with closing(Ledger.open(tmp_path / "whole" / "ledger.db")) as ledger:
        rounds = list(ledger.rounds())
    drawn = Counter(crash_child.LOST in record.cohort for record in rounds)
    assert drawn[True] and all(record.update is not None for record in rounds)
    for record in rounds:
        lost = {(crash_child.LOST, "failed: the line is dead")} if crash_child.LOST in record.cohort else set()
        assert set(record.refused) == lost
    assert not any(path.exists() for path in files_of(tmp_path / "whole"))
    case.check(every=29)


@pytest.mark.slow
def test_killed_at_every_step(warm_server: Any, tmp_path: Path) -> None:
    SameEnd(warm_server, tmp_path, RECIPE, crash_child.go_summed).check(every=1)
