"""Graphs: a model that devices evaluate by onnxruntime. Which files are refused, what points are worth, how a graph
comes to a device, and runs beside the same run without a gateway."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from fedzero_client import plan as device_plan
from fedzero_client.errors import ClientError
from fedzero_client.graph import Graph
from fedzero_client.graph_file import form_of
from fedzero_client.model import Model, added
from fedzero_client.store import Store
from torch.func import functional_call

from devices.fleet import CLIENT, data_of, fleet, graphed, head_of, made, recipe_of, without_gateway
from devices.test_device_sessions import House
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices import session as sessions
from fedzero.engines.devices.graphs import GraphFile
from fedzero.errors import FedzeroError
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fuzz.mutating import mutated
from ledgers import first_bad_round, rounds_of

onnx = pytest.importorskip("onnx", reason="needs onnx (pip install 'fedzero[onnx]')")
pytest.importorskip("onnxruntime", reason="needs onnxruntime (pip install 'fedzero[onnx]')")

from devices.graphs.make import BAD, Small  # noqa: E402
from fedzero.oracles.portable import running  # noqa: E402
from fedzero.oracles.portable.checking import expect_portable  # noqa: E402

GRAPHS = Path(__file__).parent / "graphs"
GOOD = ("small", "small-4", "small-factors", "plain")
WHY = {
    "other-domain": "domain",
    "unknown-operator": "operator .*RandomUniformLike",
    "loop": "operator .*Loop",
    "branch": "a graph within an operator",
    "external": "weights in another file",
    "external-constant": "weights in another file",
    "function": "functions of its own",
    "free-shape": "a shape that is not fixed",
    "own-value": "an input with a value of its own",
    "huge-output": "a shape that is not fixed or too large|inputs and output",
}


def content(name: str) -> bytes:
    return (GRAPHS / f"{name}.onnx").read_bytes()


def plan_of(folder: Path, name: str, **changes: object) -> device_plan.Plan:
    recipe = graphed(recipe_of(folder, **changes), GRAPHS / f"{name}.onnx")
    return device_plan.read(plans.encode(plans.plan_of(made(recipe, folder))))


@pytest.mark.parametrize("name", GOOD)
def test_device_and_server_read_the_same_form(name: str) -> None:
    """By two readers: one of ours, and onnx."""
    mine, (theirs, _) = form_of(content(name)), expect_portable(content(name), name)
    assert mine.table() == theirs.table()
    assert (mine.points, mine.rows, mine.classes) == (theirs.points, theirs.rows, theirs.classes)


@pytest.mark.parametrize("name", sorted(BAD))
def test_hostile_graphs_are_refused_by_name_before_onnxruntime_reads_them(name: str) -> None:
    with pytest.raises(ClientError, match=WHY[name]):
        form_of(content(name))
    with pytest.raises(FedzeroError, match=WHY[name]):
        expect_portable(content(name), name)


def test_bytes_of_chance_are_refused_in_a_sentence() -> None:
    taken = 0
    for case in mutated([content(name) for name in (*GOOD, "external-constant", "branch")], 3000):
        with suppress(ClientError):
            form_of(case)
            taken += 1
    assert taken < 2000  # numbers of constants may be any


@pytest.mark.parametrize(
    ("name", "why"), [("nan", "NaN"), ("another-shape", "shape|refused"), ("no-weights", "refused")]
)
def test_graphs_that_are_wrong_inside_are_refused_by_name(tmp_path: Path, name: str, why: str) -> None:
    plan = plan_of(tmp_path, "plain")
    with pytest.raises(ClientError, match=why):
        Graph(content(name), plan).values(Model(plan).x, [[]], np.zeros((2, 6), np.float32), np.zeros(2, np.int64))


def test_a_graph_that_asks_for_a_terabyte_fails_and_the_process_goes_on(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "plain")
    (tmp_path / "plan").write_bytes(
        plans.encode(plans.plan_of(made(graphed(recipe_of(tmp_path), GRAPHS / "plain.onnx"), tmp_path)))
    )
    program = f"""
import numpy as np
from fedzero_client import cli, plan
from fedzero_client.errors import ClientError
from fedzero_client.graph import Graph
from fedzero_client.model import Model
cli.limit_memory(4.0)
found = plan.read(open({str(tmp_path / "plan")!r}, "rb").read())
try:
    graph = Graph(open({str(GRAPHS / "huge-inside.onnx")!r}, "rb").read(), found)
    graph.values(Model(found).x, [[]], np.zeros((2, 6), np.float32), np.zeros(2, np.int64))
except ClientError as reason:
    print("refused:", reason)
