"""Dense and sparse rows make the same products, and those of plain NumPy in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero_papers.oracles import rows as module
from fedzero_papers.oracles.rows import DenseRows, Rows, SparseRows


def sparse_of(matrix: np.ndarray) -> SparseRows:
    """Compressed rows by hand."""
    kept = [np.flatnonzero(row) for row in matrix]
    offsets = np.cumsum([0, *(len(k) for k in kept)])
    indices = np.concatenate(kept).astype(np.int64)
    values = np.concatenate([row[k] for row, k in zip(matrix, kept, strict=True)]).astype(np.float64)
    return SparseRows(offsets.astype(np.int64), indices, values, matrix.shape[1])


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    """Small float32 matrices, some without a single nonzero in some rows, or at all."""
    n, d = draw(st.integers(1, 9)), draw(st.integers(1, 12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dense = generator.standard_normal((n, d)).astype(np.float32)
    return dense * (generator.random((n, d)) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])))


def check(rows: Rows, matrix: np.ndarray, seed: int) -> None:
    generator = np.random.default_rng(seed)
    n, d = matrix.shape
    wide = matrix.astype(np.float64)
    assert (len(rows), rows.width) == (n, d)
    vectors = generator.standard_normal((3, d)).astype(np.float32)
    np.testing.assert_allclose(rows.along(vectors), wide @ vectors.T.astype(np.float64), rtol=1e-13, atol=1e-13)
    weights = generator.standard_normal((2, d, 4)).astype(np.float32)
    np.testing.assert_allclose(rows.through(weights), np.einsum("nd,kdh->knh", wide, weights), rtol=1e-4, atol=1e-5)
    residuals = generator.standard_normal((n, 4))
    np.testing.assert_allclose(rows.back(residuals), wide.T @ residuals, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(matrices(), st.integers(0, 2**32 - 1), st.data())
def test_products_are_those_of_the_matrix_and_of_picked_rows(matrix, seed, data):
    index = np.array(data.draw(st.lists(st.integers(0, len(matrix) - 1), min_size=1, max_size=12)))
    for rows in (DenseRows(matrix), sparse_of(matrix)):
        check(rows, matrix, seed)
        check(rows.pick(index), matrix[index], seed)


def test_many_dense_rows_are_widened_in_blocks(monkeypatch):
    matrix = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    monkeypatch.setattr(module, "BLOCK", 8)
    check(DenseRows(matrix), matrix, 1)


@pytest.mark.parametrize("make", [DenseRows, sparse_of])
def test_vectors_may_be_a_part_of_wider_ones(make):
    """Columns of a basis are cut out of longer vectors, without a copy."""
    generator = np.random.default_rng(2)
    matrix = (generator.standard_normal((6, 5)) * (generator.random((6, 5)) < 0.6)).astype(np.float32)
    wider = generator.standard_normal((3, 40)).astype(np.float32)
    rows = make(matrix)
    np.testing.assert_allclose(rows.along(wider[:, 10:15]), matrix.astype(np.float64) @ wider[:, 10:15].T, atol=1e-12)
    weights = wider[:, 4:24].reshape(3, 5, 4)
    np.testing.assert_allclose(rows.through(weights), np.einsum("nd,kdh->knh", matrix, weights), atol=1e-5)
