"""Theory of the estimator: bias in μ, variance in P, unbiased for linear functions, sphere."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from fedzero.directions import Domain, Keys, reference, stream_of
from fedzero.errors import FedzeroError
from fedzero.estimators.spsa import Difference, direction_keys, points_of, queries_of, slopes
from fedzero.model.params import Params
from fedzero.recipe import recipe as recipes

KEYS = Keys.of_seed(7)
DIMENSION = 40
DISTRIBUTIONS = ("gaussian", "rademacher", "sphere", "unit-sphere")


@cache
def direction(stream, key):
    """In float64; kept, because many estimates are along the same directions."""
    return Params.of_vector(torch.zeros(DIMENSION)).direction(stream, key).double().numpy()


def estimate(f, x, count, radius, difference: Difference, distribution, draw=0):
    """(1/P) Σ g_p z_p in float64, evaluated on exact points so that only the method's own error shows."""
    params = Params.of_vector(torch.from_numpy(x.astype(np.float32)))
    keys = direction_keys(KEYS, draw, 0, count)
    points, scales = points_of(params, keys, radius, difference, distribution)
    zs = [direction(stream_of(distribution), key) for key in keys]
    exact = dict(zip(keys, zs, strict=True))
    values = np.array(
        [f(x + sum((float(c) * exact[int(k)] for k, c in zip(p.keys, p.coefficients, strict=True)), 0)) for p in points]
    )
    g, loss = slopes(values, scales, radius, difference)
    return sum(gi * z for gi, z in zip(g.astype(np.float64), zs, strict=True)) / count, loss, values.size


def cubic(x):
    return float(np.sum(x**2 / 2 + x**3 / 6))


@pytest.mark.parametrize(("difference", "order"), [("forward", 1), ("central", 2)])
def test_bias_falls_as_mu_to_the_order_of_the_difference(difference, order) -> None:
    x = np.linspace(-0.5, 0.5, DIMENSION)
    keys = direction_keys(KEYS, 0, 0, 200)
    params = Params.of_vector(torch.from_numpy(x.astype(np.float32)))
    z = np.stack([params.direction(Domain.GAUSSIAN, k).double().numpy() for k in keys])
    x = x.astype(np.float32).astype(np.float64)
    limit = np.mean([(z[p] @ (x + x**2 / 2)) * z[p] for p in range(200)], axis=0)  # the estimate for μ → 0

    def error(mu):
        mu = float(np.float32(mu))
        return np.linalg.norm(estimate(cubic, x, 200, mu, difference, "gaussian")[0] - limit)

    ratio = error(0.2) / error(0.1)
    assert ratio == pytest.approx(2**order, rel=0.15)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_variance_falls_as_one_over_p(distribution) -> None:
    x = np.ones(DIMENSION)

    def spread(count):
        runs = [estimate(lambda y: float(y.sum()), x, count, 1e-2, "central", distribution, r)[0] for r in range(400)]
        return np.stack(runs).var(axis=0).sum()

    assert spread(2) / spread(16) == pytest.approx(8, rel=0.2)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_unbiased_on_a_linear_function(distribution) -> None:
    a, x = np.linspace(-1, 2, DIMENSION), np.zeros(DIMENSION)
    runs = np.stack([estimate(lambda y: float(a @ y), x, 8, 1e-2, "forward", distribution, r)[0] for r in range(1500)])
    standard_error = runs.std(axis=0) / np.sqrt(len(runs))
    assert np.all(np.abs(runs.mean(axis=0) - a) < 5 * standard_error)


def spread(f, count, radius, difference, draws=400):
    """Variance of the estimate at 1, summed over coordinates."""
    runs = [estimate(f, np.ones(DIMENSION), count, radius, difference, "gaussian", r)[0] for r in range(draws)]
    return np.stack(runs).var(axis=0).sum()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_with_the_mean_of_the_others_it_is_unbiased_where_curvature_is_large(distribution) -> None:
    """f = a·x + 50 |x|² at 0, where the forward slopes are nearly all curvature: still a, on average."""
    a, x = np.linspace(-1, 2, DIMENSION), np.zeros(DIMENSION)

    def steep(y):
        return float(a @ y + 50 * y @ y)

    runs = np.stack([estimate(steep, x, 8, 1e-2, "mean", distribution, r)[0] for r in range(1500)])
    standard_error = runs.std(axis=0) / np.sqrt(len(runs))
    assert np.all(np.abs(runs.mean(axis=0) - a) < 5 * standard_error)


def test_the_mean_of_the_others_takes_away_what_is_common_to_all_directions() -> None:
    """f = x_1 + 2 |x − 1|² at 1: slopes of variance 1, and ½ μ tr H = 8 on top of them, in forward differences."""

    def curved(y):
        return float(y[0] + 2 * (y - 1) @ (y - 1))

    forward, mean, central = (spread(curved, 10, 0.1, d) for d in ("forward", "mean", "central"))
    curvature = 8.0**2 * DIMENSION / 10
    assert forward - central == pytest.approx(curvature, rel=0.25)
    # of it remains how unlike zᵀHz is from direction to direction: 2/d of its square, with the mean's own share of it
    assert mean - central == pytest.approx((2 / DIMENSION) * curvature * 10 / 9, rel=0.6)


