"""How often the client's digit is found among known ones through noise of a budget ε, with thousands of draws.

    python -m bench.attacks.recognition

The strongest attacker of `bench.attacks.inversion` at a pinned model: it has a pool of digits with labels, the client's
among them, knows all other clients' values, and takes the digit whose clipped scalars are nearest to what it sees.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from bench.attacks.digits import Digits
from bench.attacks.inversion import DELTA, EPSILONS, POOL, TARGETS, P, scene
from bench.attacks.seeing import clipped
from bench.table import show

from fedzero.oracles.contract import F64
from fedzero.privacy.gaussian import sigma_of


def rate(pooled: F64, clip: float, sigma: float, trials: int, generator: np.random.Generator) -> float:
    """Share of draws in which the client's digit is nearest. pooled: (turns, P, pool), the clients' first."""
    known = np.concatenate([clipped(turn, clip) for turn in pooled])
    half, right = (known**2).sum(0) / 2, 0
    for target in range(TARGETS):
        seen = known[:, target] + generator.normal(0, sigma * clip, (trials, len(known)))
        right += int(((seen @ known - half).argmax(1) == target).sum())
    return right / (trials * TARGETS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200, help="for each of the clients")
    parser.add_argument("--turns", type=int, nargs="*", default=[1, 31])
    given = parser.parse_args()
    torch.set_num_threads(1)
    at, generator = scene(Digits(), max(given.turns), None), np.random.default_rng(5)
    clip = float(np.median(np.linalg.norm(at.seen.values, axis=1)))
    rows = []
    for epsilon in (64.0, 32.0, 16.0, *EPSILONS):
        rates = [
            rate(at.pooled[:turns], clip, sigma_of(epsilon, turns, DELTA), given.trials, generator)
            for turns in given.turns
        ]
        rows.append(
            (f"{epsilon:g}", f"{1 / sigma_of(epsilon, 1, DELTA):.3f}", *(f"{100 * each:.2f} %" for each in rates))
        )
    title = f"Nearest of {POOL:,}: {given.trials * TARGETS:,} draws, P = {P}; chance {100 / POOL:.2f} %"
    show(title, rows, ("ε", "μ", *(f"{turns} turns" for turns in given.turns)))


if __name__ == "__main__":
    main()
