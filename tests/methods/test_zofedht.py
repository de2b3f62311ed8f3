"""ZOFedHT: against a loop with a real QR, the covariance of its directions, and its special cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from byhand import D, How, Losing, assert_near, federation, model, slope, start, updates_of
from harness import small

from fedzero.directions import Keys
from fedzero.engines.local import LocalClients
from fedzero.links import mean
from fedzero.methods import FedZO, ZOFedHT
from fedzero.methods.contract import Scale, StepInputs, Turn
from fedzero.model.params import Params
from fedzero.model.schedules import InverseSqrt
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from stops import StopAt

TAU = 3


def basis(columns: list[np.ndarray]) -> np.ndarray:
    """Q of the thin QR with diag R > 0, (d, τ); a column in the span of those before it adds nothing: zero."""
    table, kept = np.stack(columns, axis=1), []
    for j in range(len(columns)):
        if np.linalg.matrix_rank(table[:, [*kept, j]]) > len(kept):
            kept.append(j)
    Q, R = np.linalg.qr(table[:, kept])
    out = np.zeros_like(table)
    out[:, kept] = Q * np.sign(np.diag(R))
    return out


def by_hand(world, rounds: int, K: int, eta, alpha: float, how: How, silent=(), tau: int = TAU):
    """(x, the Q that every round used, and that of the round after the last); None: C = I."""
    x, changes, Q, used = start(), [], None, []
    for r in range(rounds + 1):
        if r and r % tau == 0:
            Q = basis(changes[: -tau - 1 : -1])  # Δ_{r−1} … Δ_{r−τ}
        used.append(Q)
        if r == rounds:
            break
        ends = []
        for i in world.cohort(r) if r not in silent else ():
            y = x.copy()
            for k in range(K):
                f, step = world.f(r, i, None if how.everything else k), np.zeros(world.d)
                for p in range(how.P):
                    v = world.z(r, k, p, i)
                    if Q is not None:
                        v = np.sqrt(1 - alpha) * v + np.sqrt(alpha) * Q @ world.v2(r, k, p, i, tau)
                    step += slope(f, y, v, how.mu, how.central) * v / how.P
                y = y - eta(r) * step
            ends.append(y)
        new = np.mean(ends, axis=0) if ends else x
        changes.append(new - x)
        x = new
    return x, used


def columns_of(run) -> np.ndarray:
    return np.stack([run.replica.state.carry.vectors[TAU + j].double().numpy() for j in range(TAU)], axis=1)


def method(how: How, **fields) -> ZOFedHT:
    described = how.fields
    del described["distribution"]
    return ZOFedHT(**({"tau": TAU} | described | fields))


CASES = {
    "central, as in the paper": How(P=1, central=True),
    "two directions": How(P=2, central=True),
    "forward": How(P=2),
    "all data": How(P=1, central=True, everything=True),
}


@pytest.mark.covered
@pytest.mark.parametrize("form", ["dense", "seeded"])
@pytest.mark.parametrize("alpha", [0.3, 0.9])
@pytest.mark.parametrize("how", CASES.values(), ids=CASES)
def test_eleven_rounds_equal_the_paper_by_hand(tmp_path: Path, how, alpha, form) -> None:
    """C = I before round τ; Q is renewed at rounds τ, 2τ, 3τ, and stays the same, to the bit, in between."""
    eta, K, rounds = 5e-3, 2, 11
    run, world = federation(tmp_path, method(how, rate=eta, alpha=alpha, local_steps=K, form=form), replicas=True)
    x, used = by_hand(world, rounds, K, lambda r: eta, alpha, how)
    before = columns_of(run)
    for r in range(rounds):
        assert (run.replica.state.carry.renewals > 0) == (r >= TAU)
        if r % TAU == 0 and r:
            # Q = [Δ …] R⁻¹: errors of Δ (dense: EPS·|x|, whatever the length of Δ) are magnified by R's condition.
            assert_near(columns_of(run), used[r], 10 * how.bound)
            assert np.abs(columns_of(run) - before).max() > 0.1, "another Q"
        else:
            assert np.array_equal(columns_of(run), before)
        before = columns_of(run)
        run.play(1)
    assert np.abs(x - start()).max() > 0.2, "the run must have moved"
    assert_near(model(run), x, how.bound)
    assert not any(r.refused for r in run.records)
    assert {r.queries for r in run.records} == {3 * K * (2 * how.P if how.central else how.P + 1)}


def test_the_history_makes_a_difference(tmp_path: Path) -> None:
    """A wrong column order, a Q one round late or another α would end elsewhere, a hundred tolerances away."""
    how = How(P=1, central=True)
    _, world = federation(tmp_path, method(how, rate=5e-3))
    ends = [by_hand(world, 11, 2, lambda r: 5e-3, alpha, how)[0] for alpha in (0.3, 0.31, 0.9)]
    ends.append(by_hand(world, 11, 2, lambda r: 5e-3, 0.3, how, tau=4)[0])
    assert min(np.abs(a - b).max() for n, a in enumerate(ends) for b in ends[:n]) > 100 * how.bound


def test_the_papers_rate(tmp_path: Path) -> None:
    how = How(P=1, central=True)
    for form in ("dense", "seeded"):
        run, world = federation(
            tmp_path / form, method(how, rate=InverseSqrt(start=1e-2), alpha=0.5, local_steps=2, form=form)
        )
        run.play(8)
        x, _ = by_hand(world, 8, 2, lambda r: 1e-2 / np.sqrt(r + 1), 0.5, how)
        assert_near(model(run), x, how.bound)


@pytest.mark.parametrize("form", ["dense", "seeded"])
def test_without_history_it_is_fedzo_to_the_last_bit(tmp_path: Path, form) -> None:
    fields = {"rate": 5e-3, "local_steps": 3, "directions": 2, "radius": 0.1, "form": form}
    plain, _ = federation(tmp_path / "zo", FedZO(difference="central", distribution="gaussian", **fields))
    alpha0, _ = federation(tmp_path / "ht", ZOFedHT(alpha=0.0, tau=TAU, **fields))
    plain.play(8)
    alpha0.play(8)
    assert alpha0.records == plain.records, "the same updates, bytes, queries and losses"
    assert alpha0.replica.digest() == plain.replica.digest()


@pytest.mark.parametrize("form", ["dense", "seeded"])
@pytest.mark.parametrize("silent", [{1}, {3}, {4}, {3, 4}, {0, 1, 4, 6, 7}], ids=str)
def test_a_round_without_answers_is_a_change_of_zero(tmp_path: Path, form, silent) -> None:
    """Its column is zero and adds nothing to Q, wherever in a block it lies (the last round of a block: below)."""
    eta, alpha, K, rounds, how = 5e-3, 0.6, 2, 11, How(P=1, central=True)
    run, world = federation(tmp_path, method(how, rate=eta, alpha=alpha, local_steps=K, form=form), replicas=True)
    run.engine = Losing(run.engine, lambda r, exchange, client: r in silent)
    x, used = by_hand(world, rounds, K, lambda r: eta, alpha, how, silent)
    for r in range(rounds):
        run.play(1)
        assert (run.records[-1].update is None) == (r in silent)
        if (r + 1) % TAU == 0:
            Q = columns_of(run)
            assert_near(Q, used[r + 1], 10 * how.bound)
            assert np.abs(Q.T @ Q - np.diag(np.abs(Q).max(axis=0) > 0)).max() < 10 * how.bound, "orthonormal"
    assert_near(model(run), x, how.bound)


def test_q_stays_when_nobody_answers_in_the_last_round_of_a_block(tmp_path: Path) -> None:
    """T travels with the last update of a block; without one the old Q serves for another block."""
    run, _ = federation(tmp_path, method(How(P=1, central=True), rate=5e-3, alpha=0.6, local_steps=2, form="seeded"))
    run.engine = Losing(run.engine, lambda r, exchange, client: r == 2 * TAU - 1)
    run.play(TAU)
    first = columns_of(run)
    run.play(TAU)
    assert np.array_equal(columns_of(run), first)
    run.play(TAU)
    assert not np.array_equal(columns_of(run), first)


def test_a_resumed_run_knows_of_a_round_without_answers_before_its_checkpoint(tmp_path: Path, monkeypatch) -> None:
    """Nobody answers in round 9, the checkpoint is of round 10, and the run is interrupted in round 10."""
    arriving = LocalClients._arrivals

    def losing(clients, round, number, instructions):
        for arrival in arriving(clients, round, number, instructions):
            yield msgspec.structs.replace(arrival, data=RuntimeError("lost")) if round == 9 else arrival

    monkeypatch.setattr(LocalClients, "_arrivals", losing)
    recipe = small(tmp_path / "x", ZOFedHT(rate=1e-3, tau=TAU, local_steps=2, form="dense")).setup.recipe
    recipe, environment = msgspec.structs.replace(recipe, rounds=14), Environment()
    whole = session.start(recipe, tmp_path / "whole", environment, Silent())
    with pytest.raises(KeyboardInterrupt):
        session.start(recipe, tmp_path / "stopped", environment, StopAt(10))
    resumed = session.resume(tmp_path / "stopped", environment, Silent())
    assert resumed.model_digest == whole.model_digest


def asked(alpha: float, Q: np.ndarray | None, P: int, tau: int, d: int) -> np.ndarray:
    """All v of a step, (P, d), from the points that a client asks about: x = 0 and μ = 1, so ±v themselves."""
    algorithm = ZOFedHT(rate=1.0, alpha=alpha, tau=tau, directions=P, local_steps=1, radius=1.0, form="seeded")
    state = algorithm.init(Params.of_vector(torch.zeros(d)), 1)
    if Q is not None:
        for j, column in enumerate(Q.T):
            state.carry.vectors.set(tau + j, torch.from_numpy(column.astype(np.float32)))
        state = replace(state, carry=replace(state.carry, renewals=1))
    ask = next(algorithm.client(state, Turn(0, 0, Keys.of_seed(3))))
    points = np.stack([ask.base.view(point).vector().double().numpy() for point in ask.points])
    if ask.basis is not None:
        points += np.stack([ask.basis.offset(n).double().numpy() for n in range(len(points))])
    assert np.allclose(points[0::2], -points[1::2], atol=1e-6)
    return points[0::2]


@pytest.mark.parametrize("alpha", [0.2, 0.8])
@pytest.mark.parametrize("rank", [2, 1, None])
def test_directions_have_the_covariance_of_the_paper(alpha, rank) -> None:
    """(1−α) I + α Q Qᵀ, or I without a Q; with a zero column (rank 1) that column is missing from both."""
    P, tau, d = 3000, 2, 5
    Q = None if rank is None else np.linalg.qr(np.random.default_rng(4).normal(size=(d, tau)))[0] * [1, rank == 2]
    C = np.eye(d) if Q is None else (1 - alpha) * np.eye(d) + alpha * Q @ Q.T
    v = asked(alpha, Q, P, tau, d)
    # Entry (i, j) of the empirical covariance of gaussians has the variance (C_ii C_jj + C_ij²)/P.
    deviation = np.sqrt((np.outer(np.diag(C), np.diag(C)) + C**2) / P)
    assert np.all(np.abs(v.T @ v / P - C) < 5 * deviation)
    assert np.all(np.abs(v.mean(axis=0)) < 5 * np.sqrt(np.diag(C) / P))


def test_the_last_update_of_a_block_is_larger_by_tau_squared_numbers(tmp_path: Path) -> None:
    """Enough scalars that MessagePack's own headers have the same length."""
    run, _ = federation(tmp_path, ZOFedHT(rate=1e-3, tau=TAU, directions=4, local_steps=8, form="seeded"))
    run.play(10)
    for record, update in zip(run.records, updates_of(run), strict=True):
        more = 4 * TAU**2 if (record.round + 1) % TAU == 0 else 0
        assert len(update.scalars) == 4 * 3 * 4 * 8 + more
        assert len(record.update) == len(run.records[0].update) + more


def test_a_history_of_one_direction_only(tmp_path: Path) -> None:
    """All changes parallel: d = 50 numbers of Δ, one column of Q, and the run goes on."""
    algorithm = ZOFedHT(rate=1e-3, alpha=0.5, tau=TAU, local_steps=1, form="dense")
    state = algorithm.init(Params.of_vector(torch.zeros(D)), 1)
    line = torch.linspace(-1, 2, D)
    for j, factor in enumerate((1.0, -0.5)):
        state.carry.vectors.set(j, line * factor)
    state, keys = replace(state, round=2), Keys.of_seed(1)
    given = {0: (line * 0.25).numpy()}
    update = algorithm.aggregate(StepInputs(2, Scale(D, 1), keys, given, {0: 1}, mean, state))
    state = algorithm.apply(state, [update], keys)
    Q = torch.stack([state.carry.vectors[TAU + j] for j in range(TAU)]).double().numpy()
    assert np.allclose(Q[0], line.double().numpy() / line.double().norm().item(), atol=1e-6)
    assert np.array_equal(Q[1:], np.zeros((2, D)))
