"""E9 (004, table I): do the steps of noisy gradient descent point along the insensitive direction?

f(x) = 10³ x₁² + x₂², steps x ← x − 10⁻⁴ g with g ~ N(∇f(x), ε² I), x₀ = (10³, 10³);
γ(ε) is the share of steps with |g₂| > |g₁|, over T steps and ten runs.

The settings as printed (T = 10⁴, ∇f = (2·10³ x₁, 2 x₂)) do not give the printed row: there is not time enough for x₂ to
come down to the noise. T = 10⁵ with the gradient (10³ x₁, x₂) gives it. Both are made here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedzero.directions import Keys
from fedzero.oracles.contract import F64
from fedzero_papers.experiments.contract import Experiment, Options, Plan
from fedzero_papers.experiments.outcome import Figure, Line, Outcome, Panel, Table

NOISES = tuple(10.0**e for e in range(-2, 6))
PAPER = (0.9993, 0.9423, 0.8268, 0.7096, 0.5931, 0.4979, 0.4924, 0.4919)
START, STEP = 1e3, 1e-4
BLOCK = 1000
"""Steps whose noise is drawn at once."""


@dataclass(frozen=True)
class Simulation:
    """T steps with the gradient (a₁ x₁, a₂ x₂)."""

    name: str
    steps: int
    slopes: tuple[float, float]

    @property
    def title(self) -> str:
        first, second = self.slopes
        return (
            f"{self.name}: T = {self.steps:,}, gradient ({first:,.0f} x₁, {f'{second:.0f} ' if second != 1 else ''}x₂)"
        )


SIMULATIONS = (Simulation("as printed", 10_000, (2e3, 2.0)), Simulation("reproducing", 100_000, (1e3, 1.0)))


def shares(simulation: Simulation, noises: tuple[float, ...], runs: int, seed: int = 0) -> F64:
    """γ of every run, (noises, runs); all of them at once."""
    slopes, epsilon = np.array(simulation.slopes), np.array(noises)[:, None, None]
    x = np.full((len(noises), runs, 2), START)
    hits = np.zeros((len(noises), runs), np.int64)
    keys = Keys.of_seed(seed)
    for first in range(0, simulation.steps, BLOCK):
        length = min(BLOCK, simulation.steps - first)
        noise = keys.generator("e9", first).standard_normal((length, *x.shape)) * epsilon
        for t in range(length):
            g = slopes * x + noise[t]
            size = np.abs(g)
            hits += size[..., 1] > size[..., 0]
            x -= STEP * g
    return hits / simulation.steps


def plan(runs: int, options: Options) -> Plan:
    runs = options.repetitions or runs
    yield from ()  # no federation, hence no ledgers
    found = {s: shares(s, NOISES, runs) for s in options.among(SIMULATIONS)}
    return Outcome((table(found, runs),), (figure(found, runs),), tuple(verdict(s, g) for s, g in found.items()))


E9 = Experiment(
    "e9",
    "ZOFedHT, table I",
    "How often noisy gradient descent moves along the insensitive direction, in two dimensions",
    ("5 s", "5 s"),
    plan, 10, 3, needs_data=False,
)  # fmt: skip


def errors(gamma: F64) -> F64:
    """Standard error of the mean over runs; one run tells nothing about it."""
    runs = gamma.shape[1]
    spread = (gamma - gamma[:, :1]).std(axis=1, ddof=1) if runs > 1 else np.full(len(gamma), np.nan)  # equal runs: 0
    result: F64 = spread / np.sqrt(runs)
    return result


def table(found: dict[Simulation, F64], runs: int) -> Table:
    columns, rows = ["ε", "paper"], [[noise, printed] for noise, printed in zip(NOISES, PAPER, strict=True)]
    for simulation, gamma in found.items():
        columns += [simulation.name, f"{simulation.name}, ±"]
        for row, mean, error in zip(rows, gamma.mean(axis=1), errors(gamma), strict=True):
            row += [float(mean), float(error)]
    title = f"γ(ε), mean and standard error of {runs} runs; " + "; ".join(s.title for s in found)
    return Table("table", title, tuple(columns), tuple(tuple(row) for row in rows))


def figure(found: dict[Simulation, F64], runs: int) -> Figure:
    lines = [Line("paper, table I", NOISES, PAPER, -1)]
    for index, (simulation, gamma) in enumerate(found.items()):
        mean, error = gamma.mean(axis=1), np.nan_to_num(errors(gamma))
        low, high = tuple((mean - 2 * error).tolist()), tuple((mean + 2 * error).tolist())
        lines.append(Line(simulation.title, NOISES, tuple(mean.tolist()), index, low, high))
    panel = Panel(
        f"mean of {runs} runs, band of two standard errors",
        tuple(lines),
        "noise ε of a gradient's coordinate (standard deviation)",
        "γ(ε): share of steps with |g₂| > |g₁|",
        log_x=True,
    )
    return Figure("fig", "ZOFedHT, table I: steps along the insensitive direction", (panel,))


def verdict(simulation: Simulation, gamma: F64) -> str:
    gap = float(np.abs(gamma.mean(axis=1) - np.array(PAPER)).max())
    return f"{simulation.title}: the largest distance from the printed row is {gap:.4f}."