"""
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(CLIENT)}, capture_output=True)
    assert done.returncode == 0 and done.stdout.startswith(b"refused:"), done.stderr
    assert plan.task.graph is not None


@pytest.mark.parametrize(
    ("name", "distribution"), [("small", "rank1"), ("small-4", "rademacher"), ("small-factors", "rank1")]
)
def test_points_of_a_graph_are_those_of_pytorch(tmp_path: Path, name: str, distribution: str) -> None:
    """Also where points and rows do not fill the calls."""
    plan = plan_of(tmp_path, name, distribution=distribution)
    model, module, (rows, labels) = Model(plan), Small(), data_of(3, rows=21)
    points = [[], *([(key, np.float32(c))] for key, c in ((7, 0.3), (8, -0.2), (2**63 + 5, 0.1), (9, 0.0), (10, 0.5)))]
    found = Graph(content(name), plan).values(model.x, points, rows, labels)
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    for point, value in zip(points, found, strict=True):
        flat = [torch.from_numpy(each) for each in added(plan, model.x, point)]
        tensors = {n: x.view(t.shape) for n, x, t in zip(names, flat, plan.tensors, strict=True)}
        logits = functional_call(module, tensors, (torch.from_numpy(rows),))
        right = torch.nn.functional.cross_entropy(logits.double(), torch.from_numpy(labels))
        assert value == pytest.approx(float(right), rel=1e-5)


def test_the_server_measures_what_pytorch_would(tmp_path: Path) -> None:
    setup = made(graphed(recipe_of(tmp_path), GRAPHS / "small-4.onnx"), tmp_path)
    x, y = data_of(99)
    with torch.no_grad():
        logits = functional_call(Small(), setup.problem.params.tensors, (torch.from_numpy(x - np.float32(0.5)),))
    found = setup.problem.objective.evaluate(setup.problem.params)
    assert found.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(y))), rel=1e-5)
    assert found.accuracy == float((logits.argmax(1) == torch.from_numpy(y)).float().mean())


def test_what_does_not_fit_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    for recipe, why in (
        (graphed(recipe_of(tmp_path, distribution="rademacher"), GRAPHS / "small-factors.onnx"), "factors for dense"),
        (graphed(recipe_of(tmp_path), GRAPHS / "loop.onnx"), "operator Loop"),
        (graphed(recipe_of(tmp_path), tmp_path / "nowhere.onnx"), "cannot be read"),
    ):
        with pytest.raises(FedzeroError, match=why):
            plans.plan_of(made(recipe, tmp_path))


def test_a_graph_that_has_changed_is_not_served(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    path.write_bytes(content("small"))
    graph = running.Graph(path)
    path.write_bytes(content("small-4"))
    with pytest.raises(FedzeroError, match="has changed"):
        GraphFile(path, graph.sha256)
    with pytest.raises(FedzeroError, match="has changed"):
        graph.logits({})


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path, graphed(recipe_of(tmp_path), GRAPHS / "small.onnx"))
    found.hub.graph = GraphFile(GRAPHS / "small.onnx", sha256(content("small")).digest())
    yield found
    found.hub.graph.close()
    found.registry.close()


def test_a_graph_comes_in_pieces_and_stays(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedzero.engines.devices.hub.PIECE", 500)
    device = house.device()
    first = house.session()
    for frame in device.begin():
        first.receive(frame)
    for _ in range(4):  # up to the first piece
        for frame in first.take():
            for answer in device.receive(frame):
                first.receive(answer)
    first.end()
    kept = device.store.graph_length(sha256(content("small")).digest())
    assert kept in (500, 1000)
    again = house.joined(device)  # it goes on where it broke off
    house.fresh(again.place)
    house.talk(again, device)
    assert device._ready == 0
    device.store.close()
    later = house.device()
    assert later._ready == 0 and later._worker is not None  # nothing is fetched again
    later.store.close()


def test_a_device_without_its_graph_is_not_ready(house: House) -> None:
    assert house.hub.graph is not None
    graph, house.hub.graph = house.hub.graph, None
    device = house.device()
    with pytest.raises(ClientError, match="does not have the graph"):
        house.joined(device)
    assert device._ready is None
    house.hub.graph = graph


def test_another_graph_than_the_plans_is_refused(house: House, tmp_path: Path) -> None:
    assert house.hub.graph is not None
    other = tmp_path / "other.onnx"
    other.write_bytes(content("small")[:-1] + b"x")
    served = GraphFile(other, sha256(other.read_bytes()).digest())
    served.sha256 = house.hub.graph.sha256  # a gateway that lies
    before, house.hub.graph = house.hub.graph, served
    device = house.device()
    with pytest.raises(ClientError, match="not the one that the plan names"):
        house.joined(device)
    served.close()
    house.hub.graph = before
    assert not list((tmp_path / "one").glob("*.onnx"))


def test_pieces_that_come_too_fast_are_fetched_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedzero.engines.devices.hub.PIECE", 10)
    monkeypatch.setattr(sessions, "BURST", 20)
    device, session, held = house.device(), house.session(), 0
    for frame in device.begin():
        session.receive(frame)
    while frames := session.take():
        answers = [answer for frame in frames for answer in device.receive(frame)]
        held += device.hold > 0
        house.now, device.hold = house.now + device.hold, 0.0  # the driver waits, and the same Fetch goes again
        for answer in answers:
            session.receive(answer)
    assert held and device._worker is not None and session.state is sessions.State.OPEN
    device.store.close()


def test_a_damaged_graph_on_disk_is_fetched_again(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), content("small")
    (tmp_path / f"{sha256(wanted).hexdigest()}.onnx").write_bytes(wanted[:-1] + b"x")
    with closing(store):
        assert store.graph(sha256(wanted).digest(), len(wanted)) is None
        assert store.graph_length(sha256(wanted).digest()) == 0


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("small-factors", {"distribution": "rank1", "local_steps": 2}),
        pytest.param("small", {"optimizer": {"kind": "momentum"}}, marks=pytest.mark.slow),
    ],
)
def test_devices_with_a_graph_make_the_ledger_of_the_same_run_without_a_gateway(
    tmp_path: Path, name: str, changes: dict[str, object]
) -> None:
    recipe = graphed(recipe_of(tmp_path, **changes), GRAPHS / f"{name}.onnx")
    with fleet(tmp_path / "run", tmp_path) as processes:
        session.start(recipe, tmp_path / "run", Environment(), Silent())
    assert [process.returncode for process in processes] == [0, 0, 0]
    without_gateway(recipe, tmp_path / "right")
    assert first_bad_round(tmp_path / "run") is None
    assert not any(record.refused for record in rounds_of(tmp_path / "run"))
    assert head_of(tmp_path / "run") == head_of(tmp_path / "right")
