"""HiSo: against the rule by hand, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from byhand import assert_near, bound, federation, model, start

from fedzero.errors import FedzeroError
from fedzero.methods import DeComFL, Federation, HiSo
from fedzero.recipe import recipe as recipes

ETA, MU, NU, EPSILON = 2e-2, 0.1, 0.8, 1e-3


def slopes(f, x: np.ndarray, z: list[np.ndarray], difference: str) -> np.ndarray:
    up = np.array([f(x + MU * each) for each in z])
    if difference == "central":
        return (up - [f(x - MU * each) for each in z]) / (2 * MU)
    if difference == "forward":
        return (up - f(x)) / MU
    return np.array([up[p] - np.delete(up, p).mean() for p in range(len(z))]) / MU


def by_hand(world, rounds: int, P: int, kind: str, difference: str) -> tuple[np.ndarray, np.ndarray]:
    x, h = start(), np.ones(50)
    for r in range(rounds):
        z = [world.z(r, 0, p, kind=kind) / np.sqrt(h) for p in range(P)]
        g = np.mean([slopes(world.f(r, i, 0), x, z, difference) for i in world.cohort(r)], axis=0)
        G = sum(g[p] * z[p] for p in range(P)) / P
        x = x - ETA * G
        h = NU * h + (1 - NU) * (G**2 + EPSILON)
    return x, h


@pytest.mark.parametrize("difference", ["forward", "central", "mean"])
@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_ten_rounds_equal_the_rule_by_hand(tmp_path: Path, kind, difference) -> None:
    algorithm = HiSo(
        rate=ETA, directions=4, radius=MU, nu=NU, epsilon=EPSILON, distribution=kind, difference=difference
    )
    run, world = federation(tmp_path, algorithm, replicas=True)
    run.play(10)
    x, h = by_hand(world, 10, 4, kind, difference)
    assert np.abs(x - start()).max() > 0.1, "the run must have moved"
    assert h.max() / h.min() > 2, "h must have become uneven"
    assert_near(model(run), x, bound(MU))
    assert_near(run.replica.state.carry.h[0], h, bound(MU))
    assert not any(r.refused for r in run.records)


def test_its_first_round_is_that_of_decomfl(tmp_path: Path) -> None:
    runs = [
        federation(tmp_path / str(n), kind(rate=ETA, directions=4, radius=MU))[0]
        for n, kind in enumerate((HiSo, DeComFL))
    ]
    for run in runs:
        run.play(1)
    assert_near(model(runs[0]), model(runs[1]), bound(MU))


def test_many_rounds_at_once_are_one_after_the_other(tmp_path: Path) -> None:
    run, _ = federation(tmp_path, HiSo(rate=ETA, directions=3, radius=MU), torch.bfloat16)
    run.play(6)
    assert torch.isfinite(run.replica.state.carry.h[0]).all()
    assert np.abs(model(run) - start()).max() > 0.01


@pytest.mark.parametrize("option", [{"local_steps": 2}, {"distribution": "sphere"}, {"rate": "auto"}])
def test_what_has_no_meaning_is_refused(option) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"algorithm\."):
        recipes.method({"kind": "hiso", "rate": 1e-3} | option)


def test_rules_that_need_a_plain_step_are_refused() -> None:
    with pytest.raises(FedzeroError, match=r"algorithm\.average = 5 needs plain steps, .* hiso is scaled"):
        HiSo(rate=1e-3, average=5).check(Federation(clients=10, cohort=4))
