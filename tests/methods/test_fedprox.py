"""FedProx-ZO: the pulled walk against NumPy, its closed form, and what is left of it without the pull."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from byhand import How, assert_near, federation, model, start

from fedzero.methods import FedProxZO, FedZO
from fedzero.model.schedules import InverseSqrt


def by_hand(world, rounds: int, K: int, eta, gamma: float, how: How, closed: bool = False):
    """x ← x − η (Ĝ_k + γ (x − x_r)), step by step or D_K = −η Σ_k (1−ηγ)^{K−1−k} Ĝ_k."""
    x = start()
    for r in range(rounds):
        ends, rate = [], eta(r)
        for i in world.cohort(r):
            y, estimates = x.copy(), []
            for k in range(K):
                estimates.append(world.estimate(y, r, i, k, how))
                y = y - rate * (estimates[-1] + gamma * (y - x))
            if closed:
                y = x - rate * sum((1 - rate * gamma) ** (K - 1 - k) * G for k, G in enumerate(estimates))
            ends.append(y)
        x = np.mean(ends, axis=0)
    return x


@pytest.mark.parametrize("how", [How(), How(central=True), How(kind="rademacher")], ids=str)
@pytest.mark.parametrize("form", ["dense", "seeded"])
def test_eight_rounds_equal_the_paper_by_hand(tmp_path: Path, form, how) -> None:
    eta, gamma, K, rounds = 5e-3, 40.0, 4, 8
    run, world = federation(tmp_path, FedProxZO(rate=eta, gamma=gamma, local_steps=K, form=form, **how.fields))
    run.play(rounds)
    expected = by_hand(world, rounds, K, lambda r: eta, gamma, how)
    without = by_hand(world, rounds, K, lambda r: eta, 0.0, how)
    assert np.abs(expected - without).max() > 0.05, "the pull must be felt"
    assert_near(model(run), expected, how.bound)


def test_the_closed_form_is_the_walk(tmp_path: Path) -> None:
    """In exact arithmetic the two are one; with a rate that changes as well."""
    how = How()
    _, world = federation(tmp_path, FedProxZO(rate=1e-3))
    for eta in (lambda r: 5e-3, lambda r: 8e-3 / np.sqrt(r + 1)):
        step_by_step, closed = (by_hand(world, 4, 5, eta, 40.0, how, closed) for closed in (False, True))
        assert_near(closed, step_by_step, 1e-12)


@pytest.mark.parametrize("form", ["dense", "seeded"])
def test_a_schedule_reaches_clients_and_server(tmp_path: Path, form) -> None:
    how, gamma = How(), 20.0
    algorithm = FedProxZO(rate=InverseSqrt(start=8e-3), gamma=gamma, local_steps=3, form=form, **how.fields)
    run, world = federation(tmp_path, algorithm)
    run.play(8)
    assert_near(model(run), by_hand(world, 8, 3, lambda r: 8e-3 / np.sqrt(r + 1), gamma, how), how.bound)


@pytest.mark.parametrize("form", ["dense", "seeded"])
def test_without_the_pull_it_is_fedzo_to_the_last_bit(tmp_path: Path, form) -> None:
    fields = {"rate": 5e-3, "local_steps": 3, "form": form, **How().fields}
    pulled, _ = federation(tmp_path / "prox", FedProxZO(gamma=0.0, **fields))
    plain, _ = federation(tmp_path / "zo", FedZO(**fields))
    pulled.play(8)
    plain.play(8)
    assert pulled.records == plain.records
    assert pulled.replica.digest() == plain.replica.digest()
