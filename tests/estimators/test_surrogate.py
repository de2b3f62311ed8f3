"""Gradient surrogates against automatic differentiation, d×d matrices and fresh factors, all in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.directions import Keys
from fedzero.estimators.surrogate import (
    Everything,
    FeatureHistory,
    GradientSurrogate,
    History,
    Matern,
    Nearest,
    Rbf,
    Recent,
    Surrogate,
    SurrogateCache,
    Transfer,
    features_of,
    weights_of,
)
from fedzero.estimators.surrogate.factor import Factor, NotPositive

D, NOISE = 7, 1e-3
KERNELS = [Rbf(1.0), Rbf(0.4), Matern(1.0), Matern(0.6)]
WINDOWS = [Everything(), Nearest(25), Recent(20)]
KEYS = Keys.of_seed(4)


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(-1) + torch.sin(3 * x[..., 0]) * x[..., 1]


def data(count: int = 60, seed: int = 0, d: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.from_numpy(np.random.default_rng(seed).random((count, d)))
    return x, function(x)


def observed(kernel, window, scaling="min-max", count: int = 60) -> GradientSurrogate:
    x, y = data(count)
    surrogate = GradientSurrogate(D, kernel, NOISE, window, scaling)
    for first in range(0, count, 5):
        surrogate.observe(x[first : first + 5], y[first : first + 5])
    return surrogate


def held(window, x: torch.Tensor, count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """What a window holds, worked out by other means."""
    points, values = data(count)
    if isinstance(window, Nearest):
        order = torch.linalg.norm(points - x, dim=1).argsort()[: window.count].sort().values
        return points[order], values[order]
    if isinstance(window, Recent):  # every fifth block of five beyond forty drops back to twenty
        size = 0
        for _ in range(count // 5):
            size = window.count if size + 5 > 2 * window.count else size + 5
        return points[-size:], values[-size:]
    return points, values


def kernel_of(kernel, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """k(a, b), (n, m), from the definitions."""
    r = torch.linalg.norm(a[:, None] - b[None], dim=-1) / kernel.scale
    if isinstance(kernel, Rbf):
        return torch.exp(-r * r / 2)
    return (1 + math.sqrt(5) * r + 5 * r * r / 3) * torch.exp(-math.sqrt(5) * r)


@pytest.mark.parametrize("scaling", ["min-max", "centre", "none"])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: type(w).__name__)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_gradient_is_that_of_the_posterior_mean(kernel, window, scaling) -> None:
    surrogate, x = observed(kernel, window, scaling), torch.full((D,), 0.45, dtype=torch.float64, requires_grad=True)
    points, y = held(window, x.detach())
    shift = {"min-max": y.min(), "centre": y.mean(), "none": torch.zeros(())}[scaling]
    covariance = kernel_of(kernel, points, points) + NOISE * torch.eye(len(points), dtype=torch.float64)
    mean = shift + kernel_of(kernel, x[None], points) @ torch.linalg.solve(covariance, y - shift)
    (expected,) = torch.autograd.grad(mean.sum(), x)
    found = surrogate.gradient(x.detach())
    assert torch.linalg.norm(found - expected) <= 1e-8 * torch.linalg.norm(expected)
    assert surrogate.at(x.detach()).value(x.detach()[None]) == pytest.approx(float(mean.detach()), rel=1e-9)


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: type(w).__name__)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_trace_is_that_of_the_whole_matrix(kernel, window) -> None:
    """∂∂'k(x, x) and ∂k(x) by automatic differentiation of the kernel's definition; then d×d algebra."""
    surrogate = observed(kernel, window)
    candidates = 0.45 + 0.02 * torch.from_numpy(np.random.default_rng(1).random((6, D)))
    found = surrogate.uncertainty(candidates)
    points, _ = held(window, candidates.mean(0))
    covariance = kernel_of(kernel, points, points) + NOISE * torch.eye(len(points), dtype=torch.float64)
    for x, value in zip(candidates, found, strict=True):
        slopes = torch.autograd.functional.jacobian(lambda z: kernel_of(kernel, z[None], points)[0], x)
        h = 1e-3  # ∂∂'k(x, x) along one axis, by differences of the definition
        e = torch.zeros(D, dtype=torch.float64)
        e[0] = h
        both = [
            kernel_of(kernel, (x + s * e)[None], (x + t * e)[None]) for s, t in ((1, 1), (1, -1), (-1, 1), (-1, -1))
        ]
        curvature = float((both[0] - both[1] - both[2] + both[3]) / (4 * h * h))
        assert kernel.roughness == pytest.approx(curvature, rel=1e-2)
        whole = kernel.roughness * torch.eye(D, dtype=torch.float64)
        whole = whole - slopes.T @ torch.linalg.solve(covariance, slopes)
        assert float(value) == pytest.approx(float(whole.trace()), rel=1e-9, abs=1e-9)
        assert 0 < float(value) < D * kernel.roughness


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 1000))
def test_an_appended_factor_equals_a_fresh_one(blocks: list[int], seed: int) -> None:
    x, _ = data(sum(blocks), seed)
    matrix = Rbf(0.7).value(torch.cdist(x, x) ** 2) + 1e-3 * torch.eye(len(x), dtype=torch.float64)
    factor, n = Factor(), 0
    for b in blocks:
        factor.append(matrix[n : n + b, :n], matrix[n : n + b, n : n + b])
        n += b
        assert factor.inverse.shape == (n, n)  # asked for from the beginning, so it grows beside the factor
    fresh = torch.linalg.cholesky(matrix)
    assert (factor.lower.tril() - fresh).abs().max() <= 1e-10
    assert (factor.inverse @ matrix - torch.eye(n, dtype=torch.float64)).abs().max() <= 1e-8
    right = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, 2)))
    assert (matrix @ factor.solve(right) - right).abs().max() <= 1e-8


def test_a_long_appended_factor_equals_a_fresh_one() -> None:
    x, _ = data(1200, 3, 30)
    matrix = Rbf(1.0).value(torch.cdist(x, x) ** 2) + 1e-6 * torch.eye(len(x), dtype=torch.float64)
    factor = Factor()
    for n in range(0, 1200, 5):
        factor.append(matrix[n : n + 5, :n], matrix[n : n + 5, n : n + 5])
    assert (factor.lower - torch.linalg.cholesky(matrix)).abs().max() <= 1e-10


def test_a_failed_append_leaves_the_factor_as_it_was() -> None:
    factor = Factor()
    factor.append(torch.zeros(2, 0, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    _ = factor.inverse
    with pytest.raises(NotPositive):
        factor.append(torch.full((1, 2), 2.0, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    assert factor.size == 2
    assert torch.equal(factor.lower, torch.eye(2, dtype=torch.float64))
    assert torch.equal(factor.inverse, torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: type(w).__name__)
def test_what_was_observed_is_the_surrogates_own(window) -> None:
    x, y = data(8)
    surrogate = GradientSurrogate(D, window=window)
    surrogate.observe(x, y)
    points, outputs = x.clone(), y.clone()
    x.zero_()
    y.zero_()
    assert torch.equal(surrogate.points, points)
    assert torch.equal(surrogate.outputs, outputs)


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: type(w).__name__)
def test_numerical_failure_is_mended_with_jitter_and_recorded(window) -> None:
    """The same points again and again, with as good as no noise: singular to working precision."""
    x, y = data(8)
    surrogate = GradientSurrogate(D, Rbf(50.0), 1e-18, window)
    for _ in range(3):
        surrogate.observe(x, y)
    assert torch.isfinite(surrogate.gradient(x[0])).all()
    assert surrogate.rebuilds
    assert all(rebuild.jitter > 0 and rebuild.points <= 24 for rebuild in surrogate.rebuilds)
    healthy = observed(Rbf(1.0), window)
    healthy.gradient(x[0])
    assert healthy.rebuilds == []


def test_uncertainty_falls_where_one_has_looked() -> None:
    surrogate, x = observed(Rbf(1.0), Everything()), torch.full((1, D), 0.5, dtype=torch.float64)
    before = float(surrogate.uncertainty(x))
    around = x + 0.2 * torch.cat([torch.eye(D), -torch.eye(D)]).double()
    surrogate.observe(around, function(around))
    assert float(surrogate.uncertainty(x)) < 0.9 * before


def test_features_make_a_kernel_that_is_one_at_distance_nought() -> None:
    features, (x, _) = features_of(KEYS, 20_000, D, 0.8), data(30)
    rows = features.values(x).double()
    assert (rows @ rows.T - Rbf(0.8).value(torch.cdist(x, x) ** 2)).abs().max() < 5 / math.sqrt(20_000)


def test_the_gradient_by_features_is_that_of_the_predicted_mean() -> None:
    features, (x, y) = features_of(KEYS, 500, D, 1.0), data(40)
    w, at = weights_of(features, x, y, 1e-3), torch.full((D,), 0.4, dtype=torch.float64)
    h, expected = 1e-3, []
    for j in range(D):
        e = torch.zeros(D, dtype=torch.float64)
        e[j] = h
        angles = [features.frequencies.double() @ (at + s * e) + features.phases.double() for s in (1, -1)]
        up, down = (float(features.amplitude * torch.cos(a) @ w) for a in angles)
        expected.append((up - down) / (2 * h))
    found = features.gradient(w, at)
    assert (found - torch.tensor(expected)).abs().max() <= 1e-4 * found.abs().max()


def test_the_gradient_by_features_tends_to_the_exact_one() -> None:
    """As 1/√M: the slope of the error on logarithmic axes, over draws of the features, is −½."""
    (x, y), at, noise = data(40), torch.full((D,), 0.45, dtype=torch.float64), 1e-2
    exact = GradientSurrogate(D, Rbf(1.0), noise, scaling="centre")
    exact.observe(x, y)
    expected, counts, errors = exact.gradient(at), (200, 800, 3200, 12_800), []
    for count in counts:
        found = []
        for seed in range(12):
            features = features_of(Keys.of_seed(seed), count, D, 1.0)
            found.append(features.gradient(weights_of(features, x, y - y.mean(), noise), at) - expected)
        errors.append(math.sqrt(float(torch.stack(found).square().sum(1).mean())))
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -0.65 < slope < -0.4, errors
    assert errors[-1] < 0.05 * float(expected.norm())


def test_weights_by_rows_are_those_of_all_at_once() -> None:
    features, (x, y) = features_of(KEYS, 300, D, 1.0), data(50)
    history = FeatureHistory(features, 1e-4)
    for first in range(0, 50, 10):
        history.append(x[first : first + 10])
    rows = features.values(x).double()
    expected = rows.T @ torch.linalg.solve(rows @ rows.T + 1e-4 * torch.eye(50, dtype=torch.float64), y)
    assert (history.weights(y) - expected).norm() <= 1e-3 * expected.norm()
    assert (weights_of(features, x, y, 1e-4) - expected).norm() <= 1e-3 * expected.norm()


@pytest.mark.parametrize("truth", [0.25, 1.0])
def test_the_length_scale_is_fitted_by_likelihood(truth: float) -> None:
    """Values drawn from a process: the fitted ℓ is the grid's nearest to its own, give or take one step of √2."""
    generator = np.random.default_rng(7)
    x = torch.from_numpy(generator.random((150, 2)))
    covariance = Matern(truth).value(torch.cdist(x, x) ** 2) + 1e-8 * torch.eye(150, dtype=torch.float64)
    y = torch.linalg.cholesky(covariance) @ torch.from_numpy(generator.standard_normal(150))
    surrogate = GradientSurrogate(2, Matern(), 1e-8, Nearest(150), "none", fit_scale=True)
    surrogate.observe(x, y)
    assert truth / 2 <= surrogate.at(x[0]).kernel.scale <= truth * 2


