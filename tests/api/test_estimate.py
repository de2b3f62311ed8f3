"""A dry run says what the whole takes, and leaves nothing."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import fedzero
from fedzero.cli import app
from fedzero.errors import FedzeroError

METHODS = [{"kind": "decomfl", "rate": 0.1, "directions": 5}, {"kind": "fedavg", "rate": 0.1}]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield
    assert not list(place.iterdir())


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["kind"])
def test_bytes_and_queries_are_those_of_the_run(tmp_path: Path, method: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    call: dict[str, Any] = {"loss": F.cross_entropy, "method": method, "partition": "iid", "count": 20, "cohort": 4}
    call |= {"rounds": 60, "evaluate_every": 20, "out": tmp_path / "run", "progress": False}
    told: list[Any] = []
    tells = SimpleNamespace(round=told.append)
    found = fedzero.estimate(fedzero.train, model, (x, x.argmax(1)), exist="error", callbacks=[tells], **call)
    assert not told
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    run = fedzero.train(model, (x, x.argmax(1)), **call)
    totals = run.summary
    assert found.rounds == 60 and found.queries == totals.queries
    assert found.bytes_up_per_client == pytest.approx(totals.bytes_up_per_client, rel=0.05)
    assert found.bytes_down_per_client == pytest.approx(totals.bytes_down_per_client, rel=0.15)
    assert found.round_seconds < found.seconds and found.setup_seconds < found.seconds and found.memory > 1e7
    assert str(found).startswith("60 rounds: about ")


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        "run",
        "demo",
        "--dry-run",
        "--json",
        "--set",
        "algorithm.directions=2",
        "--set",
        "federation.clients=20",
    ]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["rounds"] == fedzero.run.__globals__["recipes"].load("demo").rounds and found["seconds"] > 0
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_estimated(tmp_path: Path) -> None:
    with pytest.raises(FedzeroError, match=r"give fedzero\.train, fedzero\.finetune or fedzero\.run"):
        fedzero.estimate(fedzero.minimise, [sum], bounds=[(0, 1)])
    ones = {"boxes": [{"kind": "python", "name": "math:fsum"}], "dimension": 2, "low": 0.0, "high": 1.0}
    changes = {"task": {"kind": "black-box", **ones}, "federation": {"clients": 1, "cohort": 1}}
    with pytest.raises(FedzeroError, match="would ask the black boxes"):
        fedzero.estimate(fedzero.run, "demo", set=changes)
    with pytest.raises(FedzeroError, match="clients: give a list"):
        fedzero.estimate(fedzero.train, nn.Linear(2, 2), 3, loss=F.mse_loss)
