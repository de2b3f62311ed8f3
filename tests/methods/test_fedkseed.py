"""FedKSeed: against the paper by hand, the model from the accumulators alone, keys from the pool, bytes both ways."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from byhand import EPS, SIZES, How, Listening, assert_near, bound, drawn, federation, model, start, steps_along

from fedzero.directions import Keys
from fedzero.methods.contract import Scale, Turn
from fedzero.methods.fedkseed import FedKSeed
from fedzero.model.params import Params
from fedzero.model.schedules import InverseSqrt
from fedzero.protocol.messages import Snapshot, Work, decode_instruction, encode, encode_work
from fedzero.recipe import recipe as recipes

S, K, ETA = 6, 4, 5e-3
CASES = [How(P=1, central=True), How(P=3, central=True), How(P=2)]


def method(how: How, pool: int = S, order: str = "pool") -> FedKSeed:
    fields = how.fields
    del fields["samples"]
    return FedKSeed(rate=ETA, pool=pool, local_steps=K, order=order, **fields)


def by_hand(world, rounds: int, how: How) -> tuple[np.ndarray, np.ndarray]:
    """(x, A): every step's keys are drawn from the pool, with replacement, by a generator of (round, step)."""
    pool = [drawn(world.keys.direction(0, 0, s), SIZES, False) for s in range(S)]
    x, A = start(), np.zeros(S)
    for r in range(rounds):
        chosen = [world.keys.generator("pool", r, k).integers(S, size=how.P) for k in range(K)]
        x, g = steps_along(world, r, x, [[pool[s] for s in each] for each in chosen], how, ETA)
        np.add.at(A, np.array(chosen), g / how.P)
    return x, A


@pytest.mark.parametrize("order", ["pool", "rounds"])
@pytest.mark.parametrize("how", CASES, ids=str)
def test_three_rounds_equal_the_paper_by_hand(tmp_path: Path, how, order) -> None:
    run, world = federation(tmp_path, method(how, order=order), replicas=True)
    run.play(3)
    x, A = by_hand(world, 3, how)
    assert np.abs(x - start()).max() > 0.1, "the run must have moved"
    assert_near(model(run), x, bound(how.mu))
    assert_near(run.replica.state.carry.A, A, bound(how.mu))
    assert not any(r.refused for r in run.records)


@pytest.mark.parametrize("order", ["pool", "rounds"])
@pytest.mark.parametrize("how", CASES, ids=str)
def test_the_accumulators_are_the_whole_fine_tune(tmp_path: Path, how, order) -> None:
    """x = x_0 − η Σ_s A[s] z_s, up to the rounding of float32: of every coefficient, and of x with every term."""
    rounds = 9
    run, world = federation(tmp_path, method(how, order=order))
    run.play(rounds)
    A = run.replica.state.carry.A
    assert (A.shape, A.dtype) == ((S,), torch.float32)
    z = np.stack([drawn(world.keys.direction(0, 0, s), SIZES, False) for s in range(S)])
    # A itself is rounded once for every scalar that is added to it.
    assert_near(model(run), start() - ETA * A.double().numpy() @ z, 2 * (rounds * K * how.P + 1) * EPS)


def test_the_model_is_the_sum_in_the_order_of_the_pool_to_the_last_bit(tmp_path: Path) -> None:
    run, world = federation(tmp_path, method(CASES[1]))
    run.play(9)
    A, x = run.replica.state.carry.A.numpy(), start().astype(np.float32)
    for s in np.flatnonzero(A):
        z = drawn(world.keys.direction(0, 0, int(s)), SIZES, False).astype(np.float32)
        x = x + np.float32(-ETA * float(A[s])) * z
    assert np.array_equal(run.replica.state.params.vector().numpy(), x)


def test_both_orders_fold_the_same_directions(tmp_path: Path) -> None:
    """Whatever they are sums of."""
    found = []
    for order in ("pool", "rounds"):
        algorithm = msgspec.structs.replace(method(CASES[1], order=order), distribution="rank1", rank=3)
        run, _ = federation(tmp_path / order, algorithm)
        run.play(5)
        found.append(model(run))
    assert_near(*found, bound(CASES[1].mu))


def test_directions_come_from_the_pool_and_all_of_it_is_used() -> None:
    """The keys of the points that clients ask about: the same for all of them, and no others than the S of the run."""
    method, keys = FedKSeed(rate=1e-3, pool=S, directions=3, local_steps=2), Keys.of_seed(3)
    pool, seen = {keys.direction(0, 0, s) for s in range(S)}, set()
    for r in range(20):
        asked = []
        for client in (0, 7):
            work = method.client(method.init(Params.of_vector(torch.zeros(5)), 10), Turn(r, client, keys))
            first = next(work)
            second = work.send(np.zeros(len(first.points)))
            asked.append([int(key) for ask in (first, second) for point in ask.points for key in point.keys])
        assert asked[0] == asked[1]
        assert set(asked[0]) <= pool
        seen |= set(asked[0])
    assert seen == pool


