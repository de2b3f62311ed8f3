"""Every method that travels as scalars: the same run as with numbers, at a cost without d, and one burst is enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from byhand import EPS, D, How, Losing, assert_near, federation, model, params, start, updates_of
from harness import Free, small

from fedzero.methods import Baffle, DeComFL, Dzopa, FedProxZO, FedZO, MeZO, ScaffoldZO, ZOAdaFL, ZOFedHT, ZoneS
from fedzero.methods.rules.kernels import Adam, Momentum, Sgd, Sign
from fedzero.methods.shared.graphs import Edges, Ring
from fedzero.protocol.messages import Work
from fedzero.protocol.replica import Replica
from fedzero.tasks import Quadratic

MU = 0.1
STEP: dict[str, Any] = {"rate": 5e-3, "radius": MU, "directions": 2}
WALK = STEP | {"local_steps": 2}
TREE = Edges(pairs=((0, 1), (1, 2), (1, 3)))

BOTH: dict[str, Any] = {
    "fedzo": FedZO(**WALK),
    "fedzo rademacher": FedZO(distribution="rademacher", **WALK),
    "fedzo sphere": FedZO(distribution="sphere", difference="central", **WALK),
    **{f"zo-adafl {rule}": ZOAdaFL(rule=rule, **WALK) for rule in ("amsgrad", "adam", "yogi", "adagrad")},
    "zofedht": ZOFedHT(tau=3, **WALK),
    "zofedht forward": ZOFedHT(tau=2, alpha=0.9, difference="forward", **WALK),
    "zofedht without history": ZOFedHT(alpha=0.0, **WALK),
    "fedprox-zo": FedProxZO(gamma=20.0, **WALK),
    "scaffold-zo I": ScaffoldZO(type="I", **WALK),
    "scaffold-zo II": ScaffoldZO(type="II", **WALK),
    "baffle": Baffle(**STEP),
    "dzopa": Dzopa(gamma=0.05, **STEP),
    "dzopa ring": Dzopa(gamma=0.05, graph=Ring(), **STEP),
    "dzopa tree": Dzopa(gamma=0.05, graph=TREE, **STEP),
    "zone-s": ZoneS(**STEP),
}
SEEDED_ONLY: dict[str, Any] = {
    **{
        f"decomfl {type(optimizer).__name__}": DeComFL(optimizer=optimizer, **WALK)
        for optimizer in (Sgd(), Momentum(), Adam(), Sign())
    },
    "mezo": MeZO(**STEP),
}
SEEDED = {name: msgspec.structs.replace(method, form="seeded") for name, method in BOTH.items()} | SEEDED_ONLY

ONE_OF_EACH = [
    *("fedzo", "zo-adafl amsgrad", "zofedht", "zofedht without history", "fedprox-zo", "scaffold-zo I"),
    *("scaffold-zo II", "baffle", "dzopa ring", "zone-s", "decomfl Momentum", "mezo"),
]


def places(method: Any) -> dict[str, int]:
    """Three of four clients a round, or what a method insists on."""
    kinds = {Dzopa: (4, 4), ZoneS: (4, 1), MeZO: (1, 1)}
    clients, cohort = kinds.get(type(method), (4, 3))
    return {"clients": clients, "cohort": cohort}


def lost(r: int, exchange: int, i: int) -> bool:
    """Nobody answers in round 4, and somebody is missing in most: with two exchanges, sometimes between them."""
    return r == 4 or (r * 3 + i * 5 + exchange) % 7 == 0


@pytest.mark.parametrize("method", BOTH.values(), ids=BOTH)
def test_seeded_equals_dense_up_to_rounding(tmp_path: Path, method) -> None:
    """Both walks are the same but for roundings of points, EPS·|x|/μ of a slope (see `bound`).

    On ZO-AdaFL's unit sphere a coordinate moves by μ/√d, and its steps are divided by √v̂.
    """
    ends = {}
    for form in ("dense", "seeded"):
        run, _ = federation(tmp_path / form, msgspec.structs.replace(method, form=form), **places(method))
        run.engine = Losing(run.engine, lost)
        run.play(10)
        assert run.records[4].update is None
        ends[form] = model(run)
    assert np.abs(ends["dense"] - start()).max() > 0.01, "the run must have moved"
    unit = getattr(method, "distribution", "") == "unit-sphere"
    assert_near(ends["seeded"], ends["dense"], How(mu=MU, kind="unit-sphere" if unit else "gaussian").bound)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_bytes_do_not_depend_on_the_model(tmp_path: Path, name) -> None:
    """10³ and 10⁵ parameters: the same bytes up and down in every round, catching up after losses included."""
    costs = []
    for dimension in (1_000, 100_000):
        method = msgspec.structs.replace(SEEDED[name], rate=1e-9)
        task = Quadratic(dimension=dimension, spread=0.0)
        run = small(tmp_path / str(dimension), method, task=task, objective=Free(), **places(method))
        run.engine = Losing(run.engine, lost)
        run.play(5)
        assert run.replica.state.params.size == dimension
        costs.append([(r.bytes_up, r.bytes_down, r.queries) for r in run.records])
    assert costs[0] == costs[1]
    up, down, _ = np.sum(costs[0], axis=0)
    assert 0 < up < 5 * 4 * 200, "some dozens of bytes a reply"
    assert 0 < down < 5 * 4 * 2000


def test_zofedht_sends_its_matrix_with_the_last_update_of_a_block_only(tmp_path: Path) -> None:
    """Whoever is sent a round that closes a block is sent 4τ² bytes more than for another round, at any size."""
    tau = 4
    for dimension in (1_000, 100_000):
        method = ZOFedHT(rate=1e-9, tau=tau, directions=2, local_steps=4, form="seeded")
        task = Quadratic(dimension=dimension, spread=0.0)
        run = small(tmp_path / str(dimension), method, task=task, objective=Free(), clients=2, cohort=2)
        run.play(9)
        # Everybody takes part in every round: a round sends down the update of the round before it.
        for record in run.records[2:]:
            more = 4 * tau**2 if record.round % tau == 0 else 0
            assert record.bytes_down == run.records[1].bytes_down + 2 * more
            assert record.bytes_up == run.records[0].bytes_up


def same_state(one: Replica, other: Replica) -> None:
    mine, theirs = one.state, other.state
    assert one.digest() == other.digest()
    assert (mine.round, mine.numbers, mine.clients) == (theirs.round, theirs.numbers, theirs.clients)
    assert type(mine.carry) is type(theirs.carry)
    for ours, others in zip(mine.carry.tensors(), theirs.carry.tensors(), strict=True):
        assert torch.equal(ours, others)


@pytest.mark.covered
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", SEEDED.values(), ids=SEEDED)
def test_a_replica_that_slept_equals_one_that_never_did(tmp_path: Path, method, dtype) -> None:
    """A run on parameters of this type, real replicas and lost replies; then its updates one by one, all at once, and
    in two bursts: the same bits, memory of the rule included."""
    run, _ = federation(tmp_path, method, dtype, replicas=True, **places(method))
    run.engine = Losing(run.engine, lost)
    run.play(10)
    assert all(why == "failed: lost" for r in run.records for _, why in r.refused), "no replica diverged"
    updates, clients = updates_of(run), run.setup.recipe.federation.clients
    awake, asleep, half = (Replica(method, params(dtype), run.setup.keys, clients) for _ in range(3))
    for update in updates:
        awake.follow([update])
    asleep.obey(Work(10, 0, tuple(updates)), 0)
    half.follow(updates[:5])
    half.follow(updates)
    for replica in (awake, asleep, half):
        same_state(replica, run.replica)
    assert {t.dtype for t in run.replica.state.params.tensors.values()} == {dtype}
    assert run.replica.digest() != Replica(method, params(dtype), run.setup.keys, clients).digest()


@pytest.mark.parametrize("method", SEEDED.values(), ids=SEEDED)
def test_bfloat16_follows_float32(tmp_path: Path, method) -> None:
    """The same updates on 16-bit parameters: off by the roundings alone, which are unbiased and do not pile up.

    One rounding a round of at most 2⁻⁷|x|, with mean zero: after 13 rounds √13 of them, five standard deviations. (The
    mean of DZOPA's nodes is rounded once.)
    """
    run, _ = federation(tmp_path, method, **places(method))
    run.play(13)
    replica = Replica(method, params(torch.bfloat16), run.setup.keys, run.setup.recipe.federation.clients)
    replica.follow(updates_of(run))
    got, expected = replica.state.params.vector().double().numpy(), model(run)
    assert got.shape == (D,)
    size = np.maximum(np.abs(expected), np.abs(start()))
    assert np.all(np.abs(got - expected) < 5 * np.sqrt(13) * 2**-8 * np.maximum(size, 2**-3))
    assert np.abs(got - expected).max() > EPS, "16 bits are not 32"
