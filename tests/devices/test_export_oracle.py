"""`fedzero export-oracle`: tasks as graphs, and layers whose weights are given as factors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from devices.fleet import recipe_of
from fedzero.cli import app
from fedzero.errors import FedzeroError
from fedzero.oracles.portable.factored import Factored, RankOne
from fedzero.oracles.portable.format import INT64, Form, Slot
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs.oracles import export_recipe


@pytest.mark.parametrize(
    "layer",
    [
        lambda w, x: F.linear(x[:, :, 0, 0], w.flatten(1)[:, :6]),
        lambda w, x: F.conv2d(x, w, torch.arange(4.0), padding=1),
        lambda w, x: F.conv2d(x, w, stride=2, dilation=1),
        lambda w, x: F.conv2d(x, w[:, :3], None, 1, 0, 1, 2),
        lambda w, x: torch.einsum("oihw,nihw->no", w, x[..., :3, :3]),
    ],
)
def test_functions_see_a_tensor_at_its_point(layer: object) -> None:
    """Also those that do not know of factors."""
    draw = torch.Generator().manual_seed(3)
    w, x = torch.randn(4, 6, 3, 3, generator=draw), torch.randn(2, 6, 5, 5, generator=draw)
    factors = RankOne(torch.tensor(0.3), torch.randn(4, generator=draw).sign(), torch.randn(54, generator=draw).sign())
    with Factored({id(w): factors}):
        found = layer(w, x)  # type: ignore[operator]
    assert torch.allclose(found, layer(factors.at(w), x), atol=1e-4)  # type: ignore[operator]
    assert not torch.allclose(found, layer(w, x), atol=1e-2)  # type: ignore[operator]


def test_a_linear_layer_with_factors() -> None:
    w, x, b = torch.randn(4, 6), torch.randn(3, 6), torch.randn(4)
    factors = RankOne(torch.tensor(0.3), torch.ones(4), torch.randn(6).sign())
    right = F.linear(x, factors.at(w), b), F.linear(x, factors.at(w))
    with Factored({id(w): factors}):
        found = F.linear(x, w, b), F.linear(x, w)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, right, strict=True))


def test_the_form_of_a_graph_is_read_from_its_inputs() -> None:
    form = Form(3, 8, 6, 2, INT64, (Slot((5, 6), True), Slot((5,), False), Slot((2, 5), False)))
    output = (3, 8, 2)
    assert Form.read(form.table(), INT64, output) == form
    names = [name for name, _ in form.table()]
    assert names == ["x", "c", "w0", "a0", "b0", "p1", "p2"]
    assert Form.read(form.table()[::-1], INT64, output) is None
    assert Form.read(form.table()[:-1], INT64, output) != form
    assert Form.read(form.table(), INT64, (3, 7, 2)) is None
    assert Form.read(form.table(), INT64, (4, 8, 2)) is None


def test_tasks_without_rows_of_numbers_are_refused(tmp_path: Path) -> None:
    table = {"name": "q", "rounds": 1, "algorithm": {"kind": "decomfl", "rate": 0.1}, "task": {"kind": "quadratic"}}
    other = recipes.decode(table | {"federation": {"clients": 2, "cohort": 2}})
    with pytest.raises(FedzeroError, match="'quadratic' is not a classification"):
        export_recipe(other, Environment(), tmp_path / "q.onnx")
    found = CliRunner().invoke(app, ["export-oracle", "demo", "--out", str(tmp_path / "q.txt")])
    assert found.exit_code and "ends with .onnx" in str(found.exception)
    assert not list(tmp_path.glob("q.*"))


def test_a_task_becomes_a_graph_that_gives_what_pytorch_gives(tmp_path: Path) -> None:
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(needed, reason=f"needs {needed} (pip install 'fedzero[onnx]')")
    recipe = recipe_of(tmp_path, distribution="rank1")
    written, lines = export_recipe(recipe, Environment(), tmp_path / "small.onnx", points=3)
    assert written.difference < 1e-5 and written.names == tuple(
        f"linear{i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")
    )
    assert (written.form.points, written.form.rows, written.form.inputs, written.form.classes) == (3, 16, 6, 3)
    assert "widths = [6, 3]" in lines and "mean = 0.5" in lines
    assert written.size == (tmp_path / "small.onnx").stat().st_size < 4096