@pytest.mark.parametrize("pool", [1, 4096])
def test_bytes_are_those_of_the_scalars_whatever_the_pool(tmp_path: Path, pool) -> None:
    """Up: K·P numbers; down: as many for every round that was missed."""
    how, m, d = How(P=3, central=True), 4, 50
    algorithm = method(how, pool, "rounds")
    run, _ = federation(tmp_path, algorithm, clients=m, cohort=m)
    run.play(4)
    cost = algorithm.cost(0, Scale(d, m))
    assert (cost.replies, cost.queries, algorithm.traits(Scale(d, m)).seeded) == ((K * how.P,), K * 2 * how.P, True)
    for record in run.records:
        reply = (record.round, 0, bytes(8), bytes(4 * cost.replies[0]), bytes(4), cost.queries)
        assert record.bytes_up == m * len(msgspec.msgpack.encode(reply))
        missed = [msgspec.Raw(r.update) for r in run.records[: record.round][-1:]]
        assert record.bytes_down == m * len(msgspec.msgpack.encode((1, record.round, 0, missed)))
        assert record.queries == m * cost.queries


def test_who_was_away_is_sent_accumulators_where_they_are_fewer_bytes(tmp_path: Path) -> None:
    """Clients with models of their own: whatever they are sent, they end in the server's bits."""
    how, pool, clients = CASES[0], 16, 12
    run, _ = federation(tmp_path, method(how, pool), clients=clients, cohort=2, replicas=True)
    run.engine = heard = Listening(run.engine)
    run.play(30)
    assert not any(r.refused for r in run.records)
    known, kinds = dict.fromkeys(range(clients), 0), set()
    for round, _, client, instruction, _ in heard.heard:
        message = decode_instruction(instruction)
        work = encode_work(round, 0, [r.update for r in run.records[known[client] : round]])
        snapshot = encode(Snapshot(round, 0, 0, bytes(4 * pool)))
        assert len(instruction) == min(len(work), len(snapshot))
        assert isinstance(message, Snapshot) == (len(snapshot) < len(work))
        kinds.add(type(message))
        known[client] = round
    assert kinds == {Work, Snapshot}
    assert sum(r.bytes_down for r in run.records) == sum(len(each[3]) for each in heard.heard)


def test_a_server_without_a_model_has_no_accumulators_to_send(tmp_path: Path) -> None:
    run, _ = federation(tmp_path, method(CASES[0], 1), clients=6, cohort=2, replicas=True, server_model=False)
    run.engine = heard = Listening(run.engine)
    run.play(8)
    assert not any(r.refused for r in run.records)
    assert all(isinstance(decode_instruction(instruction), Work) for _, _, _, instruction, _ in heard.heard)


def test_a_client_that_pulls_is_sent_the_accumulators_and_no_model(tmp_path: Path) -> None:
    run, _ = federation(tmp_path, method(CASES[0]), clients=12, cohort=2, replicas=True, pull_after=1)
    run.play(20)
    assert max(r.bytes_down for r in run.records) <= 2 * (4 * S + 20)
    assert not any(r.refused for r in run.records)
    for client in run.engine.clients.values():
        replica = client.replica
        assert torch.equal(replica.state.carry.A, run.replayed(replica.round).state.carry.A)


def test_in_the_order_of_rounds_a_client_that_pulls_is_sent_both(tmp_path: Path) -> None:
    algorithm = method(CASES[0], order="rounds")
    run, _ = federation(tmp_path, algorithm, clients=12, cohort=2, replicas=True, pull_after=3)
    run.play(20)
    assert max(r.bytes_down for r in run.records) > 4 * 50 + 4 * S, "somebody was sent both"
    assert not any(r.refused for r in run.records)
    for client in run.engine.clients.values():
        replica = client.replica
        assert torch.equal(replica.state.carry.A, run.replayed(replica.round).state.carry.A)


def test_the_rate_is_constant() -> None:
    """A scalar that came early and one that came late weigh the same in A."""
    table = {"kind": "fedkseed", "rate": msgspec.to_builtins(InverseSqrt(start=1e-2))}
    with pytest.raises(msgspec.ValidationError, match=r"algorithm\.rate"):
        recipes.method(table)
