"""E2 (000, figure 3): Fashion-MNIST, a CNN of 1,206,590 parameters, DeComFL against three ways to send less of FedAvg.

Left: test loss against rounds. Right: test accuracy against the numbers (of four bytes) that went between the server
and one client, both ways, as counted on the wire.

The paper gives one learning rate for all methods (10⁻³, momentum ½), with which it says FedAvg has not converged; how
many local steps FedAvg makes it does not say. Here every method makes one step a round, the first-order ones at a
rate that suits them, so that the comparison does not flatter DeComFL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedzero.report.history import History, Point
from fedzero.report.units import human_count, percent, times
from fedzero.run import recipe as recipes
from fedzero_papers.experiments.contract import Cell, Figure, Job, Outcome, Panel, Plan, Setting, Stage, Table
from fedzero_papers.experiments.curves import averaged

METHODS = {
    "decomfl": "DeComFL",
    "fedavg": "FedAvg",
    "fedcom": "FedCom (8 bits)",
    "topk": "FedAvg + top 10 %",
    "topk-feedback": "FedAvg + top 10 % + feedback",
}
STYLES = {method: style for style, method in enumerate(METHODS)}
NUMBER = 4
"""Bytes; the paper counts the length of vectors."""

QUICK = [
    "task.full=false",
    'task.model="small"',
    "task.batch=16",
    "federation.clients=20",
    "federation.cohort=5",
    "evaluate_every=10",
]
QUICK_ROUNDS = 300
QUICK_DECOMFL = [
    "algorithm.directions={start=25, then=[[150, 50]]}",
    'algorithm.rate={kind="piecewise", points=[[0, 5e-3], [200, 5e-3], [300, 5e-4]]}',
]


def job(method: str, seed: int, quick: bool) -> Job:
    overrides = [*QUICK, *(QUICK_DECOMFL if method == "decomfl" else [])] if quick else []
    recipe = recipes.load(f"e2-{method}", overrides, seed=seed, rounds=QUICK_ROUNDS if quick else None)
    # Seconds on one core here, or on a GPU: what matters is that the long run comes first.
    cost = (90.0 if quick else 600.0) if method == "decomfl" else (20.0 if quick else 60.0)
    return Job(f"{method}/seed-{seed}", recipe, cost)


@dataclass(frozen=True)
class E2:
    """The experiment; the paper shows one run."""

    seeds: int = 1

    name = "e2"
    paper = "FedDisco, figure 3"
    about = "Fashion-MNIST: DeComFL against FedAvg, FedCom and top-k, by rounds and by numbers sent"
    times = ("3 min", "30 min on a GPU")
    needs_data = True

    def plan(self, setting: Setting) -> Plan:
        seeds = range(1, 1 + (setting.seeds or self.seeds))
        jobs = {m: [job(m, seed, setting.quick) for seed in seeds] for m in setting.chosen(list(METHODS))}
        found = yield Stage("all methods", tuple(j for each in jobs.values() for j in each))
        runs = {method: [found[j.folder] for j in each] for method, each in jobs.items()}
        return Outcome((table(runs),), (figure(runs, setting.quick),), tuple(findings(runs)))


def table(runs: dict[str, list[History]]) -> Table:
    columns = ("method", "seed", "rounds", "test loss", "test accuracy", "best accuracy", "numbers up / client",
               "numbers down / client", "numbers / client", "queries")  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (METHODS[method], seed, h.rounds, h.final_loss, h.final_accuracy, h.best_accuracy, h.bytes_up / NUMBER,
         h.bytes_down / NUMBER, h.bytes / NUMBER, h.queries)
        for method, histories in runs.items()
        for seed, h in enumerate(histories, 1)
    ]  # fmt: skip
    return Table("table", "At the end of the runs", columns, tuple(rows))


def figure(runs: dict[str, list[History]], quick: bool) -> Figure:
    full = "CNN of 1,206,590 parameters, N 100, m 10, one local step"
    small = "small setting: 4,000 images, CNN of 28,938 parameters, N 20, m 5, one local step"
    by_rounds = tuple(
        averaged(METHODS[method], STYLES[method], histories, lambda p: float(p.round), lambda p: p.loss)
        for method, histories in runs.items()
    )
    by_numbers = tuple(
        averaged(
            METHODS[method], STYLES[method], histories, lambda p: p.bytes / NUMBER, lambda p: 100 * (p.accuracy or 0.0)
        )
        for method, histories in runs.items()
    )
    return Figure(
        "fig3",
        "FedDisco, figure 3: Fashion-MNIST",
        (
            Panel("Loss by rounds", by_rounds, "rounds", "test loss (cross-entropy)", log_y=True),
            Panel(
                "Accuracy by communication", by_numbers, "numbers sent per client, up and down (bytes / 4)",
                "test accuracy (%)", log_x=True,
            ),
        ),
        columns=2,
        setting=small if quick else full,
    )  # fmt: skip


def numbers(point: Point) -> float:
    return point.bytes / NUMBER


def percentage(point: Point) -> float:
    return 100 * point.accuracy if point.accuracy is not None else math.nan


def findings(runs: dict[str, list[History]]) -> list[str]:
    """What each method needs to get as far as DeComFL ended, with the first seed of each."""
    said = []
    first = {method: histories[0] for method, histories in runs.items()}
    ours = first.get("decomfl")
    for method, h in first.items():
        said.append(
            f"{METHODS[method]}: {percent(h.final_accuracy)} after {human_count(h.bytes / NUMBER)} numbers a client."
        )
        if ours is None or method == "decomfl" or ours.final_accuracy is None:
            continue
        reached = [p for p in h.points if p.accuracy is not None and p.accuracy >= ours.final_accuracy]
        if reached and ours.bytes > 0:
            ratio = times(reached[0].bytes / ours.bytes)
            said[-1] += f" It passed DeComFL's {percent(ours.final_accuracy)} with {ratio} times DeComFL's numbers."
        else:
            said[-1] += f" It did not reach DeComFL's {percent(ours.final_accuracy)}."
    return said
