"""What reference loops are made of: a federation of quadratics, directions and estimates in plain NumPy, float64.

Of fedzero these use the keys, the sampling of cohorts and the NumPy direction stream; nothing of the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import small
from msgspec.structs import replace

from fedzero.directions import SHARED, reference
from fedzero.engines.local import LocalClients
from fedzero.model.params import Params
from fedzero.model.updates import Update, decode_update
from fedzero.protocol.altered import Altered
from fedzero.protocol.engine import Arrival
from fedzero.recipe.plan import cohort_of
from fedzero.tasks import Quadratic
from fedzero.testing.trial import Trial

EPS = 2.0**-24
"""Half a unit in the last place of float32: the relative error of one rounding."""
D = 50
SIZES = (33, 17)
"""Two tensors, so that ordinals, slots and the cutting of vectors are put to the test as well."""
NO_TENSOR = 2**32 - 1

Vector = np.ndarray
Function = Callable[[Vector], float]


def bound(mu: float) -> float:
    """How far a float32 run may be from float64, relative to the largest coordinate.

    A probe x + μz is rounded by EPS·|x| a coordinate, hence a slope by about EPS·|x|/μ of itself, and with it every
    step. Descent does not amplify it, and the rounding of x itself, EPS a step, is small beside it. Eight of these are
    several times what is seen, and a hundredth at most of what a wrong factor, index or sign makes.
    """
    return 8 * EPS / mu


@dataclass(frozen=True)
class World:
    """f_i(x; ξ) = ½ Σ_j a_j (x_j − b_ij)² + ⟨ξ, x⟩, written down again."""

    run: Trial
    sizes: tuple[int, ...] = SIZES

    @property
    def keys(self) -> Any:
        return self.run.setup.keys

    @property
    def d(self) -> int:
        return sum(self.sizes)

    @property
    def N(self) -> int:  # noqa: N802
        return self.run.setup.recipe.federation.clients

    @cached_property
    def a(self) -> Vector:
        return np.linspace(1.0, self.run.setup.recipe.task.condition, self.d)

    @cached_property
    def b(self) -> Vector:
        spread = self.run.setup.recipe.task.spread
        return 1.0 + spread * self.keys.generator("quadratic").standard_normal((self.N, self.d))

    def cohort(self, r: int) -> tuple[int, ...]:
        return cohort_of(self.keys, r, self.run.setup.recipe.federation)

    def xi(self, r: int, i: int, k: int | None) -> Vector:
        """The noise of a mini-batch; k = None: all data, no noise."""
        if k is None:
            return np.zeros(self.d)
        return self.run.setup.recipe.task.noise * self.keys.generator("batch", r, k, i).standard_normal(self.d)

    def f(self, r: int, i: int, k: int | None) -> Function:
        a, b, xi = self.a, self.b[i], self.xi(r, i, k)
        return lambda x: 0.5 * a @ (x - b) ** 2 + xi @ x

    def gradient(self, x: Vector, r: int, i: int, k: int) -> Vector:
        return self.a * (x - self.b[i]) + self.xi(r, i, k)

    def z(self, r: int, k: int, p: int, i: int = SHARED, kind: str = "gaussian") -> Vector:
        n = drawn(self.keys.direction(r, k, p, i), self.sizes, kind == "rademacher")
        if kind == "sphere":
            return n * np.sqrt(self.d) / np.linalg.norm(n)
        return n / np.linalg.norm(n) if kind == "unit-sphere" else n

    def v2(self, r: int, k: int, p: int, i: int, tau: int) -> Vector:
        """Coordinates in the subspace of the history: the direction's key, for a tensor that no model has."""
        return reference.gaussian(self.keys.direction(r, k, p, i), NO_TENSOR, tau).astype(np.float64)

    def estimate(self, x: Vector, r: int, i: int, k: int, how: How) -> Vector:
        """(1/P) Σ_p g_p z_p, with the factor d on the unit sphere."""
        f, total = self.f(r, i, None if how.everything else k), np.zeros(self.d)
        for p in range(how.P):
            z = self.z(r, k, p, i, how.kind)
            factor = self.d if how.kind == "unit-sphere" else 1
            total += factor * slope(f, x, z, how.mu, how.central) * z
        return total / how.P


@dataclass(frozen=True)
class How:
    """How estimates are made."""

    P: int = 2
    mu: float = 0.1
    kind: str = "gaussian"
    central: bool = False
    everything: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """The same, in the words of a recipe."""
        return {
            "directions": self.P,
            "radius": self.mu,
            "distribution": self.kind,
            "difference": "central" if self.central else "forward",
            "samples": "all" if self.everything else "batch",
        }

    @property
    def bound(self) -> float:
        """On the unit sphere a coordinate moves by μ/√d only."""
        return bound(self.mu / np.sqrt(D) if self.kind == "unit-sphere" else self.mu)


