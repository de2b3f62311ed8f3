"""A turn of a device in NumPy, after docs/device-protocol.md; and the same with one mistake.

Points are float32, to the bit. Values of f at a point are float64, with a bound of what an evaluation in float32 may
differ: u = 2⁻²⁴, γ_n = n·u/(1 − n·u),

    e_{l+1} = |W_l| e_l + γ_{n+2} (|W_l| (|h_l| + e_l) + |b_l|)          any order of sums, fused or not; relu keeps e
    E(f)    = max over rows: 2 max_j e_L + 4u (2 max_j |h_L| + log labels + 4 labels);   + γ_rows · mean |f|
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.directions import derive, reference
from fedzero.directions.terms import F32
from fedzero.engines.devices.plan import ALL, DIFFERENCES, DevicePlan
from fedzero.testing.devices.model import RIGHT, State, added, keys_of, stepped

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
BATCH, RADEMACHER = 6, 2
"""Domains."""
U = 2.0**-24
CENTRAL = DIFFERENCES["central"]


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


def below(words: Iterator[int], m: int) -> int:
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
    domain: Any = RADEMACHER if mistake == "batches of another domain" else BATCH
    key = derive(plan.root, "batch", *numbers)
    four = reference.philox(np.arange(4 * b + 64, dtype=np.uint64), 0, domain, key)
    words, taken = iter(np.stack(four, axis=1).reshape(-1).tolist()), set[int]()
    for j in range(n - b, n):
        t = below(words, j + 1)
        taken.add(j if t in taken else t)
    return np.array(sorted(taken))


def losses(plan: DevicePlan, x: Sequence[Any], rows: F32, labels: I64, mistake: str = RIGHT) -> tuple[float, float]:
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
    kept = state.x if mistake != "points in float64" else [each.astype(np.float64) for each in state.x]
    found = [losses(plan, added(plan, kept, each, wide), x, y, mistake) for each in points]
    return Values(np.array([f for f, _ in found]), np.array([error for _, error in found]))


def _slopes(found: Values, mu: float, central: bool, mistake: str) -> tuple[F64, F64]:
    """Slopes and the bounds of their errors, a rounding to float32 included."""
    f, e = found.f, found.error
    mu = float(np.float32(mu)) if mistake == "divided by the rounded μ" else mu
    g = (f[0::2] - f[1::2]) / (2 * mu) if central else (f[1:] - f[0]) / mu
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
    scale = norm / length
    return v * scale, error * scale + abs(v) * scale * float(np.sqrt(np.square(error).sum())) / length + 2 * U * norm


TURNS = {
    "the other sign": "the slopes have the other sign",
    "the other difference": "it makes the other kind of difference: forward for central, or central for forward",
    "central differences divided by μ": "it divides central differences by μ; they are divided by 2μ",
    "not clipped": "it does not clip",
    "clipped step by step": "it clips each step; all K·P numbers are clipped as one vector",
    "clipped in float32": "it clips in float32; ‖g‖ and the products with c/‖g‖ are float64, rounded once",
    "μ not rounded": "it does not round μ before it is added; the points are x + μ_s z with μ_s in float32",
    "points in float64": "its points x + μ_s z are not rounded to float32",
    "divided by the rounded μ": "it divides by μ in float32; it is the float64 of the plan, and g is rounded once",
    "no local steps": "it takes no local step between the K steps",
    "the key of the batch in another order": "the key of its batch is not of round, step, place, in this order",
    "the batch of place 0": "the key of its batch has the place 0, and not its own",
    "the batch of step 0": "it uses the batch of step 0 in all K steps",
    "batches of another domain": "the words of its batches are not of domain 6",
    "all rows": "it evaluates all rows, and not the batch",
    "the first rows": "it takes the first rows as its batch",
    "the sum over rows": "its loss is the sum over rows, and not the mean",
    "relu in the last layer": "it has a relu in the last layer",
}
"""Mistakes of turns, each with what to say."""
