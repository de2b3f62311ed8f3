"""Private runs over pipes: hosts are processes that draw their units, and keep what they drew in the run's folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.correspondence import Correspondence
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.pipe import Pipes
from fedzero.ledger.answers import FILE
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session, statement
from fedzero.runs.progress import Silent
from fedzero.runs.spending.budget import Budget
from fedzero.runs.spending.charges import Policy
from fedzero.testing.engines import SiteProgram
from ledgers import rounds_of

NAMES = ["north", "south", "west"]


def recipe(rounds: int = 3, processes: int = 5, **privacy: Any) -> recipes.Recipe:
    return recipes.decode(
        {
            "name": "pipes",
            "rounds": rounds,
            "evaluate_every": 3,
            "algorithm": {"kind": "decomfl", "rate": 0.01, "directions": 4},
            "task": {"kind": "quadratic", "dimension": 12},
            "federation": {"clients": 6, "cohort": 3},
            "engine": {"kind": "remote", "transport": {"kind": "pipe", "hosts": processes}, "merge": False},
            "privacy": {"sigma": 2.0} | privacy,
        }
    )


@pytest.mark.parametrize(
    ("processes", "privacy"),
    [
        (2, {"hosts": 2, "noise": "local"}),
        pytest.param(5, {"hosts": 5, "noise": "distributed", "sum": "secure"}, marks=pytest.mark.slow),
        pytest.param(2, {}, marks=pytest.mark.slow, id="the server draws"),
    ],
)
def test_hosts_of_pipes_draw_their_units(tmp_path: Path, processes: int, privacy: dict[str, Any]) -> None:
    found = session.start(recipe(processes=processes, **privacy), tmp_path / "run", Environment(), Silent())
    records = rounds_of(tmp_path / "run")
    assert found.complete and len(records) == 3
    assert not any(record.cohort or record.refused for record in records)
    if "sum" not in privacy:  # a committee loses a round for which hosts are late, as on a machine that is busy
        assert all(record.update for record in records)
    assert (found.epsilon == found.epsilon_server) == ("noise" in privacy)
    assert not (tmp_path / "run" / FILE).exists(), "what was drawn is removed at the end"
    assert statement.statement_in(tmp_path / "run").simulated
    recorded.verified(tmp_path / "run", Environment())


class Killing(Silent):
    """Kills the process of a site after the first round."""

    def __init__(self, pipes: Pipes, name: str):
        self.pipes, self.name, self.killed = pipes, name, 0

    def round(self, record: Any) -> None:
        if record.round == 0:
            self.killed = self.pipes.processes[self.name].pid
            os.kill(self.killed, signal.SIGKILL)


def test_a_site_whose_process_is_killed_goes_on_with_its_coins(tmp_path: Path) -> None:
    pipes = Pipes(NAMES, SiteProgram(tmp_path / "sites"))
    watch = Killing(pipes, "south")
    try:
        service = Service(Correspondence(pipes), lambda: NAMES)
        made = recipe(rounds=12, noise="local")
        found = run_at_sites(made, tmp_path / "run", Environment(), watch, service)
        assert pipes.processes["south"].pid != watch.killed != 0
    finally:
        pipes.close()
    assert found.complete and found.epsilon == found.epsilon_server
    for name in NAMES:
        budget = Budget(tmp_path / "sites" / name, Policy())
        (total,) = budget.totals()
        budget.close()
        assert total.attempts == 12 or (name == "south" and 1 <= total.attempts < 12), "paid once for a round"
    recorded.verified(tmp_path / "run", Environment())
