"""Where to ask a function next: wide exchanges that find where it is low on the whole, then descents by gradients.

An *exchange* is a batch of points that are asked at the same time. It has explicit points, and around the first of them
stencils for forward differences. What is next follows from all values so far and a short plan:

    wide     a centre and points s√d around it in random directions. A quadratic is fitted to all wide points (ripples
             and noise are averaged out); its minimiser is the next centre, and s falls. It ends where the quadratic
             foretold the values of an exchange, where it promises less than its own error, or after `WIDE` exchanges.
    local    a trial point and its gradient by differences. A Gaussian process of all gradients of the descent (see
             gradients.py) is minimised within a trust region around the best: the next trial point. A descent that has
             converged is followed by a wide exchange around the minimiser of the quadratic, and another descent.

Where all values so far are those of one quadratic, to rounding (see exact.py), the next trial point is its minimiser.

A function that gives two values at one point is *noisy*, and never differentiated: exchanges stay wide, s falls only as
far as the quadratic still rises by `SIGNAL` deviations of the noise between the centre and the other points, and the
minimiser of the quadratic is what is recommended.

A point may have no value: F is +inf where it is not defined, and NaN where nobody knows, because somebody did not
answer. Such a point is never the best one. Quadratics take the largest value so far for +inf, and leave NaN out. At a
trial point either is a broken promise. A gradient of which some differences are missing has those of the nearest point
in their place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fedzero.estimators.surface.exact import ExactQuadratic, quadratic_of
from fedzero.estimators.surface.gradients import GradientProcess
from fedzero.estimators.surface.quadratic import QuadraticFit
from fedzero.estimators.surface.space import Space
from fedzero.estimators.surface.trust_region import F64, lowest_within

I64 = NDArray[np.int64]

WIDE, SCALE, SHRINK, NARROWEST = 3, 0.25, 0.6, 0.02
"""Wide exchanges before a descent; s at first, how it falls, and where it begins anew."""
FORETOLD = 0.1
"""Error of a quadratic that foretells values, of their deviation."""
MOST_FITTED, MOST_GRADIENTS = 400, 25
RADII = (1.0, 0.3, 3.0, 0.1, 10.0)
"""Where there is room for several trial points: their trust regions, of the plan's."""
STEP, ROUGH = 1e-8, 1e-3
"""Of differences: the least, and the largest (noise that asks for more is left to wide exchanges)."""
SIGNAL = 2.0
PLENTY = 1.25
"""Values for each coefficient of a quadratic that wide exchanges are not to exceed."""
RIPPLED, SHORT, GIVEN_UP = 3, 1.0, 1_000_000
"""A descent is given up, once, after so many trial points that break the promise of the gradients, if these are
correlated over no more than so many times the way it has come."""
FRUITLESS = 4
"""Exchanges of a descent without any value, after which it is given up."""
EPSILON = float(np.finfo(np.float64).eps)


class Plan(Struct, frozen=True, array_like=True):
    """What the next exchange is for.

    centre: of wide exchanges, (D,); scale: s; exchanges: wide ones so far; since: the first point of this phase.
    incumbent: number of the best point of a descent, −1 before its first exchange; radius: of its trust region.
    predicted: by how much F is to fall at each trial point, or the values that a quadratic foretells.
    h: of differences; 0 where the function is noisy. trials: how many explicit points are trial points of a descent,
    stencils: how many of these have one. failures: trial points so far at which F was not lower as promised.
    estimate: of a noisy function, F at the point recommended and its standard error.
    """

    centre: tuple[float, ...]
    mode: str = "wide"
    scale: float = SCALE
    exchanges: int = 0
    since: int = 0
    incumbent: int = -1
    radius: float = 0.0
    predicted: tuple[float, ...] = ()
    h: float = STEP
    trials: int = 0
    stencils: int = 0
    failures: int = 0
    estimate: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """All points so far (n, d), F there (n,), +inf or NaN where it has no value, and of which point each is a neighbour
    (n,), or −1."""

    points: F64
    values: F64
    bases: I64


@dataclass(frozen=True, eq=False)
class Proposal:
    """The next plan with its explicit points (k, d); x (d,): the point to recommend now."""

    plan: Plan
    points: F64
    x: F64


def first_points(space: Space, centre: F64, batch: int, random: np.random.Generator) -> F64:
    """The centre, twice if there is room, and ±s in all coordinates; (batch, d). The same bits on every machine."""
    rows = [centre, centre][: 2 if batch > 2 else 1]
    lifted = space.lift(centre[None])[0]
    while len(rows) < batch:
        signs = 2.0 * random.integers(0, 2, space.lifted) - 1.0
        rows.append(space.lower((lifted + SCALE * signs)[None])[0])
    return np.array(rows[:batch])


