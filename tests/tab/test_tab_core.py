"""The arithmetic of a tab: the committed modules of WebAssembly hold the vectors, replicas have the server's bits."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fedzero_client import packing
from fedzero_client import plan as device_plan
from fedzero_client.model import Model
from fedzero_client.turn import Rows, Worker
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.fleet import data_of, made, recipe_of
from devices.test_device_arithmetic import CHANGES as ALL_CHANGES
from devices.test_device_arithmetic import VALUES
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.join_page import FOLDER
from fedzero.model.updates import Seeded, pack
from tab.tabs import HERE, Node, csv_of, modules, needs_node

CORE = Path(__file__).resolve().parents[2] / "clients" / "core"
MODULES = {"core.wasm": "fedzero_core.wasm", "core-scalar.wasm": "fedzero_core_scalar.wasm"}
CHANGES = [each for each in ALL_CHANGES if each.get("distribution") != "gaussian"]
"""The profile of a tab."""
COMPILER = "clang version 14.0.6"
"""Made the modules that are committed."""


def holds(folder: Path, *found: Path) -> None:
    command = [needs_node(), str(HERE / "vectors.mjs"), str(modules(folder)), str(CORE / "vectors" / "vectors.json")]
    done = subprocess.run([*command, *map(str, found)], capture_output=True, text=True, check=True)
    vectors = json.loads((CORE / "vectors" / "vectors.json").read_text())
    cases = sum(len(part) for part in vectors.values() if isinstance(part, list))
    assert json.loads(done.stdout) == [{"cases": cases, "failed": []}] * len(found)


def test_the_modules_of_the_page_hold_the_conformance_vectors(tmp_path: Path) -> None:
    holds(tmp_path, *(FOLDER / name for name in MODULES))


def test_the_modules_of_the_page_are_those_of_the_sources(tmp_path: Path) -> None:
    """Byte for byte where the compiler is the same; another compiler's hold the vectors."""
    for program in ("make", "clang", "wasm-ld"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    command = ["make", "-s", "-C", str(CORE), f"BUILD={tmp_path}", f"PAGE={tmp_path / 'copied'}", "page"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [tmp_path / "copied" / name for name in MODULES]
    if COMPILER in subprocess.run(["clang", "--version"], capture_output=True, text=True).stdout:
        assert [path.read_bytes() for path in found] == [(FOLDER / name).read_bytes() for name in MODULES]
    holds(tmp_path, *found)


@pytest.mark.parametrize("changes", CHANGES)
def test_updates_lead_to_the_bits_of_the_servers_model(node: Node, tmp_path: Path, changes: dict[str, Any]) -> None:
    setup = made(recipe_of(tmp_path, **changes), tmp_path)
    plan = plans.plan_of(setup)
    replica, rates, draw = setup.replica(), plans.Rates(setup.recipe.algorithm), np.random.default_rng(5)
    updates, digests = [], [replica.digest().hex()]
    for round in range(5):
        scalars = pack(draw.normal(size=plan.method.steps * plan.method.directions).astype(np.float32))
        replica.follow([Seeded(round, scalars)])
        updates.append([round, scalars.hex(), rates.of(range(6)).hex()])
        digests.append(replica.digest().hex())
    found = node.ask("updates", plan=plans.encode(plan).hex(), updates=updates)
    assert found == {"digests": digests, "last": digests[-1], "state": replica.state.to_bytes().hex()}


@pytest.mark.parametrize("changes", CHANGES)
def test_a_turn_is_that_of_the_client_in_numpy(node: Node, tmp_path: Path, changes: dict[str, Any]) -> None:
    """The same batch, points and differences; losses differ in their last bits."""
    data = plans.encode(plans.plan_of(made(recipe_of(tmp_path, **changes), tmp_path)))
    plan = device_plan.read(data)
    model, place = Model(plan), 10 + CHANGES.index(changes)
    right = packing.unpack(Worker(plan, Rows(*data_of(place)), place).reply(model, 3, 0, plan.method.rate))
    how = {"plan": data.hex(), "csv": str(csv_of(tmp_path, place)), "state": model.to_bytes().hex(), "pairs": ""}
    found = packing.unpack(bytes.fromhex(node.ask("reply", place=place, round=3, **how)))
    assert (found[:3], found[5]) == (right[:3], right[5])
    for field in (3, 4):
        assert np.allclose(*(np.frombuffer(each[field], "<f4") for each in (found, right)), rtol=1e-3, atol=1e-3)


@given(st.binary(max_size=400))
@settings(max_examples=40)
def test_digests_are_those_of_blake2b(node: Node, data: bytes) -> None:
    right = hashlib.blake2b(data, digest_size=8, person=b"fedzero-model").hexdigest()
    assert node.ask("digest", data=data.hex(), person="fedzero-model") == right


def without_floats(value: Any) -> bool:
    return not isinstance(value, float) and (not isinstance(value, list) or all(map(without_floats, value)))


@given(VALUES.filter(without_floats))
@settings(max_examples=60)
def test_messages_are_in_their_shortest_form(node: Node, value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    try:
        assert node.ask("unpacked", data=data.hex()) == data.hex()
    except ValueError as error:  # what JavaScript does not hold exactly, or no frame is so deep
        assert "2⁵³" in str(error) or "too large" in str(error)


@given(st.binary(max_size=80))
@settings(max_examples=100)
def test_bytes_that_are_no_message_are_said_to_be_none(node: Node, data: bytes) -> None:
    try:
        node.ask("unpacked", data=data.hex())
    except ValueError as error:
        assert str(error).startswith(
            ("Broken: ", "TypeError: no message has")
        )  # the latter: a float, which is only read
