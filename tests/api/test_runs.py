"""`fedzero.run` and `fedzero.Run`: recipes and folders as values."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedzero
from fedzero.errors import FedzeroError
from fedzero.model.checkpoint import load_model

TABLE = {
    "name": "table",
    "rounds": 5,
    "evaluate_every": 2,
    "algorithm": {"kind": "decomfl", "rate": 0.01},
    "task": {"kind": "quadratic", "dimension": 8},
    "federation": {"clients": 3, "cohort": 2},
}


def test_a_table_a_file_and_the_command_line_are_the_same(tmp_path: Path, tiny: Path, run_recipe) -> None:
    by_file = fedzero.run(tiny, out=tmp_path / "file", progress=False)
    assert by_file.summary.ledger_head == run_recipe(tiny, tmp_path / "command").ledger_head
    by_table = fedzero.run(TABLE, out=tmp_path / "table", set={"algorithm.directions": 3, "rounds": 4}, progress=False)
    assert by_table.summary.rounds == 4 and by_table.recipe.algorithm.directions == 3
    assert TABLE["rounds"] == 5, "what was given is not changed"


def test_a_second_call_resumes_and_another_recipe_is_refused(tmp_path: Path) -> None:
    first = fedzero.run(TABLE, out=tmp_path / "run", progress=False)
    assert fedzero.run(TABLE, out=tmp_path / "run", progress=False).summary == first.summary
    with pytest.raises(FedzeroError, match=r"seed = \d+ there and 99 here"):
        fedzero.run(TABLE, seed=99, out=tmp_path / "run", progress=False)


def test_an_opened_run(tmp_path: Path) -> None:
    made = fedzero.run(TABLE, out=tmp_path / "run", progress=False)
    run = fedzero.Run.open(tmp_path / "run" / "ledger.db")
    assert run.summary == made.summary and run.model is None
    run.verify()
    assert {name: tensor.tolist() for name, tensor in run.replay().items()} == {
        name: tensor.tolist() for name, tensor in load_model(tmp_path / "run" / "model.safetensors").items()
    }
    assert run.replay(0)["x"].abs().sum() == 0
    assert run.history["round"].tolist() == [0, 2, 4, 5]
    assert run.resume(progress=False).summary == made.summary
    with pytest.raises(FedzeroError, match=r"does not exist|no run|no such"):
        fedzero.Run.open(tmp_path / "nothing")


def test_a_changed_ledger_is_noticed(tmp_path: Path) -> None:
    run = fedzero.run(TABLE, out=tmp_path / "run", progress=False)
    model = tmp_path / "run" / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(bytes(data))
    with pytest.raises(fedzero.Tampered):
        run.verify()
