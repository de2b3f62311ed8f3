"""Graphs: the Laplacian that neighbours make, and which graphs hang together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fedzero.errors import FedzeroError
from fedzero.methods.shared.graphs import Complete, Edges, Ring


def laplacian(graph, nodes: int) -> np.ndarray:
    L = np.zeros((nodes, nodes))
    for i in range(nodes):
        for j in graph.neighbours(i, nodes):
            L[i, j] -= 1
            L[i, i] += 1
    return L


@st.composite
def edges(draw) -> tuple[int, list[tuple[int, int]]]:
    """Nodes and pairs of different ones, some twice or the other way round."""
    nodes = draw(st.integers(2, 9))
    pair = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda p: p[0] != p[1])
    return nodes, draw(st.lists(pair, max_size=14))


def adjacency(nodes: int, pairs) -> np.ndarray:
    A = np.zeros((nodes, nodes))
    for a, b in pairs:
        A[a, b] = A[b, a] = 1
    return A


@given(edges())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_edges_make_the_laplacian_of_their_graph(graph) -> None:
    nodes, pairs = graph
    A = adjacency(nodes, pairs)
    L = laplacian(Edges(pairs=tuple(pairs)), nodes)
    assert np.array_equal(L, np.diag(A.sum(axis=1)) - A)
    assert np.array_equal(L, L.T)
    assert np.array_equal(L.sum(axis=1), np.zeros(nodes))
    assert np.linalg.eigvalsh(L)[0] > -1e-9


@given(edges())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_graph_is_taken_if_and_only_if_it_is_connected(graph) -> None:
    nodes, pairs = graph
    parts, labels = connected_components(csr_array(adjacency(nodes, pairs)), directed=False)
    if parts == 1:
        Edges(pairs=tuple(pairs)).check(nodes)
        return
    with pytest.raises(FedzeroError, match="not connected") as error:
        Edges(pairs=tuple(pairs)).check(nodes)
    lost = int(np.flatnonzero(labels != labels[0])[0])
    assert f"client {lost} cannot be reached from client 0" in str(error.value)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 7])
def test_complete_and_ring_are_what_they_are_called(nodes) -> None:
    everybody = laplacian(Complete(), nodes)
    assert np.array_equal(everybody, nodes * np.eye(nodes) - np.ones((nodes, nodes)))
    circle = {(i, (i + 1) % nodes) for i in range(nodes)} - {(0, 0)}
    A = adjacency(nodes, circle)
    assert np.array_equal(laplacian(Ring(), nodes), np.diag(A.sum(axis=1)) - A)
    for graph in (Complete(), Ring()):
        graph.check(nodes)
        L = laplacian(graph, nodes)
        assert np.sum(np.abs(np.linalg.eigvalsh(L)) < 1e-9) == 1, "one part: 0 is a simple eigenvalue"


@pytest.mark.parametrize("pair", [(0, 3), (1, 1)])
def test_pairs_are_of_two_clients_that_exist(pair) -> None:
    with pytest.raises(FedzeroError, match="two different clients from 0 to 2"):
        Edges(pairs=((0, 1), (1, 2), pair)).check(3)
