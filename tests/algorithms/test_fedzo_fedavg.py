"""FedZO in both forms, FedAvg, and what they cost on the wire."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harness import small

from fedzero.algorithms import FedAvg, FedZO
from fedzero.directions import reference
from fedzero.updates import Dense, Seeded, decode_update


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
                v = momentum * v + problem.objective.curvature * (y - centre) + noise
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