def test_what_the_mean_of_the_others_costs() -> None:
    """On a linear function, where there is nothing to take away: 1/(P − 1) of the variance."""

    def linear(y):
        return float(y.sum())

    ratio = spread(linear, 3, 1e-2, "mean", 1500) / spread(linear, 3, 1e-2, "forward", 1500)
    assert ratio == pytest.approx(1 + 1 / 2, rel=0.12)


def test_queries_and_loss() -> None:
    x = np.ones(DIMENSION)
    _, loss, queries = estimate(cubic, x, 10, 1e-3, "forward", "gaussian")
    assert queries == 11
    assert loss == pytest.approx(cubic(x))
    _, loss, queries = estimate(cubic, x, 10, 1e-3, "central", "gaussian")
    assert queries == 20
    assert loss == pytest.approx(cubic(x), rel=1e-3)
    _, loss, queries = estimate(cubic, x, 10, 1e-3, "mean", "gaussian")
    assert queries == queries_of(10, "mean") == 10
    assert loss == pytest.approx(cubic(x), rel=1e-2)


@pytest.mark.parametrize(("distribution", "radius"), [("sphere", np.sqrt(377)), ("unit-sphere", 1.0)])
def test_sphere_points_lie_on_the_sphere(distribution, radius) -> None:
    params = Params({"a": torch.zeros(300), "b": torch.zeros(77)})
    points, scales = points_of(params, direction_keys(KEYS, 1, 0, 5), 0.5, "forward", distribution)
    for point in points[1:]:
        assert params.view(point).vector().double().norm().item() == pytest.approx(0.5 * radius, rel=1e-6)
    assert len(set(scales)) == 5


@pytest.mark.parametrize("difference", ["forward", "central"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_unit_sphere_is_fedzos_estimator(difference, count) -> None:
    """(1/P) Σ_p (d/μ) (f(x + μu_p) − f(x)) u_p, u = n/‖n‖ from the gaussian stream, and its central version."""
    d, mu, x = DIMENSION, 0.25, np.linspace(-0.5, 0.5, DIMENSION).astype(np.float32).astype(np.float64)
    expected = np.zeros(d)
    for p in range(count):
        n = reference.gaussian(KEYS.direction(5, 0, p), 0, d).astype(np.float64)
        u = n / np.linalg.norm(n)
        if difference == "forward":
            expected += d / mu * (cubic(x + mu * u) - cubic(x)) * u / count
        else:
            expected += d / (2 * mu) * (cubic(x + mu * u) - cubic(x - mu * u)) * u / count
    got, _, _ = estimate(cubic, x, count, mu, difference, "unit-sphere", draw=5)
    assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("mu", [1e-2, 10.0])
def test_on_a_linear_function_the_unit_sphere_needs_no_small_radius(mu) -> None:
    """⟨a, u⟩ d u whatever μ: E = a, because E uuᵀ = I/d."""
    a, x = np.linspace(-1, 2, DIMENSION), np.zeros(DIMENSION)
    runs = np.stack([estimate(lambda y: float(a @ y), x, 4, mu, "forward", "unit-sphere", r)[0] for r in range(1500)])
    standard_error = runs.std(axis=0) / np.sqrt(len(runs))
    assert np.all(np.abs(runs.mean(axis=0) - a) < 5 * standard_error)


@pytest.mark.parametrize(
    ("distribution", "factor"),
    [("gaussian", DIMENSION + 2), ("rademacher", DIMENSION), ("sphere", DIMENSION), ("unit-sphere", DIMENSION)],
)
def test_length_of_one_estimate(distribution, factor) -> None:
    """E‖⟨a, z⟩ z‖² = (d + 2)‖a‖² for gaussians and d‖a‖² for all whose directions have one length."""
    a = np.linspace(-1, 2, DIMENSION)
    a, x = a / np.linalg.norm(a), np.zeros(DIMENSION)
    squares = [
        np.sum(estimate(lambda y: float(a @ y), x, 1, 1e-2, "forward", distribution, r)[0] ** 2) for r in range(2000)
    ]
    assert abs(np.mean(squares) - factor) < 5 * np.std(squares) / np.sqrt(len(squares))


@pytest.mark.parametrize("kind", ["decomfl", "fedzo", "baffle", "zofedht"])
def test_one_direction_has_no_others(kind) -> None:
    def load(directions):
        return recipes.load(
            "demo", [f'algorithm={{kind="{kind}", rate=1e-3, difference="mean", directions={directions}}}']
        )

    with pytest.raises(FedzeroError, match="compares directions with each other"):
        load(1)
    assert load(2).algorithm.difference == "mean"
    if kind == "decomfl":
        with pytest.raises(FedzeroError, match="compares directions with each other"):
            load("{start=4, then=[[10, 1]]}")
