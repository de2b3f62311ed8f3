"""Killed anywhere in the phases of a gathering, also where a host is lost between them, a run ends in the same
ledger."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import crash_child
import pytest
from test_crash import SAME, together

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


class Case:
    """The recipe, and what it gives when nobody disturbs it."""

    def __init__(self, server: Any, folder: Path):
        self.server, self.folder, self.path = server, folder, folder / "recipe.toml"
        self.path.write_text(RECIPE)
        process = self.process("whole")
        process.join(300)
        assert process.exitcode == 0
        self.right = json.loads((folder / "whole.json").read_text())

    def process(self, name: str, at: int = -1) -> Any:
        arguments = str(self.path), str(self.folder / name), (at, "before")
        process = self.server.Process(target=crash_child.go_summed, args=arguments, daemon=True)
        process.start()
        return process

    def killed_at(self, at: int) -> Generator[Any, Any, list[str]]:
        if (code := (yield self.process(str(at), at))) != -signal.SIGKILL:
            return [f"not killed at {at}: exit code {code}"]
        if (code := (yield self.process(str(at)))) != 0:
            return [f"killed at {at}: exit code {code} on resume"]
        found = json.loads((self.folder / f"{at}.json").read_text())
        return [f"killed at {at}: another {name}" for name in SAME if found[name] != self.right[name]]

    def check(self, every: int) -> None:
        points = crash_child.changing(self.right["kinds"])[every - 1 :: every]
        wrong = together(self.killed_at(at) for at in points)
        assert [line for lines in wrong for line in lines] == []


def test_killed_now_and_then(warm_server: Any, tmp_path: Path) -> None:
    case = Case(warm_server, tmp_path)
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
    Case(warm_server, tmp_path).check(every=1)
