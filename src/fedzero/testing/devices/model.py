"""The model of a device in NumPy, after docs/device-protocol.md; and the same with one mistake, to find out which one a
device makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from fedzero.directions import Domain, Rule, derive, reference
from fedzero.directions.keys import SHARED
from fedzero.directions.terms import F32
from fedzero.engines.devices.plan import DevicePlan

RIGHT = ""
"""No mistake."""


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


def added(plan: DevicePlan, x: Sequence[Any], terms: Sequence[tuple[int, Any]], wide: bool = False) -> tuple[F32, ...]:
    """x + Σ c z, term by term in float32. wide: c is a float64, and each sum is rounded once."""
    found = []
    for ordinal, tensor in enumerate(x):
        for key, c in terms:
            z = _direction(plan, key, ordinal)
            tensor = (
                (tensor.astype(np.float64) + np.float64(c) * z).astype(np.float32)
                if wide
                else tensor + np.float32(c) * z
            )
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
    "coefficients not rounded": "it does not round coefficients to float32 before they are added (a fused rounding)",
    "not divided by P": "it does not divide by P",
    "directions in reverse": "it adds directions in another order than p = 0, 1, …",
    "same directions in all steps": "it uses the directions of step 0 in all K steps",
    "own directions": "its directions are keyed by its place; they are shared, with −1 in the key",
    "the first step of an update alone": "it folds only the first of the K steps of an update",
    "β′ is 1": "it computes M ← β·M + G, without β′",
    "β′ is 1 − β in float32": "it computes β′ as 1 − β in float32; β′ is the plan's, rounded once",
    "M begins with the first G": "its momentum begins with the first G; M begins at +0, so that the first one is β′·G",
    "no momentum": "it makes plain steps where the rule is MOMENTUM",
    "momentum with fused operations": "it computes momentum with fused multiply-add; each operation is rounded",
}
"""Mistakes of steps, each with what to say."""
