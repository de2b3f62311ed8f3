"""DeComFL and FedDisco: both variants against a hand-written loop, every option, bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from harness import Free, small

from fedzero.directions import Keys, reference
from fedzero.errors import FedzeroError
from fedzero.methods import DeComFL, MeZO
from fedzero.methods.rules.kernels import Adam, Momentum, Sgd, Sign
from fedzero.model.schedules import Count, Piecewise
from fedzero.model.updates import decode_update
from fedzero.protocol.messages import Work, encode
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import cohort_of
from fedzero.tasks import Quadratic

OPTIMIZERS = [Sgd(), Momentum(beta=0.5), Adam(), Sign()]


def by_hand(run, rounds: int, K: int, P: int, eta: float, mu: float, sync: bool):
    """Algorithm 1 and 2 of the paper in float64: real client models, rebuild, local steps, revert or sync."""
    problem, keys = run.setup.problem, run.setup.keys
    d, clients = problem.params.size, run.setup.recipe.federation.clients
    a, centres = problem.objective.curvature, problem.shards.centres
    models = np.zeros((clients, d))
    known = [0] * clients
    history: list[tuple[np.ndarray, np.ndarray]] = []
    server = np.zeros(d)
    for r in range(rounds):
        z = np.array(
            [[reference.gaussian(keys.direction(r, k, p), 0, d) for p in range(P)] for k in range(K)], np.float64
        )
        cohort = cohort_of(keys, r, run.setup.recipe.federation)
        g_all, local_models = [], {}
        for i in cohort:
            for past in range(known[i], r):
                g, zs = history[past]
                for k in range(K):
                    models[i] -= eta / P * np.einsum("p,pd->d", g[k], zs[k])
            x, g_i = models[i].copy(), np.zeros((K, P))
            for k in range(K):
                centre, noise = problem.shards.batch(keys, r, k, i)
                f = lambda y, c=centre, n=noise: 0.5 * a @ (y - c) ** 2 + n @ y  # noqa: E731
                for p in range(P):
                    g_i[k, p] = (f(x + mu * z[k, p]) - f(x)) / mu
                x = x - eta / P * np.einsum("p,pd->d", g_i[k], z[k])
            local_models[i] = x
            g_all.append(g_i)
        g = np.mean(g_all, axis=0)
        history.append((g, z))
        server -= eta / P * np.einsum("kp,kpd->d", g, z)
        for i, g_i in zip(cohort, g_all, strict=True):
            if sync:
                models[i] = local_models[i] - eta / P * np.einsum("kp,kpd->d", g - g_i, z)
                known[i] = r + 1
            else:
                known[i] = r
    assert len(centres) == clients
    return server


@pytest.mark.parametrize("sync", [False, True], ids=["revert", "sync"])
@pytest.mark.parametrize("K", [1, 3])
def test_thirty_rounds_equal_the_paper_by_hand(tmp_path: Path, sync, K) -> None:
    eta, mu, P = 2e-3, 1e-2, 4
    algorithm = DeComFL(rate=eta, directions=P, local_steps=K, radius=mu)
    run = small(tmp_path, algorithm, replicas=True, sync=sync)
    run.play(30)
    expected = by_hand(run, 30, K, P, eta, mu, sync)
    got = run.replica.state.params.vector().double().numpy()
    scale = np.abs(expected).max()
    assert scale > 0.1, "the run must have moved"
    # float32 points: a probe is off by 2⁻²⁴·|x|, its slope by that over μ.
    assert np.abs(got - expected).max() < 2e-4 * scale


@pytest.mark.parametrize("K", [1, 2])
def test_revert_equals_sync_bit_for_bit_with_real_replicas(tmp_path: Path, K) -> None:
    runs = []
    for sync in (False, True):
        run = small(tmp_path / str(sync), DeComFL(rate=2e-3, local_steps=K), replicas=True, sync=sync)
        run.play(30)
        runs.append(run)
        assert not any(r.refused for r in run.records), "every reply carried the server's digest"
    assert runs[0].replica.digest() == runs[1].replica.digest()
    assert [r.update for r in runs[0].records] == [r.update for r in runs[1].records]
    revert, sync = runs
    for client, at in revert.engine.clients.items():
        assert at.replica.round == revert.server.tracker.known[client]
    for client, at in sync.engine.clients.items():
        assert at.replica.round == sync.server.tracker.known[client]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("K", [1, 3])
def test_shared_model_equals_real_replicas_and_state_is_reverted(tmp_path: Path, optimizer, K) -> None:
    algorithm = DeComFL(rate=2e-3, local_steps=K, optimizer=optimizer)
    shared = small(tmp_path / "shared", algorithm)
    real = small(tmp_path / "real", algorithm, replicas=True)
    shared.play(20)
    real.play(20)
    assert shared.replica.digest() == real.replica.digest()
    assert shared.records == real.records


def test_momentum_and_adam_against_closed_forms(tmp_path: Path) -> None:
    """Three steps by hand, G from the recorded scalars."""
    for optimizer in (Momentum(beta=0.5), Adam(beta1=0.9, beta2=0.99, epsilon=1e-8)):
        run = small(tmp_path / type(optimizer).__name__, DeComFL(rate=0.01, directions=3, optimizer=optimizer))
        run.play(3)
        x, m, v = np.zeros(50), np.zeros(50), np.zeros(50)
        for r, record in enumerate(run.records):
            g = np.frombuffer(decode_update(record.update).scalars, "<f4").astype(np.float64)
            z = np.array([reference.gaussian(run.setup.keys.direction(r, 0, p), 0, 50) for p in range(3)], np.float64)
            G = g @ z / 3
            if isinstance(optimizer, Momentum):
                m = 0.5 * m + 0.5 * G
                x = x - 0.01 * m
            else:
                m, v = 0.9 * m + 0.1 * G, 0.99 * v + 0.01 * G**2
                x = x - 0.01 * (m / (1 - 0.9 ** (r + 1))) / (np.sqrt(v / (1 - 0.99 ** (r + 1))) + 1e-8)
        got = run.replica.state.params.vector().double().numpy()
        assert np.abs(got - x).max() < 1e-5 * np.abs(x).max()


def test_alone_with_central_difference_it_is_mezo(tmp_path: Path) -> None:
    for distribution in ("gaussian", "rademacher", "sphere"):
        ours = DeComFL(rate=1e-3, directions=1, difference="central", distribution=distribution)
        mezo = MeZO(rate=1e-3, distribution=distribution)
        a = small(tmp_path / f"a{distribution}", ours, clients=1, cohort=1)
        b = small(tmp_path / f"b{distribution}", mezo, clients=1, cohort=1)
        a.play(25)
        b.play(25)
        assert a.replica.digest() == b.replica.digest()
        assert [r.update for r in a.records] == [r.update for r in b.records]


def test_mezo_against_a_plain_loop(tmp_path: Path) -> None:
    eta, mu = 1e-3, 1e-2
    run = small(tmp_path, MeZO(rate=eta, radius=mu), clients=1, cohort=1)
    run.play(25)
    problem, keys, x = run.setup.problem, run.setup.keys, np.zeros(50)
    for r in range(25):
        centre, noise = problem.shards.batch(keys, r, 0, 0)
        z = reference.gaussian(keys.direction(r, 0, 0), 0, 50).astype(np.float64)
        f = lambda y, c=centre, n=noise: 0.5 * problem.objective.curvature @ (y - c) ** 2 + n @ y  # noqa: E731
        x = x - eta * (f(x + mu * z) - f(x - mu * z)) / (2 * mu) * z
    assert np.abs(run.replica.state.params.vector().double().numpy() - x).max() < 1e-4 * np.abs(x).max()


def test_private_shift_changes_the_directions_and_nothing_else(tmp_path: Path) -> None:
    algorithm = DeComFL(rate=1e-3)
    open_, private = (
        small(tmp_path / str(s), algorithm, secret=s, server_model=False) for s in (None, b"known to the clients alone")
    )
    open_.play(10)
    private.play(10)
    for a, b in zip(open_.records, private.records, strict=True):
        assert (a.cohort, a.bytes_up, a.bytes_down, a.queries) == (b.cohort, b.bytes_up, b.bytes_down, b.queries)
        assert a.update != b.update
    assert open_.records[0].loss == private.records[0].loss, "same start, same batches"
    # The server's keys, applied to the private scalars, lead somewhere else entirely.
    outsider = Replica(algorithm, type(private.replica.state.params).of_vector(torch.zeros(50)), Keys.of_seed(5), 10)
    outsider.follow([decode_update(r.update) for r in private.records])
    assert outsider.digest() != private.replica.digest()
    gap = (outsider.state.params.vector() - private.replica.state.params.vector()).norm()
    assert gap > 0.5 * private.replica.state.params.vector().norm()


def test_server_without_a_model_gives_the_same_run(tmp_path: Path) -> None:
    with_model = small(tmp_path / "with", DeComFL(rate=1e-3))
    without = small(tmp_path / "without", DeComFL(rate=1e-3), replicas=True, server_model=False)
    with_model.play(15)
    without.play(15)
    assert without.server.replica is None
    assert without.replica.digest() == with_model.replica.digest()
    assert [r.update for r in without.records] == [r.update for r in with_model.records]


def test_schedules_of_directions_and_rate_reach_both_sides(tmp_path: Path) -> None:
    counts = Count(start=2, then=((5, 4), (10, 8)))
    algorithm = DeComFL(rate=Piecewise(points=((0, 2e-3), (15, 1e-4))), directions=counts)
    run = small(tmp_path, algorithm, replicas=True)
    run.play(15)
    assert [len(decode_update(r.update).scalars) // 4 for r in run.records] == [2] * 5 + [4] * 5 + [8] * 5
    assert not any(r.refused for r in run.records)
    assert [r.queries for r in run.records] == [3 * 3] * 5 + [3 * 5] * 5 + [3 * 9] * 5


def test_a_client_past_the_lag_pulls_the_model(tmp_path: Path) -> None:
    algorithm = DeComFL(rate=1e-3, optimizer=Momentum(beta=0.5))
    run = small(tmp_path, algorithm, clients=12, cohort=2, replicas=True, pull_after=4)
    run.play(30)
    assert not any(r.refused for r in run.records)
    assert max(r.bytes_down for r in run.records) > 2 * 4 * 50, "somebody was sent model and momentum"
    assert len(run.server.tracker.history) <= 4, "and nothing older than the lag is kept"
    plain = small(tmp_path / "plain", algorithm, clients=12, cohort=2)
    plain.play(30)
    assert run.replica.digest() == plain.replica.digest()


def test_working_set_is_pruned_to_the_most_lagged_client(tmp_path: Path) -> None:
    run = small(tmp_path, DeComFL(rate=1e-3), clients=4, cohort=3)
    run.play(40)
    assert set(run.server.tracker.history) == set(range(min(run.server.tracker.known), 40))
    assert len(run.server.tracker.history) < 15
    assert len(run.records) == 40 == sum(1 for _ in run.ledger.entries()) - 1, "the ledger keeps all"


def test_bytes_do_not_depend_on_the_model(tmp_path: Path) -> None:
    """P = 10, K = 1: at most 72 bytes up, 60 down a missed round and 64 of framing, for 10⁴ and 10⁷ parameters."""
    runs = []
    for dimension in (10_000, 10_000_000):
        task = Quadratic(dimension=dimension, spread=0.0)
        algorithm = DeComFL(rate=1e-9, distribution="rademacher")
        run = small(tmp_path / str(dimension), algorithm, clients=4, cohort=2, task=task, objective=Free())
        run.play(6)
        for round, record in enumerate(run.records):
            assert 0 < record.bytes_up <= 2 * 72
            assert 0 < record.bytes_down <= 2 * (64 + 60 * round)
        runs.append([(r.bytes_up, r.bytes_down) for r in run.records])
    assert runs[0] == runs[1]


def test_catch_up_is_at_most_sixty_bytes_a_missed_round(tmp_path: Path) -> None:
    run = small(tmp_path, DeComFL(rate=1e-3), clients=30, cohort=1)
    run.play(30)
    for lag in (0, 1, 17, 30):
        message = Work(70_000, 0, tuple(decode_update(r.update) for r in run.records[:lag]))
        assert len(encode(message)) <= 64 + 60 * lag


@pytest.mark.parametrize(
    ("optimizer", "federation", "words"),
    [(Momentum(), {"sync": True}, "plain SGD"), (Sgd(), {"pull_after": 3, "server_model": False}, "pull_after")],
)
def test_impossible_combinations_are_explained(tmp_path: Path, optimizer, federation, words) -> None:
    with pytest.raises(FedzeroError, match=words):
        small(tmp_path, DeComFL(rate=1e-3, optimizer=optimizer), **federation)
    with pytest.raises(FedzeroError, match="server_model = false"):
        small(tmp_path, DeComFL(rate=1e-3), secret=b"x")


def test_sphere_and_gaussian_runs_descend(tmp_path: Path) -> None:
    for distribution in ("gaussian", "rademacher", "sphere"):
        task = Quadratic(dimension=50, spread=0.1)
        run = small(tmp_path / distribution, DeComFL(rate=5e-3, distribution=distribution), task=task)
        before = run.engine.evaluate()[1].loss
        run.play(150)
        assert run.engine.evaluate()[1].loss < 0.05 * before
