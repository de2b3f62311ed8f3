"""What takes a minute: a worker killed in every round, a machine that goes away, whole runs, the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from same_ledger import content_of

from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

pytestmark = pytest.mark.slow
PATIENCE = 120


class AfterRound(Silent):
    """Does something after every round."""

    def __init__(self, act: Any):
        self.act = act

    def round(self, record: Any) -> None:
        self.act(record.round)


def test_a_worker_killed_in_each_of_twenty_rounds_changes_no_bit(
    cluster: Any, recipe: Any, tmp_path: Path, killing: list[tuple[int, int]]
) -> None:
    made = recipe({"kind": "scaffold-zo", "rate": 0.01}, rounds=20)
    session.start(made, tmp_path / "local", Environment(), Silent())
    killing += [(round, 0) for round in range(20)]
    session.start(recipes.with_engine(made, "ray"), tmp_path / "ray", Environment(), Silent())
    assert content_of(tmp_path / "ray") == content_of(tmp_path / "local")
    assert not killing


def test_a_machine_that_goes_away_changes_no_bit(recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")
    made = recipe({"kind": "scaffold-zo", "rate": 0.01}, rounds=12)
    session.start(made, tmp_path / "local", Environment(), Silent())
    machines = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        other = machines.add_node(num_cpus=1)
        machines.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", machines.address)

        def leave(round: int) -> None:
            if round == 3:
                machines.remove_node(other, allow_graceful=False)
            if round == 6:
                machines.add_node(num_cpus=1)

        session.start(recipes.with_engine(made, "ray:2"), tmp_path / "ray", Environment(), AfterRound(leave))
    finally:
        machines.shutdown()
    assert content_of(tmp_path / "ray") == content_of(tmp_path / "local")


def fedzero(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedzero", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_ctrl_c_at_a_terminal_ends_all_processes_and_the_run_can_be_resumed(digits: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    folder, options = tmp_path / "run", ["--rounds", 400, "--set", "engine.merge=false", "--set", "evaluate_every=100"]
    process = fedzero("run", digits, *options, "--engine", "ray:2", "--out", folder, start_new_session=True)
    end = time.monotonic() + PATIENCE
    while not _rounds(folder) and time.monotonic() < end:
        time.sleep(0.2)
    started = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "resumes from the last completed round" in err
    assert 0 < _rounds(folder) < 400
    gone, alive = psutil.wait_procs(started, timeout=30)
    assert gone and not alive
    done = fedzero("resume", folder, "--engine", "ray:1", "--json")
    out, err = done.communicate(timeout=PATIENCE)
    assert done.returncode == 0, err
    whole = fedzero("run", digits, *options, "--out", tmp_path / "whole", "--json")
    assert json.loads(out.splitlines()[-1])["rounds"] == 400
    whole.communicate(timeout=PATIENCE)
    assert content_of(folder) == content_of(tmp_path / "whole")


def _rounds(folder: Path) -> int:
    if not (folder / LEDGER).exists():
        return 0
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        return int(ledger.rows("SELECT count(*) FROM entries", -1)[0][0]) - 1


def test_tuning_spreads_whole_runs(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    found = []
    for engine in ("local", "ray:2"):
        options = ["--trials", 4, "--from", 0.001, "--to", 0.1, "--set", "engine.merge=false", "--json"]
        process = fedzero("tune", tiny, *options, "--engine", engine, "--out", tmp_path / engine)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        tuned = json.loads(out.splitlines()[-1])
        found.append([(trial["value"], trial["rounds"], trial["loss"]) for trial in tuned["trials"]])
    assert found[0] == found[1]


def test_sweeps_spread_whole_runs(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    found = []
    for engine in ("local", "ray:2"):
        options = ["--seeds", "0..1", "--set", "algorithm.rate=0.01,0.02", "--set", "engine.merge=false", "--json"]
        process = fedzero("run", tiny, *options, "--engine", engine, "--out", tmp_path / engine)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        found.append({name: run["ledger_head"] for name, run in json.loads(out.splitlines()[-1]).items()})
    assert found[0] == found[1] and len(found[0]) == 4
