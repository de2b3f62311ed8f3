"""The subspace spanned by the last changes of a solution: an orthonormal basis, and random coordinates in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Domain, kernels
from fedzero.oracles.contract import F64

NO_TENSOR = 2**32 - 1
"""An ordinal that no model uses: its stream gives the coordinates in the subspace."""
DEPENDENT = 1e-10
"""A column is left out if the square of its part outside the span of those before it is less than this share."""


def orthonormal(columns: Sequence[Tensor]) -> F64:
    """T (τ, τ), upper triangular, such that [c_1 … c_τ] T has orthonormal columns: R⁻¹ of the thin QR.

    Gram–Schmidt on the Gram matrix in float64, without vectors of size d; a dependent (or zero) column becomes zero.
    """
    table = torch.stack([column.double() for column in columns])
    gram: F64 = (table @ table.T).cpu().numpy()
    count = len(columns)
    T = np.zeros((count, count))
    for j in range(count):
        t = np.zeros(count)
        t[j] = 1.0
        for _ in range(2):  # twice is enough to be orthogonal to rounding
            t -= T @ (T.T @ (gram @ t))
        square = float(t @ gram @ t)
        if square > DEPENDENT * gram[j, j]:
            T[:, j] = t / np.sqrt(square)
    return T


@lru_cache(maxsize=4096)
def coordinates(keys: tuple[int, ...], count: int) -> F64:
    """v2 ~ N(0, I) of every direction, (directions, count)."""
    out = torch.empty(len(keys), count)
    for row, key in zip(out, keys, strict=True):
        kernels(row.device).generate(row, Domain.GAUSSIAN, key, NO_TENSOR)
    return out.numpy().astype(np.float64)
