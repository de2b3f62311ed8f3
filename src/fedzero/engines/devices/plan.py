"""The binary plan: everything that a device must know of a run, without the recipe's JSON.

What the profile of `fedzero-device/1` does not have is refused here, by name, before a run begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fedzero.directions import VERSION as STREAM
from fedzero.directions import Domain, Rule
from fedzero.errors import FedzeroError
from fedzero.links.clip import Clip
from fedzero.methods.contract import Federation
from fedzero.methods.rules.kernels import Momentum
from fedzero.methods.shared.seeded import SeededMethod
from fedzero.model.schedules import Count, Schedule, rate_at
from fedzero.oracles import ALL_DATA
from fedzero.oracles.portable.running import GraphObjective
from fedzero.recipe.privacy import Privacy
from fedzero.recipe.setup import Setup
from fedzero.tasks.devices import Devices, first_scales

PLAN, PRIVATE_PLAN = 1, 2
"""Versions of the plan: without and with [privacy]. Whoever knows the first one alone refuses the second, and sends
nothing in the clear."""
FLOAT32 = 1
DISTRIBUTIONS = {"gaussian": int(Domain.GAUSSIAN), "rademacher": int(Domain.RADEMACHER), "rank1": int(Domain.RANK1)}
OPTIONAL = "gaussian"
"""The directions that a device need not have."""
DIFFERENCES = {"forward": 1, "central": 2}
BATCHES, ALL = 1, 2
PERCEPTRON, GRAPH = 1, 2
CLIENT = 1
NOISES = {"central": 1, "local": 2}
CLIPPED, NORMALISED = 1, 2


class PlannedTensor(Struct, frozen=True, array_like=True):
    """A tensor, by its ordinal. scale: the magnitude of its first values, 0: the first model is sent; label: the bytes
    that stand before its checksum in the digest of a model."""

    type: int
    shape: tuple[int, ...]
    scale: float
    label: bytes


class PlannedMethod(Struct, frozen=True, array_like=True):
    """rate: η of round 0; hypers: of the rule, for MOMENTUM β and 1 − β; clip: 0 if there is none."""

    distribution: int
    rule: int
    rate: float
    hypers: tuple[float, ...]
    radius: float
    directions: int
    steps: int
    difference: int
    clip: float
    batch: int
    samples: int


class PlannedTask(Struct, frozen=True, array_like=True):
    """mean, deviation: one number, or one for each column."""

    model: int
    widths: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    least_rows: int


class PlannedGraph(Struct, frozen=True, array_like=True):
    """The file that has it."""

    sha256: bytes
    size: int


class PlannedGraphTask(PlannedTask, frozen=True, array_like=True):
    """widths: of a row, and of labels."""

    graph: PlannedGraph


class DevicePlan(Struct, frozen=True, array_like=True):
    """root: of the run's keys; places: N; rounds: R."""

    version: int
    stream: int
    name: str
    root: bytes
    places: int
    rounds: int
    tensors: tuple[PlannedTensor, ...]
    method: PlannedMethod
    task: Any
    """a `PlannedTask` or a `PlannedGraphTask`"""


class PlannedPrivacy(Struct, frozen=True, array_like=True):
    """clip: C; scale: s, a power of two; sigma: the noise multiplier σ; delta: δ."""

    unit: int
    noise: int
    bound: int
    clip: float
    scale: float
    sigma: float
    delta: float


class PrivatePlan(DevicePlan, frozen=True, array_like=True):
    """A plan with [privacy]."""

    privacy: PlannedPrivacy


def plan_of(setup: Setup) -> DevicePlan:
    """The plan of a run, or a sentence with what the profile does not have."""
    check(setup)
    recipe, params = setup.recipe, setup.problem.params
    task, method = recipe.task, recipe.algorithm
    assert isinstance(task, Devices) and isinstance(method, SeededMethod) and isinstance(method.directions, int)
    kernel = method.chain.kernel
    hypers = (kernel.beta, 1 - kernel.beta) if isinstance(kernel, Momentum) else ()
    clip = next((link.norm for link in recipe.filters if isinstance(link, Clip)), 0.0)
    how = PlannedMethod(
        *(DISTRIBUTIONS[method.distribution], int(kernel.kernel), _rate(method, 0), hypers, method.radius),
        *(method.directions, method.local_steps, DIFFERENCES[method.difference], clip, task.batch),
        ALL if method.sample(0) == ALL_DATA else BATCHES,
    )
    sizes = [(tuple(tensor.shape), name) for name, tensor in params.tensors.items()]
    scales = first_scales(params) if recipe.base is None else [0.0] * len(sizes)
    tensors = tuple(
        PlannedTensor(FLOAT32, shape, scale, f"{name}\0float32\0{shape}\0".encode())
        for (shape, name), scale in zip(sizes, scales, strict=True)
    )
    about = _about(task, setup)
    root, places = setup.keys.root, recipe.federation.clients
    given = recipe.name, root, places, recipe.rounds, tensors, how, about
    if not recipe.privacy:
        return DevicePlan(PLAN, STREAM, *given)
    return PrivatePlan(PRIVATE_PLAN, STREAM, *given, _privacy(recipe.privacy, recipe.federation, setup.plan.numbers))


