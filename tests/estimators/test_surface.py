"""Models of a function that is asked at points of our choice, beside brute force, differences and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.estimators.surface import (
    GradientProcess,
    Plan,
    QuadraticFit,
    Space,
    Trace,
    first_points,
    lowest_within,
    propose,
    quadratic_of,
    stencil,
    step_within,
)
from sampling import mostly_slow

SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed, d, indefinite=False):
    random = np.random.default_rng(seed)
    axes = np.linalg.qr(random.standard_normal((d, d)))[0]
    curvatures = 10 ** random.uniform(-2, 2, d)
    if indefinite:
        curvatures[0] *= -1
    return random, axes @ np.diag(curvatures) @ axes.T


def differences(f, x, h=1e-6):
    return np.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(len(x))])


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.booleans(), st.floats(0.01, 10))
def test_a_step_within_a_ball_is_not_beaten_by_other_points_of_it(seed, indefinite, radius):
    random, hessian = drawn(seed, 4, indefinite)
    gradient = random.standard_normal(4)
    step = step_within(gradient, hessian, radius)
    assert np.linalg.norm(step) <= radius * (1 + 1e-9)

    def value(p):
        return gradient @ p + 0.5 * p @ hessian @ p

    others = random.standard_normal((300, 4))
    others *= (radius * random.uniform(0, 1, 300) ** 0.25 / np.linalg.norm(others, axis=1))[:, None]
    others = np.concatenate([others, step + 1e-3 * others])
    others = others[np.linalg.norm(others, axis=1) <= radius]
    assert value(step) <= min(map(value, others)) + 1e-9 * max(1.0, abs(value(step)))


def quadratic(seed, d):
    random, hessian = drawn(seed, d)
    centre = random.uniform(0.2, 0.8, d)
    return random, centre, lambda x: 3.0 + 0.5 * (x - centre) @ hessian @ (x - centre)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(2, 5))
def test_a_quadratic_is_found_from_as_many_values_as_it_needs(seed, d):
    random, _, f = quadratic(seed, d)
    points = random.uniform(0, 1, (2 * (d + 1) * (d + 2), d))
    fit = QuadraticFit(points, np.array([f(x) for x in points]), np.full(d, 0.5), 0.3)
    x = random.uniform(0, 1, d)
    assert fit.value(x) == pytest.approx(f(x), rel=1e-4)
    assert fit.gradient(x) == pytest.approx(differences(fit.value, x), rel=1e-4, abs=1e-5)
    found, gain = lowest_within(fit, np.full(d, 0.5), 10.0)
    assert f(found) - 3.0 < 1e-4 * (f(np.full(d, 0.5)) - 3.0) + 1e-9
    assert gain == pytest.approx(f(np.full(d, 0.5)) - 3.0, rel=1e-3, abs=1e-8)


def test_standard_errors_of_a_fit_are_those_that_occur():
    """Of many noisy samples: what the fitted value misses the true one by, in its standard errors, is about 1."""
    apart = []
    for seed in range(40):
        random, _, f = quadratic(seed, 3)
        points = random.uniform(0, 1, (60, 3))
        values = np.array([f(x) for x in points])
        noisy = values + 0.1 * values.std() * random.standard_normal(60)
        fit, x = QuadraticFit(points, noisy, np.full(3, 0.5), 0.3), random.uniform(0.3, 0.7, 3)
        apart.append((fit.value(x) - f(x)) / fit.error(x))
    assert 0.6 < np.sqrt(np.mean(np.square(apart))) < 1.7


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.sampled_from([(3, 3), (3, 6), (12, 4)]))
def test_a_process_over_gradients_has_them_and_its_own_derivatives_agree(seed, shape):
    d, m = shape
    random = np.random.default_rng(seed)
    points = 0.5 + 0.2 * random.standard_normal((m, d))
    gradients = np.array([np.sin(3 * x) + x[::-1] for x in points])
    process = GradientProcess(points, gradients)
    scale = np.abs(gradients).max()
    assert process.gradient(points[-1]) == pytest.approx(gradients[-1], abs=1e-9 * scale)
    for x, gradient in zip(points, gradients, strict=True):
        assert process.gradient(x) == pytest.approx(gradient, abs=1e-3 * scale)
    x = points.mean(axis=0)
    assert process.gradient(x) == pytest.approx(differences(process.value, x), abs=1e-5 * scale)
    assert process.hessian(x) == pytest.approx(differences(process.gradient, x), abs=1e-4 * scale)


def test_a_process_over_d_plus_1_gradients_is_a_newton_model_of_a_quadratic():
    random, centre, _ = quadratic(3, 6)
    hessian = np.diag(np.linspace(1.0, 5.0, 6)) + 0.3
    points = centre + 0.1 * random.standard_normal((7, 6))
    process = GradientProcess(points, (points - centre) @ hessian)
    found, _ = lowest_within(process, points[-1], 1.0)
    assert found == pytest.approx(centre, abs=1e-3 * np.abs(points[-1] - centre).max())


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.lists(st.tuples(st.sampled_from([0, 2, 3, 7]), st.booleans()), min_size=1, max_size=5))
def test_points_of_a_space_with_steps_and_choices(seed, kinds):
    """What is lowered is on the steps, and lifting loses nothing; neighbours differ in one coordinate, by one step."""
    steps = tuple(count for count, _ in kinds)
    choices = tuple(i for i, (count, choice) in enumerate(kinds) if count and choice)
    space = Space(len(kinds), steps if any(steps) else (), choices)
    random = np.random.default_rng(seed)
    u = space.lower(random.uniform(-0.5, 1.5, (4, space.lifted)))
    assert ((u >= 0) & (u <= 1)).all()
    assert (space.lower(space.lift(u)) == u).all()
    for i, count in enumerate(steps):
        if count:
            assert u[:, i] * (count - 1) == pytest.approx(np.rint(u[:, i] * (count - 1)))
    around = space.stencil(u[0], 1e-3)
    assert len(around) == space.neighbours
    assert ((around != u[0]).sum(axis=1) == 1).all()
    assert ((around >= 0) & (around <= 1)).all()


def searched(f, space, batches, seed=0):
    """Exchanges of these sizes; all points, all values, what is recommended."""
    random = np.random.default_rng(seed)
    plan = Plan(centre=tuple(space.lift(space.lower(np.full((1, space.lifted), 0.5)))[0].tolist()))
    trace = Trace(np.zeros((0, space.dimension)), np.zeros(0), np.zeros(0, np.int64))
    explicit = first_points(space, space.lower(np.array([plan.centre]))[0], batches[0], random)
    for batch, following in zip(batches, [*batches[1:], batches[-1]], strict=True):
        points, bases = stencil(space, plan, explicit, len(trace.values))
        assert len(points) == batch
        values = np.array([f(x) for x in points])
        trace = Trace(*map(np.concatenate, zip(
            (trace.points, trace.values, trace.bases), (points, values, bases), strict=True
        )))  # fmt: skip
        found = propose(trace, plan, space, following, batch, random)
        plan, explicit = found.plan, found.points
    return trace, found.x


def with_stencils(f, points, gradients, h=1e-8):
    """Explicit points and stencils around the first `gradients` of them: x, values, bases."""
    around = [Space(points.shape[1]).stencil(point, h) for point in points[:gradients]]
    x = np.concatenate([points, *around])
    bases = np.concatenate([np.full(len(points), -1), np.repeat(np.arange(gradients), points.shape[1])])
    return x, np.array([f(u) for u in x]), bases


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(2, 8), st.floats(0, 1e6))
def test_a_quadratic_is_recognised_by_its_values_and_nothing_else_is(seed, d, level):
    random, hessian = drawn(seed, d)
    centre = random.uniform(0.2, 0.8, d)
    points = random.uniform(0, 1, ((d + 1) * (d + 2) // 2, d))

    def f(x, bent=0.0):
        return level + 0.5 * (x - centre) @ hessian @ (x - centre) + bent * (x[0] - 0.3) ** 3

    given_values = with_stencils(f, points, 3)
    found = quadratic_of(*given_values, 0.0, np.eye(d))
    size = np.abs(hessian).max() + level
    assert found is not None
    assert found.hessian(centre) == pytest.approx(hessian, abs=1e-8 * size)
    assert found.gradient(centre) == pytest.approx(np.zeros(d), abs=1e-8 * size)
    assert found.value(points[1]) == pytest.approx(f(points[1]), abs=1e-11 * size)
    assert quadratic_of(*with_stencils(lambda x: f(x, 0.01 * size), points, 3), 0.0, np.eye(d)) is None
    few = with_stencils(f, points[:2], 1)
    assert quadratic_of(*few, 0.0, np.eye(d)) is None  # too few values for all of H


def test_values_along_a_line_or_all_the_same_stop_nobody():
    points = np.linspace(0, 1, 40)[:, None] * np.ones(3)
    found = quadratic_of(points, points.sum(axis=1), np.full(40, -1), 0.0, np.eye(3))
    assert found is not None
    assert found.value(points[7]) == pytest.approx(points[7].sum())
    assert quadratic_of(points, np.ones(40), np.full(40, -1), 0.0, np.eye(3)) is None


@pytest.mark.parametrize(("d", "batch"), [(3, 40), (4, 75), (5, 75), (6, 90)])
def test_a_large_first_exchange_does_not_mislead(d, batch):
    """Its points are corners of a cube, where ‖t‖² is the same: more of them than unknowns, and yet not enough."""
    centre = np.array([0.8, 0.3, 0.6, 0.7, 0.45, 0.25])[:d]
    _, x = searched(lambda x: 100 * float(np.square(x - centre).sum()) + 1.5, Space(d), [batch] * 4)
    assert x == pytest.approx(centre, abs=1e-7)


def ill_conditioned(seed, d, stiff):
    """The first `stiff` of d axes, at random, have a million times the curvature of the others."""
    random = np.random.default_rng(seed)
    axes = np.linalg.qr(random.standard_normal((d, d)))[0]
    centre, curvatures = random.uniform(0.25, 0.75, d), np.where(np.arange(d) < stiff, 1e6, 1.0)
    return lambda x: float(curvatures @ np.square(axes.T @ (x - centre)))


CASES = [(1, [21] * 24), (5, [21] * 24), (1, [125] * 4), (5, [125] * 4)]


@pytest.mark.parametrize(
    ("stiff", "batches"), mostly_slow(CASES, lambda stiff, batches: (stiff == 1) == (len(batches) > 4))
)
def test_an_ill_conditioned_quadratic_is_solved_as_soon_as_its_values_say_what_it_is(stiff, batches):
    for seed in range(3):
        f = ill_conditioned(seed, 20, stiff)
        _, x = searched(f, Space(20), batches, seed)
        assert f(x) < 1e-10, seed  # in the middle it is above 1e4


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.lists(st.integers(1, 12), min_size=2, max_size=9))
def test_batches_of_any_sizes_are_filled_and_what_is_recommended_is_the_best(seed, batches):
    _, _, f = quadratic(seed, 4)
    trace, x = searched(f, Space(4), batches, seed)
    assert f(x) == trace.values.min()
    assert ((trace.points >= 0) & (trace.points <= 1)).all()


@pytest.mark.parametrize(
    "f", [lambda x: 1.0, lambda x: float(x[0]), lambda x: float(x[0] > 0.7), lambda x: 1e99 * x[1]]
)
def test_functions_without_a_minimum_inside_or_without_slopes_stop_nobody(f):
    with np.errstate(all="ignore"):
        trace, x = searched(f, Space(3), [4] * 12)
    assert np.isfinite(trace.points).all()
    assert f(x) == trace.values.min()


def test_a_noisy_function_is_averaged():
    """Little is left of the way to the minimum, in values, and no point is differentiated."""
    _, _, f = quadratic(11, 5)
    noise = np.random.default_rng(1)
    start = f(np.full(5, 0.5)) - 3.0
    trace, x = searched(lambda u: f(u) + 0.1 * start * noise.standard_normal(), Space(5), [6] * 30)
    assert (trace.bases < 0).all()
    assert f(x) - 3.0 < 0.05 * start


def test_whole_numbers_and_options_are_found():
    space = Space(4, (0, 11, 3, 0), (2,))

    def f(u):
        return (u[0] - 0.3) ** 2 + (u[1] - 0.68) ** 2 + (0.5, 0.0, 0.7)[round(2 * u[2])] + (u[3] - u[1]) ** 2

    _, x = searched(f, space, [6] * 14)
    assert (round(10 * x[1]), round(2 * x[2])) == (7, 1)
    assert x[[0, 3]] == pytest.approx([0.3, 0.7], abs=1e-3)