def stencil(space: Space, plan: Plan, explicit: F64, count: int) -> tuple[F64, I64]:
    """All points of an exchange (batch, d), explicit ones first, and whose neighbours they are, −1 or from `count`."""
    points, bases = [explicit], [np.full(len(explicit), -1)]
    for i in range(plan.stencils):
        points.append(space.stencil(explicit[i], plan.h))
        bases.append(np.full(space.neighbours, count + i))
    return np.concatenate(points), np.concatenate(bases).astype(np.int64)


def propose(trace: Trace, plan: Plan, space: Space, batch: int, last: int, random: np.random.Generator) -> Proposal:
    """What to ask after a trace whose last exchange had `last` points."""
    search = _Search(trace, space, batch, len(trace.values) - last, random)
    if not search.known.any():
        return search.blind(plan)
    return search.after_wide(plan) if plan.mode == "wide" else search.after_local(plan)


class _Search:
    """One exchange's worth of thought; nothing is kept."""

    def __init__(self, trace: Trace, space: Space, batch: int, fresh: int, random: np.random.Generator):
        self.trace, self.space, self.batch, self.fresh, self.random = trace, space, batch, fresh, random
        self.x, self.bases = space.lift(trace.points), trace.bases
        self.known, self.nowhere = np.isfinite(trace.values), np.isposinf(trace.values)
        self.y = np.where(self.known, trace.values, np.inf)
        self.best = int(np.argmin(self.y))

    @property
    def _room(self) -> int:
        """How many trial points an exchange has room for, with stencils if that is possible."""
        stencils = self.batch // (1 + self.space.neighbours)
        return min(len(RADII), stencils or self.batch)

    @property
    def _across(self) -> float:
        """The unit box's diagonal."""
        return math.sqrt(self.space.lifted)

    def blind(self, plan: Plan) -> Proposal:
        """Nothing is known: anywhere in the box, and some times at the centre, unless F is not defined there."""
        points = self.space.lower(self.random.random((self.batch, self.space.lifted)))
        centre = self.space.lower(np.array(plan.centre)[None])[0]
        asked = (self.trace.points == centre).all(axis=1)
        if not (asked & self.nowhere).any() and np.count_nonzero(asked) < 2 * FRUITLESS:
            points[: 2 if self.batch > 2 else 1] = centre
        following = replace(plan, mode="wide", predicted=(), trials=0, stencils=0)
        return Proposal(following, points, self.trace.points[0])

    def after_wide(self, plan: Plan) -> Proposal:
        plan = replace(plan, exchanges=plan.exchanges + 1)
        if (self.fresh == 0 and len(self.y) > 2) or self._noise_was_unknown:
            plan = replace(plan, h=self._step_of_differences())
        fit, lowest, gain = self._fitted(plan)
        foretold = plan.predicted and self._missed(plan) < FORETOLD
        if not plan.h:
            return self._noisy(plan, fit, lowest)
        coefficients = (self.space.lifted + 1) * (self.space.lifted + 2) // 2
        known = np.count_nonzero((self.bases < 0) & self.known) > PLENTY * coefficients
        exact = self._exact(plan, fit.hessian(lowest))
        if exact is not None and self.batch > self.space.neighbours:
            return self._descend(plan, lowest_within(exact, exact.centre, self._across)[0])
        enough = bool(foretold) or gain < fit.sigma or plan.exchanges >= WIDE or known
        if enough and self.batch > self.space.neighbours:
            here = np.arange(len(self.y)) >= plan.since
            found = int(np.argmin(np.where(here & (self.bases < 0), self.y, np.inf)))
            start = lowest if foretold or fit.value(lowest) < self.y[found] else self.x[found]
            return self._descend(plan, start)
        narrower = replace(plan, centre=tuple(lowest.tolist()), scale=self._narrowed(plan))
        return self._wide(narrower, fit, self.trace.points[self.best])

    def _step_of_differences(self) -> float:
        """√(noise/range): errors of the value and of the curvature then weigh alike. 0: too noisy."""
        y = self.y[self.known]
        span, digits = float(np.ptp(y)), EPSILON * float(np.abs(y).max())
        noise = max(self._repeated() or 0.0, digits)
        h = max(STEP, math.sqrt(noise / span)) if span else STEP
        return h if h < ROUGH else 0.0

    def _repeated(self, before: int | None = None) -> float | None:
        """By how much two values at one point differ, of the first point that has two; None if there is none."""
        first: dict[bytes, int] = {}
        for i in np.flatnonzero(self.known[:before] & (self.bases[:before] < 0)):
            j = first.setdefault(self.trace.points[i].tobytes(), int(i))
            if j != i:
                return abs(float(self.y[j] - self.y[i]))
        return None

    @property
    def _twice_lost(self) -> bool:
        """The start was asked twice, and does not have two values."""
        twice = len(self.y) > 2 and bool((self.x[0] == self.x[1]).all())
        return twice and not self.known[:2].all()

    @property
    def _noise_was_unknown(self) -> bool:
        """Before this exchange."""
        return self._twice_lost and self._repeated(self.fresh) is None

    def _fitted(self, plan: Plan) -> tuple[QuadraticFit, F64, float]:
        """A quadratic around the centre, where it is lowest within reach, and by how much."""
        centre, usable = np.array(plan.centre), self.known | self.nowhere
        wide = np.flatnonzero((self.bases < 0) & usable)
        wide = wide if self.known[wide].any() else np.flatnonzero(usable)
        y = np.where(self.known, self.y, self.y[self.known].max())
        near = np.argsort(np.square(self.x[wide] - centre).sum(axis=1), kind="stable")[:MOST_FITTED]
        fit = QuadraticFit(self.x[wide[near]], y[wide[near]], centre, plan.scale)
        lowest, gain = lowest_within(fit, centre, plan.scale * math.sqrt(self.space.lifted))
        return fit, self._snapped(lowest), gain

    def _exact(self, plan: Plan, guess: F64) -> ExactQuadratic | None:
        """The quadratic that all values are of, if there is one; guess: of its curvatures.

        Not after the first exchange: its points have the same squares of all coordinates, so that their values do not
        tell the curvatures along them apart.
        """
        if not plan.h or self.space.discrete or not self.fresh:
            return None
        of_base = (self.bases < 0) | self.known[self.bases]
        kept = np.flatnonzero(self.known & of_base)
        if not len(kept):
            return None
        places = np.full(len(self.y) + 1, -1)  # the last one is where −1 leads
        places[kept] = np.arange(len(kept))
        noise = self._repeated() if (self.x[0] == self.x[1]).all() else None
        return quadratic_of(self.x[kept], self.y[kept], places[self.bases[kept]], noise or 0.0, guess)

    def _missed(self, plan: Plan) -> float:
        """How far what the last quadratic foretold is from what came, of the values' deviation."""
        known = self.known[self.fresh :]
        came = self.y[self.fresh :][known]
        if len(came) < min(2, len(known)):
            return math.inf
        apart = float(np.square(came - np.array(plan.predicted)[known]).mean())
        return math.sqrt(apart) / max(float(came.std()), math.sqrt(np.finfo(np.float64).tiny))

    def _narrowed(self, plan: Plan) -> float:
        return plan.scale * SHRINK if plan.scale * SHRINK > NARROWEST else SCALE

    def _noisy(self, plan: Plan, fit: QuadraticFit, lowest: F64) -> Proposal:
        bent = max(float(np.trace(fit.hessian(lowest))), np.finfo(np.float64).tiny)
        least = math.sqrt(2 * SIGNAL * fit.sigma / bent)
        inside = np.linalg.norm(lowest - fit.centre) < 0.9 * fit.unit
        scale = min(max(plan.scale * SHRINK, least), SCALE) if inside else plan.scale
        centre, estimate = tuple(lowest.tolist()), (fit.value(lowest), fit.error(lowest))
        following = replace(plan, centre=centre, scale=scale, estimate=estimate)
        if self._defined_near(lowest):
            return self._wide(following, fit, self.space.lower(lowest[None])[0])
        best = self.x[self.best]
        following = replace(following, estimate=(fit.value(best), fit.error(best)))
        return self._wide(following, fit, self.trace.points[self.best])

    def _defined_near(self, point: F64) -> bool:
        """Whether F has a value at the nearest point at which that is known."""
        usable = np.flatnonzero(self.known | self.nowhere)
        nearest = usable[np.argmin(np.square(self.x[usable] - point).sum(axis=1))]
        return bool(self.known[nearest])

    def _wide(self, plan: Plan, fit: QuadraticFit, x: F64) -> Proposal:
        points = self.space.lower(self._around(np.array(plan.centre), plan.scale, self.batch))
        if self.batch > 2 and self._twice_lost and self._repeated() is None:
            points[1] = points[0]
        foretold = tuple(fit.value(point) for point in self.space.lift(points))
        return Proposal(replace(plan, mode="wide", predicted=foretold, trials=0, stencils=0), points, x)

    def _around(self, centre: F64, scale: float, count: int) -> F64:
        """The centre, and points at a distance of s√D along rows of random rotations, (count, D)."""
        rows, dimensions = [centre], self.space.lifted
        while len(rows) < count:
            rotation = np.linalg.qr(self.random.standard_normal((dimensions, dimensions)))[0]
            rows += list(centre + scale * math.sqrt(dimensions) * rotation)
        return np.array(rows[:count])

    def _snapped(self, point: F64) -> F64:
        return np.asarray(self.space.lift(self.space.lower(point[None]))[0])

    def _descend(self, plan: Plan, start: F64) -> Proposal:
        radius = 0.2 * min(1.0, plan.scale * math.sqrt(self.space.lifted))
        begun = replace(plan, mode="local", since=len(self.y), incumbent=-1, radius=radius)
        apart = radius / math.sqrt(self.space.lifted)
        return self._trial(begun, [start, *self._around(start, apart, self._room)[1:]], ())

    def _trial(self, plan: Plan, trials: list[F64], predicted: tuple[float, ...]) -> Proposal:
        """The trial points with as many stencils as there is room for; what is left goes around the first one."""
        trials = trials[: self.batch]
        stencils = min(len(trials), (self.batch - len(trials)) // self.space.neighbours)
        left = self.batch - len(trials) - stencils * self.space.neighbours
        more = self._around(trials[0], plan.scale * SHRINK, 1 + left)[1:]
        points = self.space.lower(np.concatenate([np.array(trials), more]))
        following = replace(plan, predicted=predicted, trials=len(trials), stencils=stencils)
        return Proposal(following, points, self.trace.points[self.best])

    def after_local(self, plan: Plan) -> Proposal:
        low = self.fresh + int(np.argmin(self.y[self.fresh :]))
        plan = self._judged(plan)
        if not self.known[-FRUITLESS * self.batch :].any():
            return self._restart(plan)
        if plan.incumbent < 0 and not self.known[low]:
            return self._descend(plan, self.x[self.best])
        if plan.incumbent < 0 or (self._bare(plan, low) and self.y[low] < self.y[plan.incumbent]):
            gain = 0.0 if plan.incumbent < 0 else float(self.y[plan.incumbent] - self.y[low])
            return self._trial(plan, [self.x[low]], (gain,))  # no gradient is known where it is lowest
        if not self._differences(plan.incumbent).any():
            here = self.x[plan.incumbent]
            asked = np.count_nonzero((self.x == here).all(axis=1))
            return self._restart(plan) if asked > 1 else self._trial(replace(plan, incumbent=-1), [here], ())
        x, gradients = self._gradients(plan)
        here, room = self.x[plan.incumbent], self._room
        if len(x) == 1:
            slope = gradients[-1]
            steps = [plan.radius * each for each in RADII[:room]]
            length = max(float(np.linalg.norm(slope)), np.finfo(np.float64).tiny)
            trials = [np.clip(here - step * slope / length, 0.0, 1.0) for step in steps]
            predicted = [float(slope @ (here - trial)) for trial in trials]
        else:
            process = GradientProcess(x, gradients)
            if RIPPLED <= plan.failures < GIVEN_UP and process.scale <= SHORT:
                return self._restart(replace(plan, failures=GIVEN_UP), WIDE)  # look at F from further away
            gradients = gradients - self._bias(plan, x, process)
            process = GradientProcess(x, gradients, (process.scale,))
            found = [self._lowest(process, here, plan.radius * each) for each in RADII[:room]]
            exact = self._exact(plan, process.hessian(here))
            if exact is not None:
                found[0] = lowest_within(exact, here, self._across)
            trials, predicted = [trial for trial, _ in found], [gain for _, gain in found]
        trials = [self._snapped(trial) for trial in trials]
        moved = float(np.linalg.norm(trials[0] - here))
        if moved < 1e-12 or plan.radius < 1e-10 or predicted[0] < 4 * EPSILON * abs(self.y[plan.incumbent]):
            return self._restart(plan)
        return self._trial(plan, trials, tuple(predicted))

    def _bare(self, plan: Plan, point: int) -> bool:
        """No gradient is known there, nor next to it: a step or an option away is not next to it."""
        if self.fresh <= point < self.fresh + plan.stencils:
            return not self._differences(point).any()
        base = int(self.bases[point])
        return base < 0 or not self.known[base] or bool((self.x[point] != self.x[base])[self.space.stepped].any())

    def _differences(self, centre: int) -> NDArray[np.bool_]:
        """Which points are neighbours of a point, and have values as it has, (n,)."""
        return np.asarray((self.bases == centre) & self.known & self.known[centre])

    def _lowest(self, process: GradientProcess, here: F64, radius: float) -> tuple[F64, float]:
        """Where a model is lowest; where coordinates have steps, these are rounded and the others follow."""
        trial, gain = lowest_within(process, here, radius)
        if not self.space.discrete:
            return trial, gain
        trial, _ = lowest_within(process, self._snapped(trial), radius, self.space.stepped)
        return trial, process.value(here) - process.value(trial)

    def _judged(self, plan: Plan) -> Plan:
        """The best trial point is the incumbent if it is lower; the trust region follows how well F was foretold."""
        if not plan.stencils:
            return plan
        trials = np.arange(self.fresh, self.fresh + plan.stencils)
        best = int(trials[np.argmin(self.y[trials])])
        if plan.incumbent < 0:
            return replace(plan, incumbent=best) if self.known[best] else plan
        gain = float(self.y[plan.incumbent] - self.y[best])
        promised = max(plan.predicted[best - self.fresh], np.finfo(np.float64).tiny)
        step = float(np.linalg.norm(self.x[best] - self.x[plan.incumbent]))
        radius = plan.radius * RADII[best - self.fresh]
        failures = plan.failures + (gain < 0.1 * promised)
        if gain < 0.1 * promised:
            radius = 0.35 * min(radius, step)
        elif gain > 0.6 * promised and step > 0.8 * radius:
            radius *= 2.5
        incumbent = best if gain > 0 else plan.incumbent
        return replace(plan, radius=radius, incumbent=incumbent, failures=failures)

    def _gradients(self, plan: Plan) -> tuple[F64, F64]:
        """Points of this descent that have a stencil, the incumbent last and the farthest first; gradients there. Each
        point once: a process is singular at two that are the same."""
        differences = (self.bases >= plan.since) & self.known & self.known[self.bases]
        centres = np.unique(self.bases[differences])
        apart = np.square(self.x[centres] - self.x[plan.incumbent]).sum(axis=1)
        nearest = np.argsort(apart, kind="stable")
        first = {self.x[centre].tobytes(): centre for centre in centres[nearest][::-1]}
        centres = np.array([*first.values()])[-MOST_GRADIENTS:]
        return self.x[centres], _completed(np.array([self._gradient(int(centre)) for centre in centres]))

    def _gradient(self, centre: int) -> F64:
        """By differences, NaN where one is missing; of options the least gradient that explains them."""
        around = self._differences(centre)
        steps, rises = self.x[around] - self.x[centre], self.y[around] - self.y[centre]
        if self.space.choices:
            return np.asarray(np.linalg.lstsq(steps, rises, rcond=None)[0])
        slopes = np.full(self.space.lifted, np.nan)
        slopes[np.abs(steps).argmax(axis=1)] = rises / steps.sum(axis=1)  # each step is along one coordinate
        return slopes

    def _bias(self, plan: Plan, x: F64, process: GradientProcess) -> F64:
        """½ h ∂²F: what forward differences add to the gradients, (m, d)."""
        if self.space.discrete:
            return np.zeros_like(x)
        signs = np.where(x + plan.h > 1, -1.0, 1.0)
        return np.array([0.5 * plan.h * s * np.diag(process.hessian(each)) for s, each in zip(signs, x, strict=True)])

    def _restart(self, plan: Plan, exchanges: int = 1) -> Proposal:
        fit, lowest, _ = self._fitted(plan)
        again = replace(
            plan,
            centre=tuple(lowest.tolist()),
            scale=self._narrowed(plan),
            exchanges=WIDE - exchanges,
            since=len(self.y),
        )
        return self._wide(again, fit, self.trace.points[self.best])


def _completed(gradients: F64) -> F64:
    """Slopes (m, d) with those of the next point that has one in the place of NaN, or the last one's; or 0."""
    full = gradients.copy()
    for i, j in np.argwhere(np.isnan(gradients)):
        others = np.flatnonzero(np.isfinite(gradients[:, j]))
        full[i, j] = gradients[others[np.argmin(np.abs(others - i))], j] if len(others) else 0.0
    return full
