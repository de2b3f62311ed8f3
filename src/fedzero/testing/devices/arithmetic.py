"""What a device computes, in NumPy, after docs/device-protocol.md; and the same with one mistake, to find out which one
a device makes.

Points are float32, to the bit. Values of f at a point are float64, with a bound of what an evaluation in float32 may
differ: u = 2⁻²⁴, γ_n = n·u/(1 − n·u),

    e_{l+1} = |W_l| e_l + γ_{n+2} (|W_l| (|h_l| + e_l) + |b_l|)          any order of sums, fused or not; relu keeps e
    E(f)    = max over rows: 2 max_j e_L + 4u (2 max_j |h_L| + log labels + 4 labels);   + γ_rows · mean f
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.directions import Domain, Rule, derive, reference
from fedzero.directions.keys import SHARED
from fedzero.directions.spec import VERSION as STREAM
from fedzero.directions.terms import F32
from fedzero.engines.devices.plan import ALL, DIFFERENCES, DevicePlan

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
BATCH = 6
"""The domain of batches."""
U = 2.0**-24
RIGHT = ""
CENTRAL = DIFFERENCES["central"]
assert STREAM == 1


@dataclass(frozen=True)
class State:
    """A model: x and M, flat, by ordinal (M only with momentum)."""

    x: tuple[F32, ...]
    M: tuple[F32, ...] = ()

    def to_bytes(self) -> bytes:
        return b"".join(each.astype("<f4").tobytes() for each in (*self.x, *self.M))


def first(plan: DevicePlan) -> State:
    """±scale."""
    key, sizes = derive(plan.root, "init"), [math.prod(t.shape) for t in plan.tensors]
    x = (reference.rademacher(key, i, n) * np.float32(plan.tensors[i].scale) for i, n in enumerate(sizes))
    return State(tuple(x), _zeros(sizes) if plan.method.rule == Rule.MOMENTUM else ())


def _zeros(sizes: Sequence[int]) -> tuple[F32, ...]:
    return tuple(np.zeros(n, np.float32) for n in sizes)


def state_of(plan: DevicePlan, data: bytes) -> State:
    """The state of a checkpoint."""
    numbers, sizes = np.frombuffer(data, "<f4").astype(np.float32), [math.prod(t.shape) for t in plan.tensors]
    pieces = np.split(numbers, np.cumsum(sizes * (2 if plan.method.rule == Rule.MOMENTUM else 1))[:-1])
    return State(tuple(pieces[: len(sizes)]), tuple(pieces[len(sizes) :]))


def digest(plan: DevicePlan, state: State) -> bytes:
    hasher = blake2b(digest_size=8, person=b"fedzero-model")
    for tensor, x in zip(plan.tensors, state.x, strict=True):
        hasher.update(tensor.label + reference.checksum(x.view(np.uint32)).to_bytes(8, "little"))
    return hasher.digest()


# ---- steps


def keys_of(plan: DevicePlan, round: int, step: int, mistake: str = RIGHT) -> list[int]:
    step = 0 if mistake == "same directions in all steps" else step
    numbers = [(round, step, p, SHARED) for p in range(plan.method.directions)]
    if mistake == "own directions":
        numbers = [(*each[:3], 0) for each in numbers]
    return [derive(plan.root, "direction", *each) for each in numbers]


def _direction(plan: DevicePlan, key: int, ordinal: int) -> F32:
    shape = plan.tensors[ordinal].shape
    n = math.prod(shape)
    columns = n // shape[0] if len(shape) > 1 else 0
    return reference.direction(Domain(plan.method.distribution), key, ordinal, n, columns)


def added(plan: DevicePlan, x: Sequence[F32], terms: Sequence[tuple[int, Any]], wide: bool = False) -> tuple[F32, ...]:
    """x + Σ c z, term by term in float32. wide: c is a float64, and each sum is rounded once."""
    found = []
    for ordinal, tensor in enumerate(x):
        for key, c in terms:
            z = _direction(plan, key, ordinal)
            tensor = (tensor.astype(np.float64) + c * z).astype(np.float32) if wide else tensor + np.float32(c) * z
        found.append(tensor)
    return tuple(found)


def stepped(plan: DevicePlan, state: State, round: int, step: int, rate: float, g: F32, mistake: str = RIGHT) -> State:
    """The state after a step with scalars g (P,)."""
    method, P = plan.method, plan.method.directions
    rate = plan.method.rate if mistake == "the rate of the plan" else rate
    momentum = method.rule == Rule.MOMENTUM and mistake != "no momentum"
    factor, wide = (1.0 if momentum else -rate) / P, g.astype(np.float64)
    c: Any = (factor * wide).astype(np.float32)
    if mistake == "coefficients in float32":
        c = np.float32(factor) * g
    elif mistake == "divided by P at the end":
        c = ((1.0 if momentum else -rate) * wide / P).astype(np.float32)
    elif mistake == "coefficients not rounded":
        c = factor * wide
    elif mistake == "not divided by P":
        c = (factor * P * wide).astype(np.float32)
    terms = list(zip(keys_of(plan, round, step, mistake), c, strict=True))
    if mistake == "directions in reverse":
        terms.reverse()
    unrounded = mistake == "coefficients not rounded"
    if not momentum:
        return State(added(plan, state.x, terms, unrounded), state.M)
    G = added(plan, [np.zeros_like(each) for each in state.x], terms, unrounded)
    return _with_momentum(plan, state, G, rate, mistake)


def _with_momentum(plan: DevicePlan, state: State, G: Sequence[F32], rate: float, mistake: str) -> State:
    eta, (beta, rest) = np.float32(rate), (np.float32(each) for each in plan.method.hypers[:2])
    if mistake == "β′ is 1":
        rest = np.float32(1)
    if mistake == "β′ is 1 − β in float32":
        rest = np.float32(1) - beta
    if mistake == "M begins with the first G" and not any(each.any() for each in state.M):
        M = tuple(G)
    elif mistake == "momentum with fused operations":
        M = tuple(_fused(beta, m, rest * g) for m, g in zip(state.M, G, strict=True))
    else:
        M = tuple(beta * m + rest * g for m, g in zip(state.M, G, strict=True))
    if mistake == "momentum with fused operations":
        return State(tuple(_fused(-eta, m, x) for x, m in zip(state.x, M, strict=True)), M)
    return State(tuple(x - eta * m for x, m in zip(state.x, M, strict=True)), M)


def _fused(a: np.float32, b: F32, c: F32) -> F32:
    return (np.float64(a) * b.astype(np.float64) + c).astype(np.float32)


def followed(
    plan: DevicePlan, state: State, updates: Sequence[tuple[int, bytes, float]], mistake: str = RIGHT
) -> State:
    """The state after updates: (round, scalars, rate)."""
    for round, scalars, rate in updates:
        rows = np.frombuffer(scalars, "<f4").astype(np.float32).reshape(plan.method.steps, -1)
        for step, g in enumerate(rows[:1] if mistake == "the first step of an update alone" else rows):
            state = stepped(plan, state, round, step, rate, g, mistake)
    return state


FOLDING = {
    "the rate of the plan": "it ignores the rates that orders and updates carry, and uses that of the plan",
    "coefficients in float32": "it computes coefficients in float32; (−η/P)·g is a product of float64, rounded once",
    "divided by P at the end": "it computes (−η·g)/P; −η/P is divided first, in float64",
    "coefficients not rounded": "it does not round coefficients to float32 before they are added (a fused rounding)",
    "not divided by P": "it does not divide by P",
    "directions in reverse": "it adds directions in another order than p = 0, 1, …",
    "same directions in all steps": "it uses the directions of step 0 in all K steps",
    "own directions": "its directions are keyed by its place; they are shared, with −1 in the key",
    "the first step of an update alone": "it folds only the first of the K steps of an update",
    "no momentum": "it makes plain steps where the rule is MOMENTUM",
    "β′ is 1": "it computes M ← β·M + G, without β′",
    "β′ is 1 − β in float32": "it computes β′ as 1 − β in float32; β′ is the plan's, rounded once",
    "M begins with the first G": "its momentum begins with the first G; M begins at +0, so that the first one is β′·G",
    "momentum with fused operations": "it computes momentum with fused multiply-add; each operation is rounded",
}
"""Mistakes of steps, each with what to say."""


# ---- a turn


@dataclass(frozen=True)
class Values:
    """f at the points of a step, each with the bound of its error."""

    f: F64
    error: F64


@dataclass(frozen=True)
class Turn:
    """values (K·P,) after clipping, as float64 before they are rounded unless they are clipped; error: the bounds."""

    values: F64
    error: F64
    loss: float
    loss_error: float
    queries: int


def below(words: Any, m: int) -> int:
    while (product := next(words) * m) % 2**32 < (2**32 - m) % m:
        pass
    return int(product >> 32)


def batch(plan: DevicePlan, round: int, step: int, place: int, n: int, mistake: str = RIGHT) -> I64:
    b = plan.method.batch
    if mistake == "all rows" or n <= b or plan.method.samples == ALL:
        return np.arange(n)
    if mistake == "the first rows":
        return np.arange(b)
    numbers = (round, step, place)
    if mistake == "the key of the batch in another order":
        numbers = (step, round, place)
    elif mistake == "the batch of place 0":
        numbers = (round, step, 0)
    elif mistake == "the batch of step 0":
        numbers = (round, 0, place)
    domain: Any = 2 if mistake == "batches of another domain" else BATCH
    key = derive(plan.root, "batch", *numbers)
    four = reference.philox(np.arange(4 * b + 64, dtype=np.uint64), 0, domain, key)
    words, taken = iter(np.stack(four, axis=1).reshape(-1).tolist()), set[int]()
    for j in range(n - b, n):
        t = below(words, j + 1)
        taken.add(j if t in taken else t)
    return np.array(sorted(taken))


def losses(plan: DevicePlan, x: Sequence[F32], rows: F32, labels: I64, mistake: str = RIGHT) -> tuple[float, float]:
    """(f, E(f)) at a point, on rows that are normalised."""
    h, e, last = rows.astype(np.float64), np.zeros(rows.shape), len(x) // 2 - 1
    for layer in range(last + 1):
        W = x[2 * layer].reshape(plan.tensors[2 * layer].shape).astype(np.float64).T
        b, n = x[2 * layer + 1].astype(np.float64), len(W) + 2
        gamma = n * U / (1 - n * U)
        e = e @ abs(W) + gamma * ((abs(h) + e) @ abs(W) + abs(b))
        h = h @ W + b
        if layer < last or mistake == "relu in the last layer":
            h = np.maximum(h, 0)
    top, count = h.max(axis=1), h.shape[1]
    each = top + np.log(np.exp(h - top[:, None]).sum(axis=1)) - h[np.arange(len(labels)), labels]
    errors = 2 * e.max(axis=1) + 4 * U * (2 * abs(h).max(axis=1) + math.log(count) + 4 * count)
    error = float(errors.max()) + len(each) * U / (1 - len(each) * U) * float(abs(each).mean())
    total = each.sum() if mistake == "the sum over rows" else each.mean()
    return float(total), error


def turn(
    plan: DevicePlan,
    state: State,
    rows: tuple[F32, I64],
    place: int,
    round: int,
    rate: float,
    own: F32 | None = None,
    mistake: str = RIGHT,
) -> Turn:
    """The turn of a place. own: the values that a device has sent, unclipped: local steps are then made with them, so
    that the error of a step is no error of the next one."""
    method, values, errors, queries = plan.method, list[F64](), list[F64](), 0
    loss, loss_error = 0.0, 0.0
    central = (method.difference == CENTRAL) != (mistake == "the other difference")
    for step in range(method.steps):
        at = 0 if mistake == "no local steps" else step
        found = _values(plan, state, rows, place, round, step, central, mistake)
        g, error = _slopes(found, method.radius, central, mistake)
        values.append(g)
        errors.append(error)
        queries += len(found.f)
        if not step:
            loss, loss_error = (
                (float(found.f.mean()), float(found.error.max()))
                if central
                else (float(found.f[0]), float(found.error[0]))
            )
        if step + 1 < method.steps and at == step:
            mine = g.astype(np.float32) if own is None else own.reshape(method.steps, -1)[step]
            state = stepped(plan, state, round, step, rate, mine, mistake)
    whole, error = _clipped(np.concatenate(values), np.concatenate(errors), method.clip, method.steps, mistake)
    return Turn(-whole if mistake == "the other sign" else whole, error, loss, loss_error, queries)


def _values(
    plan: DevicePlan,
    state: State,
    rows: tuple[F32, I64],
    place: int,
    round: int,
    step: int,
    central: bool,
    mistake: str,
) -> Values:
    chosen = batch(plan, round, step, place, len(rows[1]), mistake)
    x, y, mu = rows[0][chosen], rows[1][chosen], plan.method.radius
    signs, wide = ((1, -1) if central else (1,)), mistake == "μ not rounded"
    terms = [[(key, s * mu)] for key in keys_of(plan, round, step, mistake) for s in signs]
    points = terms if central else [[], *terms]
    found = [losses(plan, added(plan, state.x, each, wide), x, y, mistake) for each in points]
    return Values(np.array([f for f, _ in found]), np.array([error for _, error in found]))


def _slopes(found: Values, mu: float, central: bool, mistake: str) -> tuple[F64, F64]:
    """Slopes and the bounds of their errors, a rounding to float32 included."""
    f, e = found.f, found.error
    mu = float(np.float32(mu)) if mistake == "divided by the rounded μ" else mu
    g = (f[0::2] - f[1::2]) / (2 * mu) if central else (f[1:] - f[0]) / mu
    if mistake == "slopes in float32":
        s = f.astype(np.float32)
        g = ((s[0::2] - s[1::2]) / np.float32(2 * mu) if central else (s[1:] - s[0]) / np.float32(mu)).astype(float)
    if mistake == "central differences divided by μ":
        g = 2 * g
    error = (e[0::2] + e[1::2]) / (2 * mu) if central else (e[1:] + e[0]) / mu
    return g, error + 2 * U * abs(g)


def _clipped(g: F64, error: F64, norm: float, steps: int, mistake: str) -> tuple[F64, F64]:
    """v · min(1, norm/‖v‖) of v rounded to float32; the bound of the error grows by that of the factor."""
    v = g.astype(np.float32).astype(np.float64)
    if mistake == "clipped step by step":
        return np.concatenate([_clipped(part, part, norm, 1, RIGHT)[0] for part in np.split(v, steps)]), error
    length = float(np.sqrt(np.square(v).sum()))
    if not norm or length <= norm or mistake == "not clipped":
        return (v if norm else g), error
    if mistake == "clipped in float32":
        narrow = v.astype(np.float32)
        size = np.sqrt(np.square(narrow).sum(dtype=np.float32))
        return (narrow * np.float32(np.float32(norm) / size)).astype(np.float64), error
    if mistake == "divided by the length first":
        return v / length * norm, error
    scale = norm / length
    return v * scale, error * scale + abs(v) * scale * float(np.sqrt(np.square(error).sum())) / length + 2 * U * norm


TURNS = {
    "the other sign": "the slopes have the other sign",
    "the other difference": "it makes the other kind of difference: forward for central, or central for forward",
    "central differences divided by μ": "it divides central differences by μ; they are divided by 2μ",
    "not clipped": "it does not clip",
    "clipped step by step": "it clips each step; all K·P numbers are clipped as one vector",
    "clipped in float32": "it clips in float32; ‖g‖ and the products with c/‖g‖ are float64, rounded once",
    "divided by the length first": "it computes (g/‖g‖)·c; c/‖g‖ is divided first",
    "μ not rounded": "it does not round μ before it is added to the model; the points are x + μ_s z with μ_s in float32",
    "divided by the rounded μ": "it divides by μ rounded to float32; slopes are divided by the float64 of the plan",
    "slopes in float32": "it subtracts and divides in float32; slopes are float64, rounded once",
    "no local steps": "it takes no local step between the K steps",
    "the key of the batch in another order": "the numbers in the key of its batch are not in the order round, step, place",
    "the batch of place 0": "the key of its batch has the place 0, and not its own",
    "the batch of step 0": "it uses the batch of step 0 in all K steps",
    "batches of another domain": "the words of its batches are not of domain 6",
    "all rows": "it evaluates all rows, and not the batch",
    "the first rows": "it takes the first rows as its batch",
    "the sum over rows": "its loss is the sum over rows, and not the mean",
    "relu in the last layer": "it has a relu in the last layer",
}
"""Mistakes of turns, each with what to say."""
