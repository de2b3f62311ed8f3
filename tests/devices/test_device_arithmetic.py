"""The client in NumPy against fedzero's own parts, and both against the text of docs/device-protocol.md."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from fedzero_client import packing, signing, stream
from fedzero_client import plan as device_plan
from fedzero_client.errors import Broken, ClientError
from fedzero_client.model import Model, loss
from fedzero_client.turn import Rows, Worker
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.fleet import INPUTS, LABELS, data_of, made, recipe_of
from fedzero.directions import Domain, derive
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.signing import ED25519, Verifier
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.model.schedules import rate_at
from fedzero.model.updates import Seeded, pack
from fedzero.privacy.statement import SMALL_ORDER, small_order
from ledger.recompute.stream import blocks, derived

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=20),
    max_leaves=40,
)


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_msgpack_is_the_shortest_form(value: Any) -> None:
    data = packing.pack(value)
    assert data == msgspec.msgpack.encode(value)
    assert packing.unpack(data) == value


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_msgpack_at_the_edges_of_lengths(size: int) -> None:
    for value in ("a" * size, bytes(size), [None] * size):
        assert packing.pack(value) == msgspec.msgpack.encode(value)
        assert packing.unpack(packing.pack(value)) == value


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_said_to_be_none(data: bytes) -> None:
    try:
        value = packing.unpack(data)
    except Broken:
        return
    assert packing.unpack(packing.pack(value)) == value or value != value


def test_signatures_of_a_client_are_those_that_a_gateway_verifies() -> None:
    seed, message = bytes(range(32)), b"m"
    public, signature = signing.public_of(seed), signing.sign(seed, message)
    assert Verifier(ED25519, public)(message, signature) and signing.verify(public, message, signature)
    assert not signing.verify(public, message + b"!", signature)
    assert not signing.verify(public, message, bytes(64))
    assert not signing.verify(b"", message, signature)


def test_keys_of_small_order_are_all_of_them() -> None:
    """Multiplied by 8, which X25519 does on the other form of the curve, they are nothing: u = (1 + y)/(1 − y)."""
    prime, found = 2**255 - 19, set()
    for y in SMALL_ORDER - {1, prime + 1}:  # the neutral element has no u
        u = (1 + y) * pow(1 - y, -1, prime) % prime
        with pytest.raises(ValueError, match="shared"):
            X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(u.to_bytes(32, "little")))
        found.add(y % prime)
    assert len(found) == 4  # with the neutral element, and both signs of x, these are all 8
    assert small_order(bytes(31) + b"\x80") and not small_order(signing.public_of(bytes(32)))


@pytest.mark.parametrize("columns", [0, 1, 7, 130])
def test_directions_are_those_of_the_stream(columns: int) -> None:
    shape = (40, columns) if columns else (5000,)
    params = Params({"a": torch.zeros(3), "x": torch.zeros(shape)})
    for domain in (Domain.GAUSSIAN, Domain.RADEMACHER, Domain.RANK1):
        right = params.direction(domain, 2**63 + 12345)[3:].numpy()
        assert stream.direction(int(domain), 2**63 + 12345, 1, shape).tobytes() == right.tobytes()


def test_the_gaussian_stream_is_that_of_the_page() -> None:
    """NumPy's float32 sums, products and roots are all that it takes: the digests and pairs of docs/directions.md."""
    page = (Path(__file__).parents[2] / "docs" / "directions.md").read_text(encoding="utf-8")
    vectors = re.findall(r"\| gaussian \| `(\w{16})` \| (4097|2²⁰) \| `(\w{64})`", page)
    assert len(vectors) == 5
    for key, size, digest in vectors:
        z = stream.gaussian.__wrapped__(int(key, 16), 0, 4097 if size == "4097" else 1 << 20)
        assert sha256(z.astype("<f4").tobytes()).hexdigest() == digest
    pairs = re.findall(r"\| `(\w{8})` \| `(\w{8})` \| `(\w{8}) (\w{8})` \|", page)
    assert len(pairs) >= 6
    for a, b, *expected in pairs:
        words = (np.array([int(word, 16)], np.uint32) for word in (a, b))
        assert [hex8(z) for z in stream.pairs(*words)] == expected


