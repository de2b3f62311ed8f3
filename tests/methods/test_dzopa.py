"""DZOPA: against NumPy with the Laplacian as a matrix, on three kinds of graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from byhand import EPS, D, How, Losing, assert_near, federation, model, start
from harness import Free

from fedzero.errors import FedzeroError
from fedzero.methods import Dzopa
from fedzero.methods.shared.graphs import Complete, Edges, Ring
from fedzero.model.schedules import InverseSqrt

N = 6
TREE = Edges(pairs=((0, 1), (1, 2), (1, 3), (3, 4), (3, 5)))
GRAPHS = pytest.mark.parametrize("graph", [Complete(), Ring(), TREE], ids=lambda g: type(g).__name__)
FORMS = pytest.mark.parametrize("form", ["dense", "seeded"])


def laplacian(graph) -> np.ndarray:
    """L = degrees − adjacency, from the definition of each graph."""
    if isinstance(graph, Complete):
        A = np.ones((N, N)) - np.eye(N)
    elif isinstance(graph, Ring):
        A = np.roll(np.eye(N), 1, axis=1) + np.roll(np.eye(N), -1, axis=1)
    else:
        A = np.zeros((N, N))
        for a, b in graph.pairs:
            A[a, b] = A[b, a] = 1
    return np.diag(A.sum(axis=1)) - A


def by_hand(world, rounds: int, eta, gamma: float, L: np.ndarray, how: How, lost=lambda r, exchange, i: False):
    """X ← X − γ L X − η G(X), all nodes at once; who fails keeps its row."""
    X = np.tile(start(), (N, 1))
    for r in range(rounds):
        G = np.stack([world.estimate(X[i], r, i, 0, how) for i in range(N)])
        new = X - gamma * L @ X - eta(r) * G
        for i in range(N):
            if lost(r, 0, i):
                new[i] = X[i]
        X = new
    return X


def nodes(run) -> np.ndarray:
    return np.stack([run.replica.state.carry.models[i].double().numpy() for i in range(N)])


@FORMS
@GRAPHS
@pytest.mark.parametrize("how", [How(P=3), How(P=2, central=True, everything=True)], ids=str)
def test_eight_rounds_equal_the_paper_by_hand(tmp_path: Path, how, graph, form) -> None:
    eta, gamma, rounds = 1e-2, 0.05, 8
    algorithm = Dzopa(rate=eta, gamma=gamma, graph=graph, form=form, **how.fields)
    run, world = federation(tmp_path, algorithm, clients=N, cohort=N, replicas=True)
    run.play(rounds)
    X = by_hand(world, rounds, lambda r: eta, gamma, laplacian(graph), how)
    assert np.abs(X - X.mean(axis=0)).max() > 0.1, "the nodes must have gone apart"
    assert_near(nodes(run), X, how.bound)
    assert_near(model(run), X.mean(axis=0), how.bound)
    assert not any(r.refused for r in run.records)
    assert {r.queries for r in run.records} == {N * (2 * how.P if how.central else how.P + 1)}


@FORMS
@GRAPHS
def test_the_mean_moves_by_the_mean_estimate_alone(tmp_path: Path, graph, form) -> None:
    """1ᵀL = 0: whatever the graph, mean x ← mean x − η mean G_i(x_i)."""
    eta, how = 1e-2, How()
    algorithm = Dzopa(rate=eta, gamma=0.05, graph=graph, form=form, **how.fields)
    run, world = federation(tmp_path, algorithm, clients=N, cohort=N)
    for r in range(7):
        X = nodes(run)
        run.play(1)
        G = np.mean([world.estimate(X[i], r, i, 0, how) for i in range(N)], axis=0)
        assert_near(nodes(run).mean(axis=0), X.mean(axis=0) - eta * G, how.bound)


@FORMS
@GRAPHS
def test_without_an_objective_the_nodes_come_to_agree(tmp_path: Path, graph, form) -> None:
    """X_r = (I − γL)ʳ X_0: the mean stays, and the disagreement shrinks by 1 − γ λ₂ or more in every round."""
    gamma, L = 0.05, laplacian(graph)
    algorithm = Dzopa(rate=1e-3, gamma=gamma, graph=graph, form=form)
    run, _ = federation(tmp_path, algorithm, clients=N, cohort=N, objective=Free())
    X = np.random.default_rng(3).normal(size=(N, D)).astype(np.float32).astype(np.float64)
    for i in range(N):
        run.replica.state.carry.models.set(i, torch.from_numpy(X[i]).float())
    mean, apart, slowest = X.mean(axis=0), np.linalg.norm(X - X.mean(axis=0)), 1 - gamma * np.linalg.eigvalsh(L)[1]
    for r in range(1, 21):
        run.play(1)
        assert_near(nodes(run), np.linalg.matrix_power(np.eye(N) - gamma * L, r) @ X, 4 * r * EPS)
        assert_near(model(run), mean, 4 * r * EPS * np.abs(X).max() / np.abs(mean).max())
        now = np.linalg.norm(nodes(run) - nodes(run).mean(axis=0))
        assert now < slowest * apart * (1 + 1e-5)
        apart = now


@FORMS
@GRAPHS
def test_a_node_that_fails_keeps_its_model(tmp_path: Path, graph, form) -> None:
    """And its neighbours still mix with the model it has."""
    eta, gamma, rounds, how = 1e-2, 0.05, 8, How()
    lost = lambda r, exchange, i: (r + i) % 4 == 1 or r == 5  # noqa: E731
    algorithm = Dzopa(rate=eta, gamma=gamma, graph=graph, form=form, **how.fields)
    run, world = federation(tmp_path, algorithm, clients=N, cohort=N)
    run.engine = Losing(run.engine, lost)
    for r in range(rounds):
        before = nodes(run)
        run.play(1)
        for i in range(N):
            assert np.array_equal(nodes(run)[i], before[i]) == lost(r, 0, i)
    X = by_hand(world, rounds, lambda r: eta, gamma, laplacian(graph), how, lost)
    assert_near(nodes(run), X, how.bound)
    assert_near(model(run), X.mean(axis=0), how.bound)


@FORMS
def test_a_schedule(tmp_path: Path, form) -> None:
    how = How()
    algorithm = Dzopa(rate=InverseSqrt(start=2e-2), gamma=0.05, graph=Ring(), form=form, **how.fields)
    run, world = federation(tmp_path, algorithm, clients=N, cohort=N)
    run.play(8)
    X = by_hand(world, 8, lambda r: 2e-2 / np.sqrt(r + 1), 0.05, laplacian(Ring()), how)
    assert_near(nodes(run), X, how.bound)


def test_what_a_node_is_sent(tmp_path: Path) -> None:
    """Dense: its own model and its neighbours', so more on a complete graph than on a ring."""
    for graph, models in ((Ring(), 3 * N), (Complete(), N * N), (TREE, N + 2 * 5)):
        algorithm = Dzopa(rate=1e-2, graph=graph, form="dense")
        run, _ = federation(tmp_path / type(graph).__name__, algorithm, clients=N, cohort=N, replicas=True)
        run.play(7)
        for record in run.records:
            assert 4 * D * models < record.bytes_down < 4 * D * models + 32 * N
            assert 4 * D * N < record.bytes_up < (4 * D + 64) * N


@pytest.mark.parametrize(
    ("graph", "cohort", "words"),
    [(Complete(), 3, "all clients take part"), (Edges(pairs=((0, 1), (2, 3), (4, 5))), N, "not connected")],
)
def test_what_it_cannot_serve_is_explained(tmp_path: Path, graph, cohort, words) -> None:
    with pytest.raises(FedzeroError, match=words):
        federation(tmp_path, Dzopa(rate=1e-2, graph=graph), clients=N, cohort=cohort)
