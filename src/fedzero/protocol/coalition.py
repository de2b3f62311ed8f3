"""Attackers with full knowledge: they find the most harmful value for a round by trying values on the server's rule.

Knowledge (*omniscient*): all honest contributions of the round, the server's whole aggregation (`federation.bound`,
mixers, combiner), and which clients of the round attack. Power: all attackers send one value v.

    v = μ + γ L e,    μ the mean of the honest contributions,    L = ‖μ‖ + the largest ‖h_i − μ‖
    e: −μ/‖μ‖ (inner-product manipulation, Xie et al., UAI 2019), −σ/‖σ‖ with σ the deviations (little is enough,
       Baruch et al., NeurIPS 2019), −sign(μ)/√d: the three of min-max (Shejwalkar and Houmansadr, NDSS 2021)
    harm of v: −⟨μ, outcome of the round⟩

γ is taken from a grid. Above the best γ of the grid lies a limit beyond which the rule gives v less weight; bisection
finds it. There is no randomness, so a run with such attackers resumes and replays to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedzero.directions.terms import F32, F64

GRID: NDArray[np.float64] = 2.0 ** (np.arange(-12, 15) / 2)
"""γ from 1/64 to 128."""
HALVINGS = 8
"""Steps of the bisection between two γ of the grid: its last step is 0.2 % of γ."""


@dataclass(frozen=True)
class Seen:
    """The attackers' knowledge of a round. honest: contributions of all others; outcome: the server's result for the
    round if every attacker sends this value."""

    honest: Sequence[F32]
    outcome: Callable[[F32], F32]


def most_harmful(seen: Seen) -> F32:
    """The value v that turns the round's outcome farthest away from the honest mean."""
    rows = np.stack(seen.honest).astype(np.float64)
    mean = rows.mean(axis=0)
    length = float(np.linalg.norm(mean) + np.linalg.norm(rows - mean, axis=1).max())

    def harm(value: F32) -> float:
        found = -float(mean @ seen.outcome(value).astype(np.float64))
        return found if np.isfinite(found) else -np.inf  # a round that is not finite is not committed

    best, most = within(mean), -np.inf
    for direction in _directions(rows, mean):
        for value, harmed in _along(mean, direction * length, harm):
            if harmed > most:
                best, most = value, harmed
    return best


def within(values: F64 | NDArray[np.float64]) -> F32:
    """The values as float32, clipped to its range: infinite numbers would be refused."""
    largest = float(np.finfo(np.float32).max)
    clipped: F32 = np.clip(values, -largest, largest).astype(np.float32)
    return clipped


def _directions(rows: NDArray[np.float64], mean: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Unit vectors away from the mean."""
    for away in (-mean, -rows.std(axis=0), -np.sign(mean)):
        if norm := float(np.linalg.norm(away)):
            yield away / norm


def _along(
    mean: NDArray[np.float64], step: NDArray[np.float64], harm: Callable[[F32], float]
) -> Iterator[tuple[F32, float]]:
    """Values along a direction with their harm: first the grid, then values closer and closer to the limit."""

    def tried(gamma: float) -> tuple[F32, float]:
        value = within(mean + gamma * step)
        return value, harm(value)

    found = [tried(gamma) for gamma in GRID]
    yield from found
    at = int(np.argmax([harmed for _, harmed in found]))
    accepted, beyond, most = GRID[at], GRID[min(at + 1, len(GRID) - 1)], found[at][1]
    for _ in range(HALVINGS):
        middle = (accepted + beyond) / 2
        value, harmed = tried(middle)
        yield value, harmed
        if harmed > most:
            accepted, most = middle, harmed
        else:
            beyond = middle
