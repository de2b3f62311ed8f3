"""E1 (000, figure 2): MNIST, a CNN of 28,938 parameters, DeComFL with several P and K against FedAvg.

Left: test loss against rounds. Right: test accuracy against the numbers (of four bytes) that went between the server
and one client, both ways, as counted on the wire.

The paper has N 100, m 10, momentum ½ and a rate of 10⁻³ for all; batch, radius and rounds it does not give. That is a
row here, beside settings that were searched for: momentum 0.9, signs, and rates that fall over the last fifth. K 5 has
P 10, so that it sends as many numbers a round as K 1 with P 50; its rate was not searched for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedzero.recipe import recipe as recipes
from fedzero_papers.experiments.communication import compared
from fedzero_papers.experiments.contract import Experiment, Job

METHODS = {
    "p50-large-batch": "DeComFL, P 50, large batch",
    "p50": "DeComFL, P 50",
    "p5": "DeComFL, P 5",
    "k5-p10": "DeComFL, K 5, P 10",
    "paper": "DeComFL, P 50, the paper's rate",
    "fedavg": "FedAvg",
    "fedavg-paper": "FedAvg, the paper's rate",
}
RATE = "algorithm.rate=1e-3"
"""The paper's. FedAvg has it without momentum: a client's starts from M = 0 at every turn, so that with one step
β = ½ would halve the step and do nothing else."""
PAPER = (RATE, 'algorithm.optimizer={kind="momentum", beta=0.5}')


def falling(rate: float, rounds: int) -> str:
    """Constant, then down to a twentieth over the last fifth."""
    points = f"[[0, {rate}], [{rounds * 4 // 5}, {rate}], [{rounds}, {rate / 20}]]"
    return f'algorithm.rate={{kind="piecewise", points={points}}}'


@dataclass(frozen=True)
class Sizes:
    """Rounds, batches, P and rates of a setting."""

    rounds: int
    large_rounds: int
    """with the large batch"""
    fedavg_rounds: int
    slow_rounds: int
    """of FedAvg at the paper's rate"""
    batch: int
    large_batch: int
    directions: int
    """where the name says 50"""
    rates: tuple[float, float, float, float]
    """large batch, P 50, P 5, K 5"""

    @property
    def overrides(self) -> Mapping[str, tuple[str, ...]]:
        """Of the recipes `e1` and `e1-fedavg`, for each method."""
        usual = f"rounds={self.rounds}", f"task.batch={self.batch}"
        fifty, (large, p50, p5, k5) = f"algorithm.directions={self.directions}", self.rates
        longer = f"rounds={self.large_rounds}", f"task.batch={self.large_batch}", falling(large, self.large_rounds)
        slow = 'algorithm.distribution="gaussian"', "algorithm.radius=1e-3", *PAPER
        return {
            "p50-large-batch": (fifty, *longer),
            "p50": (*usual, fifty, falling(p50, self.rounds)),
            "p5": (*usual, "algorithm.directions=5", falling(p5, self.rounds)),
            "k5-p10": (*usual, "algorithm.directions=10", "algorithm.local_steps=5", falling(k5, self.rounds)),
            "paper": (*usual, fifty, *slow),
            "fedavg": (f"rounds={self.fedavg_rounds}", f"task.batch={self.batch}"),
            "fedavg-paper": (f"rounds={self.slow_rounds}", f"task.batch={self.batch}", RATE),
        }


@dataclass(frozen=True)
class Scale:
    """All that differs between the quick and the full setting."""

    setting: str
    seeds: int
    sizes: Sizes
    seconds: Mapping[str, float]
    """of a run, on one core or a GPU: what matters is that the long ones come first"""
    common: tuple[str, ...] = ()
    """overrides of all methods"""


FULL = Scale(
    "CNN of 28,938 parameters, N 100, m 10, IID, batch 32 (large: 128)",
    3,
    Sizes(4300, 2800, 400, 4300, 32, 128, 50, (7e-3, 3e-3, 7e-4, 3e-4)),
    {"p50-large-batch": 100.0, "k5-p10": 400.0, "fedavg": 40.0, "fedavg-paper": 300.0},
)
QUICK = Scale(
    "small setting: 4,000 images, N 20, m 5, batch 16 (large: 64), P 25 for 50",
    1,
    Sizes(200, 200, 60, 200, 16, 64, 25, (5e-3, 5e-3, 1e-3, 5e-4)),
    {"p50-large-batch": 90.0, "k5-p10": 90.0, "p5": 15.0, "fedavg": 5.0, "fedavg-paper": 15.0},
    ("task.full=false", "federation.clients=20", "federation.cohort=5", "evaluate_every=10"),
)


def job(method: str, seed: int, scale: Scale) -> Job:
    name = "e1-fedavg" if method.startswith("fedavg") else "e1"
    recipe = recipes.load(name, [*scale.common, *scale.sizes.overrides[method]], seed=seed)
    return Job(f"{method}/seed-{seed}", recipe, scale.seconds.get(method, 60.0))


E1 = Experiment(
    "e1",
    "FedDisco, figure 2",
    "MNIST: DeComFL with several P and K against FedAvg, by rounds and by numbers sent",
    ("3 min", "40 min on a GPU"),
    compared(METHODS, "p50", "fig2", "FedDisco, figure 2: MNIST", job), FULL, QUICK,
)  # fmt: skip
