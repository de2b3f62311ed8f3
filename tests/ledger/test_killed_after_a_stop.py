"""Killed between the round after which a callback stopped the run and the end of the run: a resume that has no callback
ends it there, for the same reason and in the same ledger."""

from __future__ import annotations

import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import crash_child
from killed import KilledRun
from test_crash import SAME, together

from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded
from sampling import sampled

RECIPE = """
name = "stopped"
rounds = 5
seed = 3
evaluate_every = 2
algorithm = { kind = "decomfl", rate = 0.01, directions = 2 }
task = { kind = "quadratic", dimension = 6, noise = 0.1 }
federation = { clients = 3, cohort = 2 }
"""


@sampled
def test_killed_between_the_stop_and_the_end(warm_server: Any, tmp_path: Path, every: bool) -> None:
    case = KilledRun(warm_server, tmp_path, RECIPE, crash_child.go_stopped)
    right = case.undisturbed()
    assert (right["rounds"], right["reason"]) == (3, crash_child.ENOUGH)
    kinds = right["kinds"]
    stop, evaluation, end = [step for step, kind in enumerate(kinds) if kind == "COMMIT"][-3:]
    after = [step for step in crash_child.changing(kinds) if step > stop]
    points = after if every else [after[0], evaluation, end, kinds.index("replace", end), after[-1]]

    def killed_at(at: int) -> Any:
        if (code := (yield case.process(str(at), at))) != -signal.SIGKILL:
            return f"not killed at {at}: exit code {code}"
        left = shutil.copytree(tmp_path / str(at), tmp_path / f"{at} left")
        recorded.verified(left, Environment())
        with closing(Ledger.open(left / LEDGER)) as ledger:
            reasons = [record.stopped or "" for record in ledger.rounds()]
        if reasons != (["", ""] if at == stop else ["", "", crash_child.ENOUGH]):
            return f"killed at {at}: there were {reasons}"
        if (code := (yield case.process(str(at)))) != 0:
            return f"killed at {at}: exit code {code} on resume"
        found = case.report(str(at))
        if at == stop:  # nobody stopped it, as far as the disk knows
            return "" if (found["rounds"], found["reason"]) == (5, "") else f"killed at {at}: {found['rounds']} rounds"
        return "".join(f"killed at {at}: another {name}; " for name in (*SAME, "reason") if found[name] != right[name])

    assert [why for why in together(map(killed_at, [stop, *points])) if why] == []