def asked(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = data(count, seed)
    return x.numpy().astype(np.float32), y.numpy()


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: type(w).__name__)
def test_a_history_told_again_says_the_same_to_the_last_bit(window) -> None:
    features = features_of(KEYS, 64, D, 1.0)

    def empty() -> History:
        return History(Surrogate(window=window, noise=1e-6), Transfer(count=64, window=window), features, D)

    history, at = empty(), torch.full((D,), 0.3, dtype=torch.float64)
    for turn in range(3):
        for block in range(4):
            history.observe(*asked(3 + block, 10 * turn + block))
        told = history.to_arrays()
    again = empty()
    again.from_arrays(told)
    assert torch.equal(again.surrogate.gradient(at), history.surrogate.gradient(at))
    assert torch.equal(again.weights(at), history.weights(at))
    again.observe(*asked(5, 99))
    history.observe(*asked(5, 99))
    assert torch.equal(again.surrogate.gradient(at), history.surrogate.gradient(at))
    assert again.bytes == history.bytes > 0
    assert all(new is old for new, old in zip(history.to_arrays(), told, strict=False)), "old arrays stay"


def test_a_factor_made_anew_is_part_of_what_is_told() -> None:
    features = features_of(KEYS, 8, D, 1.0)
    history = History(Surrogate(kernel=Rbf(50.0), noise=1e-18), Transfer(count=8), features, D)
    for _ in range(3):
        history.observe(*asked(8, 0))
    *_, record = history.to_arrays()
    assert [tuple(row) for row in record] == [(r.points, r.jitter) for r in history.surrogate.rebuilds]
    assert len(record)
    history.observe(*asked(4, 1))
    assert len(history.to_arrays()[-1]) == len(history.surrogate.rebuilds) - len(record), "each is told once"


def test_a_cached_history_is_given_once_and_only_for_what_its_client_remembers() -> None:
    features, cache = features_of(KEYS, 8, D, 1.0), SurrogateCache()
    history = History(Surrogate(), Transfer(count=8), features, D)
    history.observe(*asked(4, 0))
    told = history.to_arrays()
    cache.put(3, history)
    assert cache.take(4, told) is None, "another client"
    assert cache.take(3, told) is history
    assert cache.take(3, told) is None, "it is the taker's now"
    cache.put(3, history)
    assert cache.take(3, tuple(array.copy() for array in told)) is history, "the same numbers"
    points, *rest = (array.copy() for array in told)
    points[0, 0] += 1
    for other in ((points, *rest), (), told + told):
        cache.put(3, history)
        assert cache.take(3, other) is None
        assert cache.take(3, told) is None, "what does not fit is dropped"
