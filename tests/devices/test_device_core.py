"""The client over the core in C: the same bits as in NumPy, and as the server's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fedzero_client import core as cores
from fedzero_client import plan as device_plan
from fedzero_client import stream
from fedzero_client.core import Core
from fedzero_client.graph import Graph
from fedzero_client.model import Model, added, keys_of
from fedzero_client.turn import Rows, Worker
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.fleet import CLIENT, data_of, graphed, made, recipe_of
from devices.test_device_arithmetic import CHANGES
from fedzero.engines.devices import plan as plans
from fedzero.model.updates import Seeded, pack

sys.path.insert(0, str(CLIENT.parent / "core"))


@pytest.fixture(scope="session")
def compiled() -> Core:
    cffi = pytest.importorskip("cffi", reason="needs cffi")
    import build_core
    import native

    if native.compiler() is None:
        pytest.skip("needs a C compiler")
    ffi = cffi.FFI()
    ffi.cdef(build_core.DECLARATIONS)
    return Core(SimpleNamespace(ffi=ffi, lib=ffi.dlopen(str(native.build(["-O1"])))))


@pytest.fixture
def over(compiled: Core) -> Iterator[Callable[[bool], None]]:
    """Turns the core on and off."""
    before = cores.core

    def switch(on: bool) -> None:
        cores.core = compiled if on else None

    yield switch
    cores.core = before


@pytest.mark.parametrize("changes", CHANGES)
def test_steps_have_the_bits_of_numpy_and_of_the_server(
    tmp_path: Path, over: Callable[[bool], None], changes: dict[str, Any]
) -> None:
    setup = made(recipe_of(tmp_path, **changes), tmp_path)
    plan = device_plan.read(plans.encode(plans.plan_of(setup)))
    replica, models, rates = setup.replica(), (Model(plan), Model(plan)), plans.Rates(setup.recipe.algorithm)
    draw, count = np.random.default_rng(5), plan.method.steps * plan.method.directions
    for round in range(5):
        scalars = pack(draw.normal(size=count).astype(np.float32))
        replica.follow([Seeded(round, scalars)])
        for on, model in zip((False, True), models, strict=True):
            over(on)
            model.apply(round, scalars, device_plan.Rates(plan, rates.of(range(6))).at(round))
            assert model.digest() == replica.digest()
        assert models[0].to_bytes() == models[1].to_bytes() == replica.state.to_bytes()


@given(st.integers(1, 3000), st.integers(1, 200), st.integers(0, 10**6), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_batches_of_the_core_are_those_of_numpy(compiled: Core, rows: int, size: int, round: int, place: int) -> None:
    cores.core = None
    right = stream.batch(bytes(32), round, 1, place, rows, size)
    try:
        cores.core = compiled
        assert np.array_equal(stream.batch(bytes(32), round, 1, place, rows, size), right)
    finally:
        cores.core = None


@pytest.mark.parametrize("distribution", ["rademacher", "rank1"])
def test_losses_of_points_are_those_of_numpy_but_for_rounding(
    tmp_path: Path, over: Callable[[bool], None], distribution: str
) -> None:
    setup = made(recipe_of(tmp_path, distribution=distribution), tmp_path)
    plan = device_plan.read(plans.encode(plans.plan_of(setup)))
    model, worker = Model(plan), Worker(plan, Rows(*data_of(1, rows=50)), 0)
    found = []
    for on in (False, True):
        over(on)
        found.append(worker._values(model.x, 3, 0))
    assert found[1] == pytest.approx(found[0], rel=1e-6) and np.ptp(found[0]) > 1e-3


def test_views_do_not_change_the_model(tmp_path: Path, over: Callable[[bool], None]) -> None:
    plan = device_plan.read(plans.encode(plans.plan_of(made(recipe_of(tmp_path), tmp_path))))
    model = Model(plan)
    before, terms = model.to_bytes(), [(keys_of(plan, 0, 0)[0], np.float32(0.5))]
    found = []
    for on in (False, True):
        over(on)
        found.append(added(plan, model.x, terms))
        assert model.to_bytes() == before
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(("name", "distribution"), [("small-factors", "rank1"), ("small-4", "rademacher")])
def test_inputs_of_a_graph_have_the_bits_of_numpy(
    tmp_path: Path, over: Callable[[bool], None], name: str, distribution: str
) -> None:
    for needed in ("onnx", "onnxruntime"):
        pytest.importorskip(needed, reason=f"needs {needed}")
    path = Path(__file__).parent / "graphs" / f"{name}.onnx"
    setup = made(graphed(recipe_of(tmp_path, distribution=distribution), path), tmp_path)
    plan = device_plan.read(plans.encode(plans.plan_of(setup)))
    graph, model, found = Graph(path.read_bytes(), plan), Model(plan), []
    points = [[], *([(key, np.float32(c))] for key, c in ((7, 0.3), (2**63 + 8, -0.2), (5, 0.1), (9, 2.0)))]
    for on in (False, True):
        over(on)
        found.append(graph._given(model.x, graph._viewing(model.x), points[: graph.form.points]))
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(found[0][each], found[1][each]) for each in found[0])


@pytest.mark.slow
def test_the_wheel_is_built_of_the_source_distribution_and_works_without_torch(tmp_path: Path) -> None:
    """For any CPython from 3.11 on; in an environment that has nothing else but what it asks for."""
    pytest.importorskip("cffi", reason="needs cffi")
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    run([sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path)], cwd=CLIENT)
    (source,) = tmp_path.glob("fedzero_client-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "-q"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)])
    (wheel,) = tmp_path.glob("*.whl")
    assert "-cp311-abi3-" in wheel.name
    run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)])
    (tmp_path / "site" / "torch.py").write_text("raise ImportError('not here')")
    program = "from fedzero_client.core import core; from fedzero_client import stream; import numpy as np; "
    program += "print(core.checksum(np.arange(5, dtype=np.float32)) == stream.checksum(np.arange(5, dtype=np.float32)))"
    found = run([sys.executable, "-c", program], env={"PYTHONPATH": str(tmp_path / "site")})
    assert found.stdout.strip() == "True"
