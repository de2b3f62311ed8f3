"""The basis of a history: R⁻¹ of a real QR, whatever the columns; and coordinates that are the stream's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.directions import Keys, reference
from fedzero.estimators.subspace import NO_TENSOR, coordinates, orthonormal

ROUNDS = settings(max_examples=100, deadline=None, derandomize=True)


def columns(table: np.ndarray) -> list[torch.Tensor]:
    """The columns of a (d, τ) table, as float32 tensors."""
    return [torch.from_numpy(np.ascontiguousarray(column, np.float32)) for column in table.T]


def rounded(table: np.ndarray) -> np.ndarray:
    return table.astype(np.float32).astype(np.float64)


@given(seed=st.integers(0, 10**6), count=st.integers(1, 8), exponent=st.integers(-12, 12))
@ROUNDS
def test_it_is_the_inverse_of_r(seed, count, exponent) -> None:
    """Of the thin QR with diag R > 0, at any scale of the columns."""
    table = rounded(np.random.default_rng(seed).normal(size=(60, count)) * 10.0**exponent)
    T = orthonormal(columns(table))
    R = np.linalg.qr(table, mode="r")
    R = R * np.sign(np.diag(R))[:, None]
    # By way of the Gram matrix: 2⁻⁵³ times the square of the condition, which is below 10 here.
    assert np.abs(T @ R - np.eye(count)).max() < 1e-12
    assert np.array_equal(T, np.triu(T))
    assert np.all(np.diag(T) > 0)


@given(seed=st.integers(0, 10**6), kinds=st.lists(st.sampled_from("fzds"), min_size=1, max_size=7))
@ROUNDS
def test_columns_that_depend_on_earlier_ones_are_left_out(seed, kinds) -> None:
    """f: fresh; z: zero; d: a combination of those before it; s: one of them, scaled. The span stays that of all."""
    rng = np.random.default_rng(seed)
    table, fresh = np.zeros((40, len(kinds))), np.zeros(len(kinds), bool)
    for j, kind in enumerate(kinds):
        before = np.flatnonzero(fresh)
        if kind == "f" or (kind in "ds" and before.size == 0):
            table[:, j], fresh[j] = np.round(rng.normal(size=40) * 64) / 64, True
        elif kind == "d":
            table[:, j] = table[:, before] @ rng.choice([-2.0, -1.0, 0.5, 1.0], before.size)
        elif kind == "s":
            table[:, j] = table[:, rng.choice(before)] * -0.25
    assert np.array_equal(rounded(table), table), "float32 has these numbers: the dependence is exact"
    T = orthonormal(columns(table))
    Q = table @ T
    assert np.array_equal(np.any(T != 0, axis=0), fresh)
    assert np.abs(Q.T @ Q - np.diag(fresh)).max() < 1e-10
    if fresh.any():
        reference_q = np.linalg.qr(table[:, fresh])[0]
        assert np.abs(Q @ Q.T - reference_q @ reference_q.T).max() < 1e-10


@pytest.mark.parametrize(("share", "kept"), [(1e-3, True), (1e-4, True), (1e-6, False), (0.0, False)])
def test_what_counts_as_dependent(share, kept) -> None:
    """A column is dropped where less than 10⁻⁵ of its length lies outside the span: the rest is rounding."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=1000)
    b = a / np.linalg.norm(a) + share * np.linalg.qr(np.stack([a, rng.normal(size=1000)], axis=1))[0][:, 1]
    table = np.stack([a, b], axis=1)
    T = orthonormal([torch.from_numpy(np.ascontiguousarray(column)) for column in table.T])
    assert bool(np.any(T[:, 1])) == kept
    if kept:
        Q = table @ T
        assert np.abs(Q.T @ Q - np.eye(2)).max() < 1e-15 / share**2


@pytest.mark.parametrize("condition", [1, 10, 100, 1000])
def test_in_float32_the_basis_is_orthonormal_up_to_the_condition(condition) -> None:
    """T and the columns as they are used, in float32: off by EPS times the condition, a few of them."""
    rng = np.random.default_rng(2)
    U, V = np.linalg.qr(rng.normal(size=(500, 5)))[0], np.linalg.qr(rng.normal(size=(5, 5)))[0]
    table = (U * np.geomspace(1, 1 / condition, 5)) @ V.T
    T = orthonormal(columns(table)).astype(np.float32)
    Q = (table.astype(np.float32) @ T).astype(np.float64)
    assert np.abs(Q.T @ Q - np.eye(5)).max() < 16 * 2.0**-24 * condition


def test_nothing_but_zeros() -> None:
    assert np.array_equal(orthonormal([torch.zeros(7)] * 3), np.zeros((3, 3)))


@pytest.mark.parametrize("count", [1, 5, 130])
def test_coordinates_are_those_of_a_tensor_that_no_model_has(count) -> None:
    keys = tuple(Keys.of_seed(4).direction(2, k, 0, 1) for k in range(6))
    got = coordinates(keys, count)
    assert NO_TENSOR == 2**32 - 1
    assert np.array_equal(got, np.stack([reference.gaussian(key, 2**32 - 1, count) for key in keys]))


def test_coordinates_are_standard_gaussians_and_not_the_directions() -> None:
    keys = tuple(Keys.of_seed(4).direction(r, 0, 0, 1) for r in range(4000))
    v2 = coordinates(keys, 3).astype(np.float64)
    v1 = np.stack([reference.gaussian(key, 0, 3) for key in keys]).astype(np.float64)
    both = np.hstack([v1, v2])
    # Entries of an empirical covariance of N(0, I) have the variance (1 + δ_ij)/n.
    deviation = np.sqrt((1 + np.eye(6)) / len(keys))
    assert np.all(np.abs(both.T @ both / len(keys) - np.eye(6)) < 5 * deviation)
