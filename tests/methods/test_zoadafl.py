"""ZO-AdaFL: every server rule against the paper's equations in NumPy."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from byhand import How, assert_near, federation, model, start, walks
from harness import Free

from fedzero.methods import ZOAdaFL
from fedzero.model.schedules import InverseSqrt

BETAS = 0.9, 0.9
"""With the paper's β2 = .99 Yogi and Adam are hard to tell apart in a few rounds."""
RULES = ("amsgrad", "adam", "yogi", "adagrad")


def by_hand(world, rounds: int, K: int, eta: float, alpha, rule: str, at: str, v0: float, epsilon: float, how: How):
    """Clients as FedZO, eq. (5); the server's rule as in Algorithm 1, and as Reddi et al. have the other three."""
    beta1, beta2 = BETAS
    x, m, v = start(), np.zeros(world.d), np.full(world.d, v0)
    vhat = v.copy()
    for r in range(rounds):
        delta = np.mean([y - x for y in walks(world, r, x, K, eta, how)], axis=0)
        m = beta1 * m + (1 - beta1) * delta
        match rule:
            case "adagrad":
                v = v + delta**2
            case "yogi":
                v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
            case _:
                v = beta2 * v + (1 - beta2) * delta**2
        vhat = np.maximum(vhat, v) if rule == "amsgrad" else v
        x = x + alpha(r) * m / (np.sqrt(vhat + epsilon) if at == "inside" else np.sqrt(vhat) + epsilon)
    return x, m, vhat


@pytest.mark.covered
@pytest.mark.parametrize("v0", [1e-5, 0.0])
@pytest.mark.parametrize("at", ["inside", "outside"])
@pytest.mark.parametrize("rule", RULES)
def test_the_server_rules_equal_the_paper_by_hand(tmp_path: Path, rule, at, v0) -> None:
    eta, K, rounds, epsilon, how = 5e-4, 2, 9, 1e-4, How(P=1, mu=0.5, kind="unit-sphere")
    runs = {}
    for form in ("dense", "seeded"):
        algorithm = ZOAdaFL(
            rate=eta,
            server_rate=0.05,
            rule=rule,
            epsilon=epsilon,
            epsilon_at=at,
            beta1=BETAS[0],
            beta2=BETAS[1],
            v0=v0,
            local_steps=K,
            form=form,
            **how.fields,
        )
        run, world = federation(tmp_path / form, algorithm)
        run.play(rounds)
        x, m, vhat = by_hand(world, rounds, K, eta, lambda r: 0.05, rule, at, v0, epsilon, how)
        assert np.abs(x - start()).max() > 0.04, "the run must have moved"
        assert_near(model(run), x, how.bound)
        assert_near(run.replica.state.carry.vectors[0], m, how.bound)
        assert_near(run.replica.state.carry.vectors[2 if rule == "amsgrad" else 1], vhat, how.bound)
        runs[form] = model(run)
    assert_near(runs["seeded"], runs["dense"], how.bound)


def test_the_choices_make_a_difference(tmp_path: Path) -> None:
    """All sixteen runs of the test above end apart by far more than its tolerance: it can tell them from each other."""
    how = How(P=1, mu=0.5, kind="unit-sphere")
    _, world = federation(tmp_path, ZOAdaFL())
    ends = [
        by_hand(world, 9, 2, 5e-4, lambda r: 0.05, rule, at, v0, 1e-4, how)[0]
        for rule, at, v0 in product(RULES, ("inside", "outside"), (1e-5, 0.0))
    ]
    apart = [np.abs(a - b).max() for n, a in enumerate(ends) for b in ends[:n]]
    assert min(apart) > 100 * how.bound


def test_schedules_of_both_rates(tmp_path: Path) -> None:
    how = How(mu=0.5, central=True)
    for form in ("dense", "seeded"):
        algorithm = ZOAdaFL(
            rate=2e-3, server_rate=InverseSqrt(start=0.1), beta2=0.9, local_steps=2, form=form, **how.fields
        )
        run, world = federation(tmp_path / form, algorithm)
        run.play(8)
        x, _, _ = by_hand(world, 8, 2, 2e-3, lambda r: 0.1 / np.sqrt(r + 1), "amsgrad", "inside", 1e-5, 1e-8, how)
        assert_near(model(run), x, how.bound)


def test_a_coordinate_that_never_moved_stays_where_it_is(tmp_path: Path) -> None:
    """v0 = 0 and ε = 0 leave 0/0 where a client has nothing to say."""
    for rule in RULES:
        algorithm = ZOAdaFL(rule=rule, v0=0.0, epsilon=0.0, form="seeded")
        run, _ = federation(tmp_path / rule, algorithm, objective=Free())
        run.play(7)
        assert np.array_equal(model(run), start())


def test_the_defaults_are_the_papers() -> None:
    method = ZOAdaFL()
    assert (method.beta1, method.beta2, method.epsilon, method.v0) == (0.9, 0.99, 1e-8, 1e-5)
    assert (method.server_rate, method.rate, method.rule, method.epsilon_at) == (0.02, 0.001, "amsgrad", "inside")
    assert (method.distribution, method.difference) == ("unit-sphere", "forward")
