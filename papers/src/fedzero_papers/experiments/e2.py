"""E2 (000, figure 3): Fashion-MNIST, a CNN of 1,206,590 parameters, DeComFL against three ways to send less of FedAvg.

Left: test loss against rounds. Right: test accuracy against the numbers (of four bytes) that went between the server
and one client, both ways, as counted on the wire.

The paper gives one learning rate for all methods (10⁻³, momentum ½), with which it says FedAvg has not converged; how
many local steps FedAvg makes it does not say. Here every method makes one step a round, the first-order ones at a
rate that suits them, so that the comparison does not flatter DeComFL.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedzero.recipe import recipe as recipes
from fedzero_papers.experiments.communication import compared
from fedzero_papers.experiments.contract import Experiment, Job

METHODS = {
    "decomfl": "DeComFL",
    "fedavg": "FedAvg",
    "fedcom": "FedCom (8 bits)",
    "topk": "FedAvg + top 10 %",
    "topk-feedback": "FedAvg + top 10 % + feedback",
}


@dataclass(frozen=True)
class Scale:
    """All that differs between the quick and the full setting; the paper shows one run."""

    setting: str
    seeds: int
    costs: tuple[float, float]
    """seconds of DeComFL and of the others, on one core or a GPU: what matters is that the long run comes first"""
    overrides: tuple[str, ...] = ()
    decomfl: tuple[str, ...] = ()
    """overrides of DeComFL alone"""


FULL = Scale("CNN of 1,206,590 parameters, N 100, m 10, one local step", 3, (600.0, 60.0))
QUICK = Scale(
    "small setting: 4,000 images, CNN of 28,938 parameters, N 20, m 5, one local step",
    1,
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


E2 = Experiment(
    "e2",
    "FedDisco, figure 3",
    "Fashion-MNIST: DeComFL against FedAvg, FedCom and top-k, by rounds and by numbers sent",
    ("3 min", "30 min on a GPU"),
    compared(METHODS, "decomfl", "fig3", "FedDisco, figure 3: Fashion-MNIST", job), FULL, QUICK,
)  # fmt: skip
