"""How fast noise is drawn, what the accountant says for settings of interest, and what an audit of real noise finds.

    python -m bench.privacy.accounting [replays of each kind, default 100000]

The accountant's part needs the extra `privacy`.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from fractions import Fraction

import numpy as np
from bench.table import best

from fedzero.privacy import accounting, audit, gaussian, renyi
from fedzero.privacy.integers import choose_grid, clipped, quantised
from fedzero.privacy.noise import discrete_gaussian, rounded_gaussian

DRAWS = 1_000
Q = 512 / 65_800
DELTA = 1e-5


def samplers() -> None:
    print(f"\n| {DRAWS:,} draws | rounded Gaussian | discrete Gaussian |\n|---|---|---|")
    for name, sigma in (("1", 1.0), ("2²⁰", 2.0**20), ("2⁴⁰", 2.0**40)):
        plain = best(lambda sigma=sigma: rounded_gaussian(sigma, DRAWS, os.urandom))
        discrete = best(lambda sigma=sigma: discrete_gaussian(Fraction(sigma) ** 2, DRAWS, os.urandom))
        print(f"| σ = {name} | {plain * 1e3:.0f} ms | {discrete * 1e3:.0f} ms |")
    rows = clipped(np.random.default_rng(0).standard_normal((512, 32)), 1.0)
    grid = choose_grid(1.0, 32, units=1_000)
    taken = best(lambda: quantised(rows, grid, os.urandom))
    print(f"\n512 rows of 32 numbers on a grid of 1/{grid.scale}: {taken * 1e3:.1f} ms; allowance {grid.allowance:,},")
    print(f"√L/(sC) − 1 = {(grid.allowance / float(grid.radius) ** 2) ** 0.5 - 1:.1e}")


def figures() -> None:
    start = time.perf_counter()
    accounting.epsilon_of(1.3, Q, 300, DELTA)
    print(f"\n{accounting.accountant()}; ε of 300 steps: {time.perf_counter() - start:.1f} s")
    print("\n| σ | q | steps | ε at δ = 1e-5 | by Rényi divergences |\n|---|---|---|---|---|")
    for sigma, q, steps in (
        (0.931, Q, 300),
        (0.9312, Q, 300),
        (0.753, Q, 300),
        (0.753, Q, 330),
        (1.947, 0.05, 300),
        (1.947, 0.05, 330),
        (1.947, 0.1, 300),
        (1.947, 1.0, 15),
        (1.947, 1.0, 28),
    ):
        curve = renyi.subsampled(renyi.gaussian(sigma), q, steps)
        bound = renyi.epsilon_of(curve, DELTA, renyi.WHOLE)
        print(f"| {sigma} | {q:.5g} | {steps} | {accounting.epsilon_of(sigma, q, steps, DELTA):.3f} | {bound:.3f} |")


def distributed() -> None:
    grid = choose_grid(1.0, 32, units=1_000, sigma=2.0, surplus=2.0, field=2**61 - 1)
    print("\n32 numbers, noise of 8 honest parties; σ of all of it for ε = 2 (central: 1.947 sharp):")
    print("\n| q | steps | σ | one of 8 is missing: ε |\n|---|---|---|---|")
    for q, steps in ((0.05, 300), (1.0, 15)):
        sigma = accounting.distributed_sigma(grid, 2.0, 8, q, steps, DELTA)
        fewer = accounting.distributed_epsilon(grid, float(grid.noise(sigma, 8)) ** 2, 7, q, steps, DELTA)
        print(f"| {q} | {steps} | {sigma:.3f} | {fewer:.3f} |")


def audits(count: int) -> None:
    claim = 2.0
    sigma = gaussian.sigma_of(claim, 1, DELTA)
    print(f"\n{count:,} replays with a unit, as many without:")
    print(f"\n| noise, of σ = {sigma:.3f} | ε | bound, 99 % | time |\n|---|---|---|---|")
    for part in (1.0, 0.5, 0.25):
        start = time.perf_counter()
        drawn = rounded_gaussian(part * sigma * 10_000, 2 * count, os.urandom)
        found = audit.audited(10_000 + drawn[:count], drawn[count:], DELTA)
        true = gaussian.epsilon_of(part * sigma, 1, DELTA)
        print(f"| {part:g} | {true:.2f} | {found.epsilon:.2f} | {time.perf_counter() - start:.0f} s |")


def main() -> None:
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {datetime.date.today()}")
    samplers()
    figures()
    distributed()
    audits(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)


if __name__ == "__main__":
    main()
