"""The surrogate that the page shows is the Gaussian process of the queries, and lies where the function is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from fedzero.estimators.surrogate.kernels import Rbf
from fedzero.estimators.surrogate.process import GradientSurrogate, Nearest
from fedzero.oracles.blackbox import Bounds
from fedzero.results.surrogate_slices import PLACES, slices, variance

BOUNDS = Bounds.of([-5.0, -5.0, 0.0], [5.0, 5.0, 2.0], 3)


def queries(client: int, count: int = 40) -> list[tuple[np.ndarray, float]]:
    rng = np.random.default_rng(client)
    points = BOUNDS.from_unit(rng.random((count, 3)))
    return [(x, float((x[0] - 1) ** 2 + 3 * x[1] + client)) for x in points]


def test_value_and_variance_are_those_of_another_implementation() -> None:
    rng = np.random.default_rng(5)
    points, values, asked = rng.random((30, 3)), rng.random(30), rng.random((7, 3))
    surrogate = GradientSurrogate(3, Rbf(), window=Nearest(), fit_scale=True)
    surrogate.observe(torch.from_numpy(points), torch.from_numpy(values))
    fit = surrogate.at(torch.from_numpy(asked[0]))
    low, spread = values.min(), values.max() - values.min()
    other = GaussianProcessRegressor(RBF(fit.kernel.scale), alpha=1e-6, optimizer=None).fit(
        points, (values - low) / spread
    )
    mean, deviation = other.predict(asked, return_std=True)
    np.testing.assert_allclose(fit.value(torch.from_numpy(asked)), low + spread * mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(variance(fit, torch.from_numpy(asked)), (spread * deviation) ** 2, rtol=1e-4, atol=1e-8)


def test_slices_follow_the_function_along_what_matters() -> None:
    x = np.array([2.0, -1.0, 1.0])
    found = slices({0: queries(0), 1: queries(1)}, BOUNDS, x)
    assert [s.coordinate for s in found] == [0, 1]  # the third coordinate plays no part
    first = found[0]
    assert len(first.places) == len(first.mean) == len(first.deviation) == PLACES
    true = (np.array(first.places) - 1) ** 2 + 3 * x[1] + 0.5  # the mean over both parties
    np.testing.assert_allclose(first.mean, true, atol=1.0)
    assert min(first.deviation) >= 0 and np.isfinite(first.deviation).all()


@pytest.mark.parametrize(
    "located",
    [
        {},
        {0: queries(0)[:1]},
        {0: [(np.zeros(2), 1.0)] * 5},
        {0: [(np.full(3, np.nan), 1.0)] * 5},
        {0: [(np.zeros(3), np.inf)] * 9},
    ],
)
def test_without_usable_points_there_is_none(located: dict) -> None:
    assert slices(located, BOUNDS, np.zeros(3)) == ()