def hex8(number: np.ndarray) -> str:
    return f"{int(number.view(np.uint32)[0]):08x}"


def by_hand(root: bytes, round: int, step: int, place: int, n: int, b: int) -> list[int]:
    """The draw of docs/device-protocol.md, word for word."""
    words = iter(blocks(derived(root, "batch", round, step, place), 6, 0, 1000).reshape(-1).tolist())

    def below(m: int) -> int:
        while True:
            p = next(words) * m
            if p % 2**32 >= (2**32 - m) % m:
                return int(p // 2**32)

    taken: set[int] = set()
    for j in range(n - b, n):
        t = below(j + 1)
        taken.add(j if t in taken else t)
    return sorted(taken)


@given(st.integers(1, 3000), st.integers(1, 200), st.integers(0, 10**6), st.integers(0, 9))
@settings(max_examples=60)
def test_batches(rows: int, size: int, round: int, place: int) -> None:
    found = stream.batch(bytes(32), round, 1, place, rows, size).tolist()
    assert found == (list(range(rows)) if rows <= size else by_hand(bytes(32), round, 1, place, rows, size))


def test_every_row_is_drawn_equally_often() -> None:
    counts = np.zeros(20)
    for round in range(4000):
        counts[stream.batch(bytes(range(32)), round, 0, 0, 20, 5)] += 1
    deviations = (counts - 1000) / np.sqrt(4000 * 0.25 * 0.75)
    assert np.square(deviations).sum() < 43.8  # χ² with 19 degrees of freedom, one in a thousand


CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"distribution": "gaussian", "local_steps": 2},
    {"distribution": "rank1", "local_steps": 2, "difference": "central"},
    {"optimizer": {"kind": "momentum", "beta": 0.8}, "rate": {"kind": "inverse-sqrt", "start": 0.3}},
)


@pytest.mark.parametrize("changes", CHANGES)
def test_updates_lead_to_the_bits_of_the_servers_model(tmp_path: Path, changes: dict[str, Any]) -> None:
    setup = made(recipe_of(tmp_path, **changes), tmp_path)
    plan = device_plan.read(plans.encode(plans.plan_of(setup)))
    replica, model, rates = setup.replica(), Model(plan), plans.Rates(setup.recipe.algorithm)
    draw, count = np.random.default_rng(5), plan.method.steps * plan.method.directions
    assert model.digest() == replica.digest()
    for round in range(5):
        scalars = pack(draw.normal(size=count).astype(np.float32))
        replica.follow([Seeded(round, scalars)])
        model.apply(round, scalars, device_plan.Rates(plan, rates.of(range(6))).at(round))
        assert model.digest() == replica.digest()
    assert model.to_bytes() == replica.state.to_bytes()
    other = Model(plan)
    other.load(model.to_bytes(), 5)
    assert other.digest() == model.digest() and other.to_bytes() == model.to_bytes()


def test_rates_stand_for_every_round(tmp_path: Path) -> None:
    rate = {"kind": "steps", "start": 0.5, "factor": 0.5, "at_rounds": [3, 4]}
    setup = made(recipe_of(tmp_path, rate=rate), tmp_path)
    plan, rates = device_plan.read(plans.encode(plans.plan_of(setup))), plans.Rates(setup.recipe.algorithm)
    pairs = rates.of([0, 2, 3, 5])
    assert len(pairs) == 32 and rates.of([0, 1, 2]) == b""
    for round in (0, 2, 3, 5):
        assert device_plan.Rates(plan, pairs).at(round) == rate_at(setup.recipe.algorithm.rate, round)


