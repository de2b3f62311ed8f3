"""Files of models and the order of their tensors (docs/ledger.md, "Files of models"), read without fedzero or torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from recompute import stream
from recompute.digits import SHAPES, first_model
from recompute.file import File, read, tensors_of
from typer.testing import CliRunner

import fedzero
from fedzero.cli import app
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs.session import start

NAMES = list(SHAPES["mlp"])
QUICK = ["rounds=2", "evaluate_every=2", "engine.device=cpu", "federation.clients=4", "federation.cohort=2"]


def header_of(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


def by_place(path: Path) -> list[str]:
    header = header_of(path)
    names = header.keys() - {"__metadata__"}
    return sorted(names, key=lambda name: header[name]["data_offsets"])


def model_in(path: Path, order: list[str]) -> stream.Model:
    found = tensors_of(path)
    return {name: torch.frombuffer(bytearray(found[name][2]), dtype=torch.float32).numpy() for name in order}


def shaped(model: stream.Model) -> stream.Model:
    return {name: tensor.reshape(SHAPES["mlp"][name]) for name, tensor in model.items()}


@pytest.fixture
def demo(tmp_path: Path, quiet) -> tuple[Path, File]:
    folder = tmp_path / "demo"
    start(recipes.load("demo", QUICK), folder, Environment(), quiet)
    return folder, read(folder / "ledger.db")


def test_the_model_of_a_run_is_sorted_by_name_and_has_no_order(demo):
    folder, file = demo
    assert header_of(folder / "model.safetensors")["__metadata__"] == {"format": "pt"}
    assert by_place(folder / "model.safetensors") == sorted(NAMES) != NAMES
    assert not (folder / "base.safetensors").exists()
    end = file.of("end")[0]
    model = shaped(model_in(folder / "model.safetensors", NAMES))
    assert (stream.digest(model), stream.sha256(model)) == (end["model"], end["sha256"])
    alphabetical = {name: model[name] for name in sorted(NAMES)}
    assert stream.digest(alphabetical) != end["model"], "the order of the file is not that of ordinals"


def test_replay_of_round_0_writes_the_base_of_a_demo(demo, tmp_path: Path):
    folder, file = demo
    out = tmp_path / "first.safetensors"
    said = CliRunner().invoke(app, ["replay", str(folder), "--round", "0", "--out", str(out)])
    assert said.exit_code == 0, said.output
    model = shaped(model_in(out, NAMES))
    right = first_model(stream.root_of(file.recipe["seed"]), "mlp")
    assert {name: x.tobytes() for name, x in model.items()} == {name: x.tobytes() for name, x in right.items()}
    assert (stream.digest(model), stream.sha256(model)) == (file.start["base"], file.start["base_sha256"])
    assert file.start["base"].hex() in said.output.replace("\n", "")


def test_files_of_a_module_from_python_have_their_order(tmp_path: Path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    trained = [name for name, _ in model.named_parameters()]
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    data = [(torch.randn(20, 6), torch.randint(0, 2, (20,)))]
    method = fedzero.DeComFL(rate=1e-3, directions=2)
    fedzero.train(
        model,
        data,
        loss=torch.nn.functional.cross_entropy,
        method=method,
        rounds=2,
        out=tmp_path / "run",
        progress=False,
    )
    base, fixed = (
        header_of(tmp_path / "run" / name)["__metadata__"] for name in ("base.safetensors", "fixed.safetensors")
    )
    assert json.loads(base["order"]) == trained != sorted(trained)
    assert json.loads(fixed["trained"]) == trained
    assert list(tensors_of(tmp_path / "run" / "base.safetensors")) == trained
    first = {name: before[name].numpy() for name in trained}
    started = read(tmp_path / "run" / "ledger.db").start
    assert (stream.digest(first), stream.sha256(first)) == (started["base"], started["base_sha256"])


def safetensors(model: stream.Model) -> bytes:
    """A file as another program writes it: tensors in the order given, and nothing said of it."""
    header, data = {}, b""
    for name, tensor in model.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (len(data), len(data) + tensor.nbytes)}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("order", [NAMES, sorted(NAMES), NAMES[::-1]], ids=["ordinals", "names", "backwards"])
def test_a_base_that_another_program_wrote_is_taken_by_name(order, tmp_path: Path, quiet):
    model = first_model(stream.root_of(77), "mlp")
    extra = {"of no layer": model["linear2.bias"]}
    (tmp_path / "base.safetensors").write_bytes(safetensors({name: model[name] for name in order} | extra))
    recipe = recipes.load("demo", [*QUICK, f"base={str(tmp_path / 'base.safetensors')!r}"])
    start(recipe, tmp_path / "run", Environment(), quiet)
    started = read(tmp_path / "run" / "ledger.db").start
    assert (stream.digest(model), stream.sha256(model)) == (started["base"], started["base_sha256"])
