"""Ledgers of others: what they name is not run before somebody says that they are trusted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedzero import Run, api
from fedzero.errors import FedzeroError
from fedzero.oracles.blackbox import CommandBox, HttpBox, PythonBox, ToldBox
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.tasks.blackbox import BlackBox
from stops import StopAt

PROGRAM = (
    "import sys, json, pathlib; x = json.loads(sys.stdin.readline()); pathlib.Path({path!r}).touch(); print(sum(x))"
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def begun(tmp_path: Path, state: Path) -> tuple[Path, Path]:
    """The folder of a run of a program, stopped after a round, and the file that the program leaves behind."""
    folder, trace = tmp_path / "run", tmp_path / "trace"
    box = api.command(sys.executable, "-c", PROGRAM.format(path=str(trace)))
    with pytest.raises(KeyboardInterrupt):
        api.minimise([box], [(-1, 1)] * 2, rounds=2, out=folder, progress=StopAt(0))
    trace.unlink()
    return folder, trace


def test_one_s_own_run_goes_on(begun) -> None:
    folder, trace = begun
    assert session.resume(folder, Environment(), Silent()).complete
    assert trace.exists()


def test_a_ledger_of_others_asks_for_trust(begun, tmp_path: Path, monkeypatch, fedzero) -> None:
    """0.1 ran its programs."""
    folder, trace = begun
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "of another user"))
    before = (folder / "ledger.db").read_bytes()
    fedzero("resume", folder).refused("command", "--trust", "trust=True")
    with pytest.raises(FedzeroError, match="has not started this run here"):
        Run.open(folder).resume(progress=False)
    assert fedzero("verify", folder).code == 0, "reading runs nothing"
    assert not trace.exists()
    assert (folder / "ledger.db").read_bytes() == before
    assert fedzero("resume", folder, "--trust").code == 0
    assert trace.exists()


def test_who_names_the_same_boxes_need_not_say_it(begun, tmp_path: Path, monkeypatch) -> None:
    folder, trace = begun
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "of another user"))
    box = api.command(sys.executable, "-c", PROGRAM.format(path=str(trace)))
    assert api.minimise([box], [(-1, 1)] * 2, rounds=2, out=folder).queries
    assert trace.exists()


def test_a_folder_where_nothing_can_be_noted(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "file" / "state"))
    with pytest.raises(KeyboardInterrupt):
        api.minimise([api.command("echo", "1")], [(-1, 1)] * 2, rounds=2, out=tmp_path / "run", progress=StopAt(0))
    with pytest.raises(FedzeroError, match="--trust"):
        session.resume(tmp_path / "run", Environment(), Silent())


def test_what_counts_as_named() -> None:
    boxes = (
        CommandBox(argv=("rm",)),
        HttpBox(url="http://x"),
        PythonBox(name="os:system"),
        PythonBox(name="f"),
        ToldBox(),
    )
    found = BlackBox(boxes=boxes, dimension=1).runs({"f": abs})
    assert found == ["command 'rm'", "http 'http://x'", "python 'os:system'"]
