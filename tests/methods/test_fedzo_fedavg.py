"""FedZO in both forms, FedAvg with and without filters, and what they cost on the wire."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from byhand import EPS, How, Listening, assert_near, federation, fedzo, model, start
from harness import small

from fedzero.directions import reference
from fedzero.links.quantise import Quantise
from fedzero.links.topk import TopK
from fedzero.methods import FedAvg, FedZO
from fedzero.model.updates import Dense, Seeded, decode_update


def test_fedzo_seeded_equals_dense_up_to_rounding(tmp_path: Path) -> None:
    runs = {}
    for form in ("dense", "seeded"):
        runs[form] = small(tmp_path / form, FedZO(rate=2e-3, directions=4, local_steps=3, form=form), replicas=True)
        runs[form].play(20)
        assert not any(r.refused for r in runs[form].records)
    dense, seeded = (runs[f].replica.state.params.vector().double() for f in ("dense", "seeded"))
    assert (dense - seeded).abs().max() < 1e-5 * dense.abs().max()
    assert not runs["seeded"].records[0].dense
    assert runs["dense"].records[0].dense


def test_fedzo_against_a_plain_loop(tmp_path: Path) -> None:
    eta, mu, P, K = 2e-3, 1e-2, 3, 2
    run = small(tmp_path, FedZO(rate=eta, radius=mu, directions=P, local_steps=K, form="seeded"))
    run.play(10)
    problem, keys, x = run.setup.problem, run.setup.keys, np.zeros(50)
    for record in run.records:
        ends = []
        for i in record.cohort:
            y = x.copy()
            for k in range(K):
                centre, noise = problem.shards.batch(keys, record.round, k, i)
                f = lambda w, c=centre, n=noise: 0.5 * problem.objective.curvature @ (w - c) ** 2 + n @ w  # noqa: E731
                z = [reference.gaussian(keys.direction(record.round, k, p, i), 0, 50).astype(float) for p in range(P)]
                y = y - eta / P * sum((f(y + mu * zp) - f(y)) / mu * zp for zp in z)
            ends.append(y)
        x = np.mean(ends, axis=0)
    got = run.replica.state.params.vector().double().numpy()
    assert np.abs(got - x).max() < 2e-4 * np.abs(x).max()


def test_fedzo_auto_takes_the_smaller_form(tmp_path: Path) -> None:
    few = small(tmp_path / "few", FedZO(rate=1e-3, directions=4, local_steps=2))
    many = small(tmp_path / "many", FedZO(rate=1e-3, directions=40, local_steps=2))
    few.play(1)
    many.play(1)
    assert isinstance(decode_update(few.records[0].update), Seeded)
    assert many.records[0].dense
    assert isinstance(decode_update(many.ledger.dense_updates({0: many.records[0].update})[0]), Dense)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedavg_against_a_plain_loop(tmp_path: Path, momentum) -> None:
    eta, K = 1e-2, 4
    run = small(tmp_path, FedAvg(rate=eta, local_steps=K, momentum=momentum))
    run.play(12)
    problem, keys, x = run.setup.problem, run.setup.keys, np.zeros(50)
    for record in run.records:
        ends = []
        for i in record.cohort:
            y, v = x.copy(), np.zeros(50)
            for k in range(K):
                centre, noise = problem.shards.batch(keys, record.round, k, i)
                v = momentum * v + (1 - momentum) * (problem.objective.curvature * (y - centre) + noise)
                y = y - eta * v
            ends.append(y)
        x = np.mean(ends, axis=0)
    assert np.abs(run.replica.state.params.vector().double().numpy() - x).max() < 1e-5 * np.abs(x).max()
    assert [r.queries for r in run.records] == [3 * K] * 12


def test_dense_methods_cost_the_model_each_way(tmp_path: Path) -> None:
    run = small(tmp_path, FedAvg(rate=1e-2))
    run.play(3)
    for record in run.records:
        assert 3 * 200 < record.bytes_up < 3 * 240
        assert 3 * 200 < record.bytes_down < 3 * 240


FAMILY = {
    "gaussian": How(),
    "rademacher": How(kind="rademacher"),
    "sphere": How(kind="sphere"),
    "unit sphere with the factor d": How(kind="unit-sphere", mu=0.5),
    "unit sphere, central": How(kind="unit-sphere", mu=0.5, central=True),
    "central": How(central=True),
    "mini-batch, five directions": How(P=5),
    "ZOFedAvg-SGD": How(P=1, central=True),
    "ZOFedAvg-GD": How(P=1, central=True, everything=True),
}


@pytest.mark.parametrize("how", FAMILY.values(), ids=FAMILY)
def test_the_fedzo_family_equals_the_papers_by_hand(tmp_path: Path, how) -> None:
    eta, K, rounds = 5e-3, 3, 8
    runs = {}
    for form in ("dense", "seeded"):
        run, world = federation(tmp_path / form, FedZO(rate=eta, local_steps=K, form=form, **how.fields))
        run.play(rounds)
        expected = fedzo(world, rounds, K, eta, how)
        assert np.abs(expected - start()).max() > 0.2, "the run must have moved"
        assert_near(model(run), expected, how.bound)
        assert {r.queries for r in run.records} == {3 * K * (2 * how.P if how.central else how.P + 1)}
        runs[form] = model(run)
    assert_near(runs["seeded"], runs["dense"], how.bound)


@pytest.mark.parametrize("form", ["dense", "seeded"])
def test_a_client_drawn_twice_weighs_twice(tmp_path: Path, form) -> None:
    eta, K, rounds, how = 5e-3, 2, 8, How()
    algorithm = FedZO(rate=eta, local_steps=K, form=form, **how.fields)
    run, world = federation(tmp_path, algorithm, clients=5, cohort=5, replacement=True)
    run.play(rounds)
    draws = [Counter(world.cohort(r)) for r in range(rounds)]
    assert any(max(drawn.values()) >= 3 for drawn in draws), "somebody is drawn three times in a round"
    assert_near(model(run), fedzo(world, rounds, K, eta, how), how.bound)
    for record, drawn in zip(run.records, draws, strict=True):
        assert record.queries == len(drawn) * K * (how.P + 1), "but works only once"
        if form == "seeded":
            update = decode_update(record.update)
            assert len(update.scalars) == 4 * len(drawn) * K * how.P, "and its scalars travel only once"


def walks(world, x, r: int, K: int, eta: float) -> dict[int, np.ndarray]:
    """FedAvg: Δ_i of every client of the round."""
    changes = {}
    for i in world.cohort(r):
        y = x.copy()
        for k in range(K):
            y = y - eta * world.gradient(y, r, i, k)
        changes[i] = y - x
    return changes


def largest(v: np.ndarray, fraction: float) -> np.ndarray:
    kept = np.argsort(-np.abs(v), kind="stable")[: math.ceil(fraction * v.size)]
    out = np.zeros_like(v)
    out[kept] = v[kept]
    return out


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
def test_fedavg_with_top_k_against_a_plain_loop(tmp_path: Path, fraction, feedback) -> None:
    eta, K, rounds = 2e-2, 3, 12
    filters = (TopK(fraction=fraction, feedback=feedback),)
    run, world = federation(tmp_path, FedAvg(rate=eta, local_steps=K), clients=5, filters=filters)
    run.play(rounds)
    x, rests = start(), np.zeros((5, 50))
    for r in range(rounds):
        sent = []
        for i, change in walks(world, x, r, K, eta).items():
            wanted = change + rests[i] if feedback else change
            sent.append(largest(wanted, fraction))
            rests[i] = wanted - sent[-1]
        x = x + np.mean(sent, axis=0)
    # Gradients are of points rounded to float32: EPS a local step, 36 of them.
    assert_near(model(run), x, rounds * K * EPS)
    # Places as a bitmap (7 bytes) or 4 bytes each, the numbers, and less than 64 of framing (a digest where rests are).
    k = math.ceil(fraction * 50)
    for record in run.records:
        assert 3 * (4 * k + min(7, 4 * k)) < record.bytes_up < 3 * (4 * k + min(7, 4 * k) + 64)


def test_fedcom_sends_what_was_meant_to_the_level_and_without_bias(tmp_path: Path) -> None:
    eta, K, rounds = 2e-2, 3, 60
    run, world = federation(tmp_path, FedAvg(rate=eta, local_steps=K), filters=(Quantise(),))
    run.engine = ear = Listening(run.engine)
    errors, variances = [], []
    for r in range(rounds):
        x = model(run)
        run.play(1)
        meant = walks(world, x, r, K, eta)
        read = {}
        for _, _, client, _, reply in ear.heard[-3:]:
            values = msgspec.msgpack.decode(reply)[3]
            _, scale, codes = msgspec.msgpack.decode(values)
            assert len(codes) == 50, "one byte a number"
            level = np.frombuffer(scale, "<f4")[0].astype(np.float64) / 127
            assert level * 127 == pytest.approx(np.abs(meant[client]).max(), rel=1e-5)
            read[client] = np.frombuffer(codes, np.int8) * level
            error = (read[client] - meant[client]) / level
            assert np.abs(error).max() < 1 + 1e-3, "the level above or the level below"
            up = np.mod(meant[client] / level, 1)
            errors.append(error)
            variances.append(up * (1 - up))
        assert read.keys() == meant.keys()
        assert_near(model(run), x + np.mean(list(read.values()), axis=0), 4 * EPS)
    # An unbiased rounding at random to one of two neighbours has the variance u(1−u): sums over 9,000
    # roundings must show both, within five standard deviations (of the squares: about 1 % each).
    errors, variances = np.concatenate(errors), np.concatenate(variances)
    assert abs(errors.sum()) < 5 * math.sqrt(variances.sum())
    assert (errors**2).sum() == pytest.approx(variances.sum(), rel=0.05)
