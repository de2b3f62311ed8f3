"""ZONE-S: against the formulation of its paper, with all N z and all N multipliers kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from byhand import How, Losing, assert_near, federation, model, start

from fedzero.errors import FedzeroError
from fedzero.methods import ZoneS
from fedzero.model.schedules import InverseSqrt
from fedzero.protocol.client import ClientMemory

N = 4
FORMS = pytest.mark.parametrize("form", ["dense", "seeded"])


def by_hand(world, rounds: int, eta, how: How, silent=()):
    """(x, λ): every z_j and λ_j is there, and the server sums over all of them."""
    x, multipliers, alpha = start(), np.zeros((N, world.d)), 1 / N
    for r in range(rounds):
        if r in silent:
            continue
        rho, (i,) = 1 / eta(r), world.cohort(r)
        z = np.tile(x, (N, 1))
        z[i] = x - (multipliers[i] + world.estimate(x, r, i, 0, how)) / (alpha * rho)
        new = sum(rho * z[j] + multipliers[j] for j in range(N)) / (N * rho)
        multipliers[i] = multipliers[i] + alpha * rho * (z[i] - x)
        x = new
    return x, multipliers


@FORMS
@pytest.mark.parametrize(
    "how", [How(P=4), How(P=4, central=True), How(P=3, kind="rademacher", everything=True)], ids=str
)
def test_fourteen_rounds_equal_the_paper_by_hand(tmp_path: Path, how, form) -> None:
    eta, rounds = 3e-2, 14
    run, world = federation(tmp_path, ZoneS(rate=eta, form=form, **how.fields), clients=N, cohort=1, replicas=True)
    run.play(rounds)
    turns = [world.cohort(r)[0] for r in range(rounds)]
    assert set(turns) == set(range(N)), "everybody has had a turn, some several"
    x, multipliers = by_hand(world, rounds, lambda r: eta, how)
    assert np.abs(x - start()).max() > 0.3, "the run must have moved"
    assert_near(model(run), x, how.bound)
    assert_near(run.replica.state.carry.total[0], multipliers.sum(axis=0), 2 * how.bound)
    assert not any(r.refused for r in run.records)
    if form == "dense":
        for i in range(N):
            remembered = ClientMemory.of_chunks([p.body for p in run.engine.clients[i].tried()]).memory[0]
            assert_near(remembered, multipliers[i], 2 * how.bound)


@FORMS
def test_a_rate_that_changes_and_rounds_without_an_answer(tmp_path: Path, form) -> None:
    """ρ = 1/η of the round; nobody answered: nothing changes, nothing is remembered."""
    how, silent = How(P=4), {3, 4, 9}
    run, world = federation(
        tmp_path, ZoneS(rate=InverseSqrt(start=5e-2), form=form, **how.fields), clients=N, cohort=1, replicas=True
    )
    run.engine = Losing(run.engine, lambda r, exchange, i: r in silent)
    for r in range(14):
        before = run.replica.digest()
        run.play(1)
        assert (run.replica.digest() == before) == (r in silent)
    x, multipliers = by_hand(world, 14, lambda r: 5e-2 / np.sqrt(r + 1), how, silent)
    assert_near(model(run), x, how.bound)
    assert_near(run.replica.state.carry.total[0], multipliers.sum(axis=0), 2 * how.bound)


def test_after_its_turn_a_clients_multiplier_is_minus_its_estimate(tmp_path: Path) -> None:
    """λ_i + G_i = 0, on which the seeded form rests."""
    how = How(P=4)
    _, world = federation(tmp_path, ZoneS(rate=1e-2), clients=N, cohort=1)
    x, multipliers = by_hand(world, 9, lambda r: 1e-2 / np.sqrt(r + 1), how)
    again, _ = by_hand(world, 8, lambda r: 1e-2 / np.sqrt(r + 1), how)
    (i,) = world.cohort(8)
    assert_near(multipliers[i], -world.estimate(again, 8, i, 0, how), 1e-12)
    assert not np.array_equal(x, again)


def test_one_client_a_round(tmp_path: Path) -> None:
    with pytest.raises(FedzeroError, match="cohort = 1"):
        federation(tmp_path, ZoneS(rate=1e-2), clients=N, cohort=2)