@lru_cache(maxsize=1 << 14)
def drawn(key: int, sizes: tuple[int, ...], signs: bool) -> Vector:
    """A direction, tensor by tensor; kept, because runs that differ in their settings share directions."""
    draw = reference.rademacher if signs else reference.gaussian
    return np.concatenate([draw(key, t, size) for t, size in enumerate(sizes)]).astype(np.float64)


def slope(f: Function, x: Vector, z: Vector, mu: float, central: bool) -> float:
    if central:
        return (f(x + mu * z) - f(x - mu * z)) / (2 * mu)
    return (f(x + mu * z) - f(x)) / mu


def start() -> Vector:
    """Where the reference runs begin: numbers that float32 and bfloat16 have."""
    return torch.linspace(-1, 1, D).bfloat16().double().numpy()


def params(dtype: torch.dtype = torch.float32, sizes: Sequence[int] = SIZES) -> Params:
    pieces = np.split(start(), np.cumsum(sizes)[:-1])
    return Params({f"w{t}": torch.from_numpy(piece).to(dtype) for t, piece in enumerate(pieces)})


def federation(
    folder: Path, algorithm: Any, dtype: torch.dtype = torch.float32, replicas: bool = False, **options: Any
) -> tuple[Trial, World]:
    """`small` with a model of two tensors that starts at `start()`."""
    options.setdefault("task", Quadratic(dimension=D, condition=4.0, spread=1.0, noise=0.3))
    run = small(folder, algorithm, **options)
    assert run.setup.problem.params.size == D
    run.replica.state = algorithm.init(params(dtype), run.setup.recipe.federation.clients)
    objective, shards = options.get("objective") or run.setup.problem.objective, run.setup.problem.shards
    run.engine = LocalClients(run.replica, objective, shards, False, replicas, run.setup.chain)
    return run, World(run)


def model(run: Trial) -> Vector:
    return run.replica.state.params.vector().double().numpy()


def assert_near(got: Any, expected: Vector, relative: float) -> None:
    """Largest difference, relative to the largest coordinate."""
    scale = np.abs(expected).max()
    assert scale > 0
    error = np.abs(np.asarray(got, np.float64) - expected).max() / scale
    assert error < relative, f"relative error {error:.2e}, allowed {relative:.2e}"


def updates_of(run: Trial) -> list[Update]:
    """The updates of a seeded run, of the rounds that had one."""
    return [decode_update(r.update) for r in run.records if r.update is not None]


class Losing(Altered):
    """Clients of whose replies some get lost: those for which `lost(round, exchange, client)`."""

    def __init__(self, clients: Any, lost: Callable[[int, int, int], bool]):
        def losing(round: int, exchange: int, arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
            gone = RuntimeError("lost")
            return [replace(a, data=gone) if lost(round, exchange, a.client) else a for a in arrivals]

        super().__init__(clients, losing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Listening(Altered):
    """Clients and a note of what passes: (round, exchange, client, instruction, reply)."""

    def __init__(self, clients: Any):
        super().__init__(clients, self._noted)
        self.heard = []

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        self._sent = {client: messages[message] for client, message in which.items()}
        super().send(asked, exchange, messages, which)

    def _noted(self, round: int, exchange: int, arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
        self.heard += [(round, exchange, a.client, self._sent[a.client], a.data) for a in arrivals]
        return arrivals

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def fedzo(world: World, rounds: int, K: int, eta: float, how: How) -> Vector:
    """K steps of every client from the received model; the server averages, a client drawn twice twice."""
    x = start()
    for r in range(rounds):
        x = np.mean(walks(world, r, x, K, eta, how), axis=0)
    return x


def walks(world: Any, r: int, x: Vector, K: int, eta: float, how: Any) -> list[Vector]:
    """Where each client of the cohort of round r ends, K steps from x."""
    ends = []
    for i in world.cohort(r):
        y = x.copy()
        for k in range(K):
            y = y - eta * world.estimate(y, r, i, k, how)
        ends.append(y)
    return ends


def steps_along(world: Any, r: int, x: Vector, along: Sequence[Sequence[Vector]], how: Any, eta: float) -> Any:
    """A round of steps x ← x − (η/P) Σ_p g_p z_p, step k along the P directions along[k]: x after it, with the means of
    the clients' slopes, and these means (K, P). A client goes its own way meanwhile."""
    g = np.zeros((len(along), how.P))
    for i in world.cohort(r):
        y = x.copy()
        for k, z in enumerate(along):
            own = np.array([slope(world.f(r, i, k), y, each, how.mu, how.central) for each in z])
            g[k] += own / len(world.cohort(r))
            y = y - eta / how.P * sum(c * each for c, each in zip(own, z, strict=True))
    for means, z in zip(g, along, strict=True):
        for c, each in zip(means, z, strict=True):
            x = x - eta / how.P * c * each
    return x, g
