"""Simultaneous perturbation: slopes of f along random directions.

    forward   g_p = (f(x + μ z_p) − f(x)) / μ                 P+1 queries (f(x) is shared), bias O(μ)
    central   g_p = (f(x + μ z_p) − f(x − μ z_p)) / 2μ        2P queries, bias O(μ²)
    mean      g_p = (f(x + μ z_p) − mean_q≠p f(x + μ z_q)) / μ    P queries, P ≥ 2

A forward difference contains ½ μ zᵀHz. Its part that is common to all directions, ½ μ tr H, and the error of f(x) are
noise; the mean of the other values instead of f(x) removes both. It is independent of z_p, so the estimate has the
expectation of the forward one; the variance of the other slopes adds the share 1/(P−1) to its variance. So it pays
where curvature is spread over many directions, and saves a query. It is ours.

(1/P) Σ_p g_p z_p estimates ∇f(x); its variance falls as 1/P. On the sphere of radius √d, z = s·n with n gaussian and
s = √d/‖n‖: points and slopes carry the factor s, so that the recorded terms are plain gaussian ones, g·s·n. On the unit
sphere, u = n/‖n‖ and the estimate is (d/μ)(f(x + μu) − f(x)) u: points carry 1/‖n‖ and slopes d/‖n‖.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np

from fedzero.directions import SHARED, Distribution, Keys, Stream, Terms, stream_of
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Points

Difference = Literal["forward", "central", "mean"]
SPHERES = ("sphere", "unit-sphere")
"""Distributions whose points carry a factor that depends on the direction."""


def expect_others(difference: Difference, directions: int) -> None:
    """A mean of the others needs others."""
    if difference == "mean" and directions < 2:
        raise FedzeroError(
            "algorithm.difference = 'mean' compares directions with each other: set algorithm.directions to 2 or more"
        )


def expect_rank(distribution: Distribution, rank: int) -> None:
    """Only directions of rank one can be added up to a rank."""
    if rank > 1 and distribution != "rank1":
        raise FedzeroError(
            f"algorithm.rank = {rank} is for algorithm.distribution = 'rank1'; {distribution} directions have full rank"
        )


@lru_cache(maxsize=1024)
def direction_keys(keys: Keys, round: int, step: int, count: int, client: int = SHARED) -> tuple[int, ...]:
    """Keys of the P directions of a step."""
    return tuple(keys.direction(round, step, p, client) for p in range(count))


@lru_cache(maxsize=256)
def probes(
    directions: tuple[int, ...], scales: tuple[float, ...], radius: float, difference: Difference, stream: Stream
) -> Points:
    """The points to evaluate: x, x + μz_1, … (forward), x + μz_1, x − μz_1, … (central), x + μz_1, … (mean)."""
    offsets = [(key, radius * scale) for key, scale in zip(directions, scales, strict=True)]
    signs = (1, -1) if difference == "central" else (1,)
    points = tuple(Terms.of([key], [sign * mu], stream) for key, mu in offsets for sign in signs)
    first = (Terms.of([], [], stream),) if difference == "forward" else ()
    return Points((directions, scales, radius, difference, stream), first + points)


def scales_of(
    params: Params, directions: tuple[int, ...], distribution: Distribution
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The factors of points and of slopes: √d/‖n‖ both on the sphere, 1/‖n‖ and d/‖n‖ on the unit sphere."""
    if distribution not in SPHERES:
        ones = (1.0,) * len(directions)
        return ones, ones
    norms, d = [params.norm(key) for key in directions], params.size
    if distribution == "sphere":
        scales = tuple(math.sqrt(d) / norm for norm in norms)
        return scales, scales
    return tuple(1 / norm for norm in norms), tuple(d / norm for norm in norms)


def slopes(values: F64, scales: tuple[float, ...], radius: float, difference: Difference) -> tuple[F32, float]:
    """(g_1 … g_P) as float32, raw-term scale included, and the loss at (or around) x."""
    raw = _raw(values, radius, difference)
    loss = float(values[0]) if difference == "forward" else float(values.mean())
    return (raw if _plain(scales) else raw * np.array(scales)).astype(np.float32), loss


def slopes_by_row(values: F64, scales: tuple[float, ...], radius: float, difference: Difference) -> F32:
    """v[i, p], (rows, P) as float32: the same of every row, from its losses (points, rows). Their mean is `slopes`."""
    raw = _raw(values, radius, difference)
    return np.ascontiguousarray((raw if _plain(scales) else raw * np.array(scales)[:, None]).T, np.float32)


def _raw(values: F64, radius: float, difference: Difference) -> F64:
    """Differences of values (points, …) over their distance, (P, …)."""
    found: F64
    if difference == "forward":
        found = (values[1:] - values[0]) / radius
    elif difference == "mean":
        found = (values - values.mean(0)) * (len(values) / (len(values) - 1) / radius)
    else:
        found = (values[0::2] - values[1::2]) / (2 * radius)
    return found


def _plain(scales: tuple[float, ...]) -> bool:
    """Whether all factors are one."""
    return scales.count(1.0) == len(scales)


def points_of(
    params: Params,
    directions: tuple[int, ...],
    radius: float,
    difference: Difference,
    distribution: Distribution,
    rank: int = 1,
) -> tuple[Points, tuple[float, ...]]:
    """Probe points around the parameters, and the scales that `slopes` needs to read them."""
    if distribution not in SPHERES:
        return _plain_points(directions, radius, difference, distribution, rank)
    points, scales = scales_of(params, directions, distribution)
    return probes(directions, points, radius, difference, stream_of(distribution, rank)), scales


@lru_cache(maxsize=256)
def _plain_points(
    directions: tuple[int, ...], radius: float, difference: Difference, distribution: Distribution, rank: int
) -> tuple[Points, tuple[float, ...]]:
    """Without factors, points are the same for all parameters: made once for the clients of a round."""
    ones = (1.0,) * len(directions)
    return probes(directions, ones, radius, difference, stream_of(distribution, rank)), ones


def queries_of(directions: int, difference: Difference) -> int:
    """How many evaluations a step with P directions takes."""
    return {"forward": directions + 1, "central": 2 * directions, "mean": directions}[difference]