def test_the_loss_is_that_of_the_servers_module(tmp_path: Path) -> None:
    setup = made(recipe_of(tmp_path), tmp_path)
    plan = device_plan.read(plans.encode(plans.plan_of(setup)))
    x, y = data_of(99)  # the held-out rows
    worker = Worker(plan, Rows(x, y), 0)
    found = loss(plan, Model(plan).x, worker.x, worker.y)
    right = setup.problem.objective.evaluate(setup.problem.params).loss
    assert found == pytest.approx(right, rel=1e-6)


REFUSED: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"distribution": "unit-sphere"}, {}, "'unit-sphere' directions"),
    ({"difference": "mean"}, {}, "'mean' differences"),
    ({"optimizer": {"kind": "adam"}}, {}, "'adam'"),
    ({"step": "rms"}, {}, "'weighting'"),
    ({"directions": {"start": 2, "then": [[2, 3]]}}, {}, "a schedule of directions"),
    ({"kind": "fedkseed"}, {}, "fedkseed"),
    ({}, {"task": {"kind": "quadratic"}}, "task.kind"),
    ({}, {"filters": [{"kind": "top-k", "fraction": 0.5}]}, "a filter that clients apply"),
    ({}, {"sampling": "private"}, "sampling = 'private'"),
    ({}, {"federation": {"clients": 3, "cohort": 3, "replacement": True}}, "federation.replacement"),
    ({}, {"federation": {"clients": 3, "cohort": 3, "sync": True}}, "federation.sync"),
    ({}, {"federation": {"clients": 3, "cohort": 3, "pull_after": 4}}, "federation.pull_after"),
    ({}, {"federation": {"clients": 3, "cohort": 3, "server_model": False}}, "federation.server_model"),
)


@pytest.mark.parametrize(("algorithm", "table", "named"), REFUSED)
def test_what_the_profile_has_not_is_refused_by_name(
    tmp_path: Path, algorithm: dict[str, Any], table: dict[str, Any], named: str
) -> None:
    from fedzero.recipe import recipe as recipes

    found = msgspec.to_builtins(recipe_of(tmp_path))
    fields = {"kind": "decomfl", "rate": 0.1, "distribution": "rademacher"} | algorithm
    if fields["kind"] != "decomfl":
        fields = {"kind": fields["kind"], "rate": 0.1}
    found = {name: value for name, value in found.items() if value not in (None, ())} | {"algorithm": fields} | table
    with pytest.raises(FedzeroError, match=f"fedzero-device/1 does not have .*{named}"):
        plans.plan_of(made(recipes.decode(found), tmp_path))


def test_rows_that_do_not_fit_are_refused_by_the_device(tmp_path: Path) -> None:
    plan = device_plan.read(plans.encode(plans.plan_of(made(recipe_of(tmp_path), tmp_path))))
    x, y = data_of(0)
    for rows, why in (
        (Rows(x[:, :3], y), f"rows of {INPUTS} numbers"),
        (Rows(x, y + LABELS), "labels go from"),
        (Rows(x[:0], y[:0]), "0 rows"),
        (Rows(x + np.float32(np.inf), y), "infinite"),
    ):
        with pytest.raises(ClientError, match=why):
            Worker(plan, rows, 0)


@given(st.binary(max_size=200))
def test_a_plan_of_any_bytes_is_refused_in_a_sentence(data: bytes) -> None:
    with pytest.raises(ClientError):
        device_plan.read(data)


def test_directions_that_a_device_lacks_are_named_before_it_sends_anything(tmp_path: Path) -> None:
    plan = packing.unpack(plans.encode(plans.plan_of(made(recipe_of(tmp_path), tmp_path))))
    plan[7][0] = 3
    with pytest.raises(ClientError, match="directions of kind 3, which is not in this client's profile"):
        device_plan.read(packing.pack(plan))


def test_the_first_model_needs_no_gaussian_stream(tmp_path: Path) -> None:
    setup = made(recipe_of(tmp_path), tmp_path)
    first = next(iter(setup.problem.params.tensors.values())).numpy().reshape(-1)
    signs = stream.rademacher(derive(setup.keys.root, "init"), 0, first.size)
    assert np.array_equal(np.sign(first), signs) and len(set(np.abs(first))) == 1
