"""Derives table.json: what dp-accounting says, called by hand, so that tests can compare where it is not installed.

    python tests/privacy/table.py                 writes table.json; needs dp-accounting; minutes
    python tests/privacy/table.py --check 20      computes 20 of its rows again, and fails on any difference

Nothing here imports fedzero. A row of `epsilons` is (σ, q, steps, δ, ε); one of `sigmas` is (ε, q, steps, δ, σ) with
the smallest σ, to 10⁻⁴, of which dp-accounting says at most that ε. q = 1 is the Gaussian without subsampling.
`replaced` has rows of `epsilons` with q = 1 where a unit is replaced instead of added or removed.
"""

from __future__ import annotations

import json
import random
import sys
from importlib.metadata import version
from pathlib import Path

FILE = Path(__file__).with_name("table.json")
ROWS = 65_800
"""Rows of SST-2's training set as it is used; batches of 512."""
NAMED = {
    "clients, as calibrated": (1.947, 0.05, 300, 1e-5),
    "50 of the 500 who are there": (1.947, 0.1, 300, 1e-5),
    "a visible cohort, 15 turns": (1.947, 1.0, 15, 1e-5),
    "a visible cohort, 28 turns": (1.947, 1.0, 28, 1e-5),
    "30 of 300 rounds abandoned and made again": (1.947, 0.05, 330, 1e-5),
}
WANTED = (
    *((epsilon, 512 / ROWS, 300, 1e-5) for epsilon in (0.5, 1.0, 2.0, 8.0)),
    *((epsilon, 512 / ROWS, 300, 1e-6) for epsilon in (0.5, 1.0, 2.0, 8.0)),
    *((2.0, 512 / ROWS, 200, delta) for delta in (1e-5, 1e-6)),
    *((epsilon, 0.05, 300, 1e-5) for epsilon in (1.0, 2.0, 4.0, 8.0)),
)


def settings() -> list[tuple[float, float, int, float]]:
    """100 of them: σ in .6 … 6, q in 10⁻⁴ … .3 or 1, 1 to 1,000 steps (without subsampling to 30), δ in 10⁻⁹ … 10⁻⁴."""
    chance = random.Random(0)
    found = []
    for i in range(100):
        amplified = i % 4 != 0
        sigma = round(0.6 * 10 ** chance.random(), 3)
        q = round(10 ** chance.uniform(-4, -0.52), 5) if amplified else 1.0
        steps = round(10 ** chance.uniform(0, 3 if amplified else 1.48))
        found.append((sigma, q, steps, float(f"{10 ** chance.uniform(-9, -4):.1e}")))
    return found


def epsilon_of(sigma: float, q: float, steps: int, delta: float, replaced: bool = False) -> float:
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    event = GaussianDpEvent(sigma) if q == 1 else PoissonSampledDpEvent(q, GaussianDpEvent(sigma))
    return float(PLDAccountant(relation).compose(event, steps).get_epsilon(delta))


def sigma_of(epsilon: float, q: float, steps: int, delta: float) -> float:
    """By bisection on multiples of 10⁻⁴."""
    low, high = 3_000, 80_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if epsilon_of(middle / 1e4, q, steps, delta) <= epsilon else (middle, high)
    return high / 1e4


def made() -> dict[str, object]:
    plain = [each for each in settings() if each[1] == 1]
    return {
        "dp-accounting": version("dp-accounting"),
        "epsilons": [(*each, epsilon_of(*each)) for each in settings()],
        "replaced": [(*each, epsilon_of(*each, replaced=True)) for each in plain[:5]],
        "named": {name: (*each, epsilon_of(*each)) for name, each in NAMED.items()},
        "sigmas": [(*each, sigma_of(*each)) for each in WANTED],
    }


def main() -> None:
    if sys.argv[1:2] == ["--check"]:
        kept = json.loads(FILE.read_text())["epsilons"]
        for *setting, epsilon in random.Random().sample(kept, int(sys.argv[2])):
            assert abs(epsilon_of(*setting) - epsilon) <= 1e-9 * epsilon, (setting, epsilon)
    else:
        table = {name: rows if isinstance(rows, str) else _lines(rows) for name, rows in made().items()}
        FILE.write_text(json.dumps(table, indent=1).replace('"[', "[").replace(']"', "]").replace("\\", "") + "\n")


def _lines(rows: object) -> object:
    """Each row on a line of its own."""
    if isinstance(rows, dict):
        return {name: json.dumps(row) for name, row in rows.items()}
    assert isinstance(rows, list)
    return [json.dumps(row) for row in rows]


if __name__ == "__main__":
    main()
