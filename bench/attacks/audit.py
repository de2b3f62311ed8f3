"""An audit of a mechanism by replaying it: does what the attacker sees tell a unit's presence apart more than ε allows?

    python -m bench.attacks.audit              the Gaussian mechanism on scalars at ε = 2, right and with three faults

A unit is the scalars of a turn, (P,). The mechanism is run `count` times with the unit and as often without it; the
attacker's statistic is the projection of what was seen on the unit's direction. The bound is that of
`fedzero.privacy.audit`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from bench.table import show

from fedzero.oracles.contract import F64
from fedzero.privacy.audit import audited
from fedzero.privacy.gaussian import sigma_of

Batched = Callable[[F64, int, np.random.Generator], F64]
"""(units (clients, P), count, generator) → what is seen in `count` independent replays, (count, P)."""
BLOCK = 1 << 13
"""Replays that are made at once: memory, not the result, depends on it."""


def replays(
    mechanism: Batched, with_unit: F64, without_unit: F64, count: int, seed: int = 0
) -> tuple[F64, F64]:  # fmt: skip
    """The attacker's statistic in `count` replays with the unit and in `count` without it. Both are (clients, P); the
    unit's absence is a row of zeros. The direction is that of the largest difference of one row."""
    difference = with_unit - without_unit
    direction = difference[np.argmax(np.linalg.norm(difference, axis=1))]
    direction = direction / np.linalg.norm(direction)
    found = []
    for which, units in enumerate((with_unit, without_unit)):
        generator, blocks = np.random.default_rng((seed, which)), list[F64]()
        for first in range(0, count, BLOCK):
            blocks.append(mechanism(units, min(BLOCK, count - first), generator) @ direction)
        found.append(np.concatenate(blocks))
    return found[0], found[1]


def gaussian(clip: float, sigma: float) -> Batched:
    """Σ_i clip(v_i, C) + N(0, (σC)² I), many times."""

    def mechanism(units: F64, count: int, generator: np.random.Generator) -> F64:
        norms = np.linalg.norm(units, axis=1, keepdims=True)
        total = (units * np.minimum(1, clip / np.maximum(norms, 1e-300))).sum(0)
        return total + generator.normal(0, sigma * clip, (count, units.shape[1]))

    return mechanism


def unclipped(clip: float, sigma: float) -> Batched:
    """A fault: the clip was forgotten."""

    def mechanism(units: F64, count: int, generator: np.random.Generator) -> F64:
        return units.sum(0) + generator.normal(0, sigma * clip, (count, units.shape[1]))

    return mechanism


def repeated(clip: float, sigma: float) -> Batched:
    """A fault: the noise follows from a public key, so the attacker draws it, too, and subtracts it."""
    private = gaussian(clip, sigma)

    def mechanism(units: F64, count: int, generator: np.random.Generator) -> F64:
        seen = private(units, count, np.random.default_rng(1))
        return seen - np.random.default_rng(1).normal(0, sigma * clip, (count, units.shape[1]))

    return mechanism


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=10, help="P")
    given = parser.parse_args()
    sigma = sigma_of(given.epsilon, 1, given.delta)
    unit = np.random.default_rng(3).normal(size=given.size)
    unit *= 100 / np.linalg.norm(unit)  # a canary of a hundred times the clip
    there, gone = unit[None], np.zeros((1, given.size))
    rows = []
    for name, mechanism in (
        ("as claimed", gaussian(1, sigma)),
        ("noise halved", gaussian(1, sigma / 2)),
        ("clip forgotten", unclipped(1, sigma)),
        ("noise of a public key", repeated(1, sigma)),
    ):
        found = audited(*replays(mechanism, there, gone, given.count), given.delta, 0.95).epsilon
        rows.append((name, f"{found:.2f}", "above the claim" if found > given.epsilon else "not above"))
    title = f"ε = {given.epsilon:g}, δ = {given.delta:g}, σ = {sigma:.3f}: bounds by {given.count:,} replays each way"
    show(title, rows, ("mechanism", "ε at least", "verdict"))


if __name__ == "__main__":
    main()
