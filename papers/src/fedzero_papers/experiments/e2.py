"""E2 (000, figure 3): Fashion-MNIST, a CNN of 1,206,590 parameters, DeComFL against three ways to send less of FedAvg.

Left: test loss against rounds. Right: test accuracy against the numbers (of four bytes) that went between the server
and one client, both ways, as counted on the wire.

The paper gives one learning rate for all methods (10⁻³, momentum ½), with which it says FedAvg has not converged; how
many local steps FedAvg makes it does not say. Here every method makes one step a round, the first-order ones at a
rate that suits them, so that the comparison does not flatter DeComFL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedzero.report.history import History
from fedzero.report.units import human_count, percent, times
from fedzero.runs import recipe as recipes
from fedzero_papers.experiments.contract import Experiment, Job, Options, Plan, gather
from fedzero_papers.experiments.curves import averaged, by_round, loss, percentage
from fedzero_papers.experiments.outcome import Figure, Outcome, Panel, Table

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


@dataclass(frozen=True)
class Scale:
    """All that differs between the quick and the full setting; the paper shows one run."""

    setting: str
    costs: tuple[float, float]
    """seconds of DeComFL and of the others, on one core or a GPU: what matters is that the long run comes first"""
    overrides: tuple[str, ...] = ()
    decomfl: tuple[str, ...] = ()
    """overrides of DeComFL alone"""


FULL = Scale("CNN of 1,206,590 parameters, N 100, m 10, one local step", (600.0, 60.0))
QUICK = Scale(
    "small setting: 4,000 images, CNN of 28,938 parameters, N 20, m 5, one local step",
    (90.0, 20.0),
    (
        "rounds=300",
        "task.full=false",
        'task.model="small"',
        "task.batch=16",
        "federation.clients=20",
        "federation.cohort=5",
        "evaluate_every=10",
    ),
    (
        "algorithm.directions={start=25, then=[[150, 50]]}",
        'algorithm.rate={kind="piecewise", points=[[0, 5e-3], [200, 5e-3], [300, 5e-4]]}',
    ),
)


def job(method: str, seed: int, scale: Scale) -> Job:
    ours = method == "decomfl"
    recipe = recipes.load(f"e2-{method}", [*scale.overrides, *(scale.decomfl if ours else ())], seed=seed)
    return Job(f"{method}/seed-{seed}", recipe, scale.costs[0 if ours else 1])


Runs = Mapping[str, tuple[History, ...]]


def plan(scale: Scale, options: Options) -> Plan:
    seeds = options.seeds(1)
    jobs = {method: [job(method, seed, scale) for seed in seeds] for method in options.chosen(list(METHODS))}
    (runs,) = yield from gather("all methods", jobs)
    return Outcome((table(runs),), (figure(runs, scale),), tuple(findings(runs)))


E2 = Experiment(
    "e2",
    "FedDisco, figure 3",
    "Fashion-MNIST: DeComFL against FedAvg, FedCom and top-k, by rounds and by numbers sent",
    ("3 min", "30 min on a GPU"),
    plan, FULL, QUICK,
)  # fmt: skip


def table(runs: Runs) -> Table:
    columns = ("method", "seed", "rounds", "test loss", "test accuracy", "best accuracy", "numbers up / client",
               "numbers down / client", "numbers / client", "queries")  # fmt: skip
    rows = tuple(
        (METHODS[method], seed, h.rounds, h.final_loss, h.final_accuracy, h.best_accuracy, h.bytes_up / NUMBER,
         h.bytes_down / NUMBER, h.bytes / NUMBER, h.queries)
        for method, histories in runs.items()
        for seed, h in enumerate(histories, 1)
    )  # fmt: skip
    return Table("table", "At the end of the runs", columns, rows)


def figure(runs: Runs, scale: Scale) -> Figure:
    mine = [(METHODS[method], STYLES[method], histories) for method, histories in runs.items()]
    by_rounds = tuple(averaged(*each, by_round, loss) for each in mine)
    by_numbers = tuple(averaged(*each, lambda p: p.bytes / NUMBER, percentage) for each in mine)
    numbers, accuracy = "numbers sent per client, up and down (bytes / 4)", "test accuracy (%)"
    panels = (
        Panel("Loss by rounds", by_rounds, "rounds", "test loss (cross-entropy)", log_y=True),
        Panel("Accuracy by communication", by_numbers, numbers, accuracy, log_x=True),
    )
    return Figure("fig3", "FedDisco, figure 3: Fashion-MNIST", panels, 2, scale.setting)


def findings(runs: Runs) -> list[str]:
    """What each method needs to get as far as DeComFL ended, with the first seed of each."""
    found = []
    first = {method: histories[0] for method, histories in runs.items()}
    ours = first.get("decomfl")
    for method, h in first.items():
        found.append(
            f"{METHODS[method]}: {percent(h.final_accuracy)} after {human_count(h.bytes / NUMBER)} numbers a client."
        )
        if ours is None or method == "decomfl" or ours.final_accuracy is None:
            continue
        reached = [p for p in h.points if p.accuracy is not None and p.accuracy >= ours.final_accuracy]
        if reached and ours.bytes > 0:
            ratio = times(reached[0].bytes / ours.bytes)
            found[-1] += f" It passed DeComFL's {percent(ours.final_accuracy)} with {ratio} times DeComFL's numbers."
        else:
            found[-1] += f" It did not reach DeComFL's {percent(ours.final_accuracy)}."
    return found
