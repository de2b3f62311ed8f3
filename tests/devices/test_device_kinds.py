"""A function of one's own in the place of the client's perceptron; ten rounds of the run with four kinds of devices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.devices import kinds
from bench.devices.players import ByTorch, compiled
from fedzero_client import plan as device_plan
from fedzero_client.graph import Graph
from fedzero_client.model import Model
from fedzero_client.turn import Rows, Worker

from devices.fleet import data_of, made, recipe_of
from devices.test_device_sessions import House, order
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.hub import Said
from fedzero.protocol.messages import decode_reply
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs.oracles import export_recipe

CHANGES: tuple[dict[str, Any], ...] = ({"distribution": "rank1", "difference": "central"}, {"distribution": "gaussian"})


def plan_of(recipe: Recipe, folder: Path) -> device_plan.Plan:
    return device_plan.read(plans.encode(plans.plan_of(made(recipe, folder))))


def losses(plan: device_plan.Plan, oracle: Any = None) -> Any:
    return Worker(plan, Rows(*data_of(1)), 0, oracle=oracle)._values(Model(plan).x, 3, 0)


@pytest.mark.parametrize("changes", CHANGES)
def test_pytorch_has_the_losses_of_the_client(tmp_path: Path, changes: dict[str, Any]) -> None:
    plan = plan_of(recipe_of(tmp_path, **changes), tmp_path)
    found = losses(plan)
    assert np.ptp(found) > 1e-3
    assert losses(plan, ByTorch(plan)) == pytest.approx(found, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES)
def test_the_graph_of_a_perceptron_has_the_losses_of_the_client(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The plan names a perceptron with a hidden layer; the device evaluates the graph that was exported of it."""
    for needed in ("onnx", "onnxruntime"):
        pytest.importorskip(needed, reason=f"needs {needed}")
    recipe, path = recipe_of(tmp_path, **changes), tmp_path / "perceptron.onnx"
    export_recipe(recipe, Environment(folder=tmp_path), path)
    plan = plan_of(recipe, tmp_path)
    assert plan.task.graph is None and len(plan.task.widths) == 3
    assert losses(plan, Graph(path.read_bytes(), plan, threads=1)) == pytest.approx(losses(plan), rel=1e-6)


def test_a_session_evaluates_the_function_that_it_is_given(tmp_path: Path) -> None:
    house, said = House(tmp_path), list[Said]()
    for name, given in (("own", {}), ("PyTorch", {"oracle": ByTorch}), ("none", {"oracle": Zero})):
        device = house.device(name, **given)
        session = house.ready(device)
        device.place = device._worker.place = 0  # the same batch
        house.hub.deliver({session.place: order()})
        device.place = session.place
        house.talk(session, device)
        said += [each for each in house.events() if isinstance(each, Said)]
        device.store.close()
    house.registry.close()
    own, torch, zero = (decode_reply(each.body, 4096) for each in said)
    assert own.digest == torch.digest == zero.digest
    numbers = [np.frombuffer(each.values, "<f4") for each in (own, torch, zero)]
    assert numbers[1] == pytest.approx(numbers[0], abs=1e-3) and np.abs(numbers[0]).max() > 0.01
    assert not numbers[2].any() and zero.loss == bytes(4)


class Zero:
    whole = False

    def __init__(self, plan: device_plan.Plan):
        pass

    def values(self, x: Any, points: Any, rows: Any, y: Any) -> Any:
        return np.zeros(len(points))


@pytest.mark.slow
def test_four_kinds_of_devices_have_the_model_of_pytorch_alone(chromium: Any, tmp_path: Path) -> None:
    """`play` verifies, replays and patches both runs."""
    for needed in ("onnx", "onnxruntime", "cffi", "setuptools"):
        pytest.importorskip(needed, reason=f"needs {needed}")
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    recipe = kinds.recipe_of(7, 10)
    mixed = kinds.four_kinds(recipe, tmp_path, compiled(tmp_path / "core"), chromium)
    alone = kinds.pytorch_alone(recipe, tmp_path)
    for played in (mixed, alone):
        assert (played.rounds, played.replies, played.refused) == (10, 10 * len(kinds.KINDS), 0)
    assert mixed.loss == pytest.approx(alone.loss, rel=1e-3)