def _privacy(privacy: Privacy, federation: Federation, numbers: int) -> PlannedPrivacy:
    assert isinstance(privacy.sigma, float)
    bound = NORMALISED if privacy.clip == "normalise" else CLIPPED
    scale = float(privacy.mechanism(federation, numbers).grid.scale)
    how = CLIENT, NOISES[privacy.noise], bound
    return PlannedPrivacy(*how, privacy.length, scale, privacy.sigma, privacy.delta_of(federation))


def _about(task: Devices, setup: Setup) -> PlannedTask | PlannedGraphTask:
    rest = task.widths, _column(task.mean), _column(task.deviation), task.labels, task.columns, task.least_rows
    objective = setup.problem.objective
    if isinstance(objective, GraphObjective):
        return PlannedGraphTask(GRAPH, *rest, PlannedGraph(objective.graph.sha256, objective.graph.size))
    return PlannedTask(PERCEPTRON, *rest)


def _column(value: Sequence[float] | float) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value,)


def _rate(method: SeededMethod, round: int) -> float:
    assert not isinstance(method.rate, str)
    schedule: Schedule = method.rate
    return rate_at(schedule, round)


encode = msgspec.msgpack.Encoder().encode


class Rates:
    """The rates of rounds, as they are sent: pairs of a round (u64) and its rate (float64), little-endian, wherever the
    rate of a round differs from that of the one before it in the list; before the first pair it is the plan's."""

    def __init__(self, method: SeededMethod):
        self._method, self._first = method, _rate(method, 0)

    def of(self, rounds: Iterable[int]) -> bytes:
        now, found = self._first, b""
        for round in sorted(rounds):
            rate = _rate(self._method, round)
            if rate != now:
                found += struct.pack("<Qd", round, rate)
                now = rate
        return found


def check(setup: Setup) -> None:
    """Refuse what a device of the profile does not do, or what asks for uniform draws over all places."""
    recipe = setup.recipe
    method, federation = recipe.algorithm, recipe.federation
    if not isinstance(method, SeededMethod) or type(method).client is not SeededMethod.client:
        raise FedzeroError(f"{_no(recipe.algorithm.name)}: devices play decomfl, whose clients send plain slopes")
    plain = type(method).apply is SeededMethod.apply and type(method).direction_keys is SeededMethod.direction_keys
    kernel, rules = method.chain.kernel, method.chain.rules
    rest = () if recipe.privacy else setup.chain.client_links
    chance = bool(recipe.privacy and not recipe.privacy.present)
    refusals = (
        (not isinstance(recipe.task, Devices), "task.kind", "set it to 'devices': rows that stay on devices"),
        (not plain or setup.plan.traits.remembers, f"algorithm.kind = {method.name!r}", "set it to 'decomfl'"),
        (len(rules) > 1, f"algorithm: {rules[0].name!r}", "leave out all rules but sgd or momentum"),
        (kernel.kernel not in (Rule.SGD, Rule.MOMENTUM), f"{kernel.name!r}", "use sgd or momentum"),
        (
            method.distribution not in DISTRIBUTIONS,
            f"{method.distribution!r} directions",
            "use rademacher, rank1 or gaussian",
        ),
        (method.rank > 1, "algorithm.rank", "leave it out"),
        (method.difference not in DIFFERENCES, f"{method.difference!r} differences", "use forward or central"),
        (isinstance(method.directions, Count), "a schedule of directions", "give one number"),
        (any(not isinstance(link, Clip) for link in rest), "a filter that clients apply", "use clip, or none"),
        (len(rest) > 1, "several filters that clients apply", "use one clip"),
        (bool(recipe.gathering), "[gathering]", "leave it out"),
        (chance, "[privacy] that draws units by chance", "who is asked is who is present: set privacy.present = true"),
        (bool(recipe.sampling), "sampling = 'private'", "a cohort of devices is who is present: leave it out"),
        (federation.replacement, "federation.replacement", "leave it out: a cohort is drawn among who is present"),
        (federation.private, "federation.private", "leave it out: devices have no secret in common"),
        (federation.sync, "federation.sync", "leave it out"),
        (federation.pull_after is not None, "federation.pull_after", "leave it out: a gateway sends what is shorter"),
        (not federation.server_model, "federation.server_model = false", "set it to true: devices have no vote"),
        (recipe.engine.attack is not None, "engine.attack", "leave it out"),
        (_factored(setup) and method.distribution != "rank1", "factors for dense directions", FACTORS),
    )
    for holds, what, remedy in refusals:
        if holds:
            raise FedzeroError(f"{_no(what)}: {remedy}")


FACTORS = "export the graph with --points 1, or set algorithm.distribution = 'rank1'"


def _factored(setup: Setup) -> bool:
    objective = setup.problem.objective
    return isinstance(objective, GraphObjective) and any(slot.factored for slot in objective.graph.form.slots)


def _any(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def _no(what: str) -> str:
    return f"fedzero-device/1 does not have {what}"
