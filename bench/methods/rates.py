"""rate = "auto" beside constant rates (three seeds each).

    python -m bench.methods.rates digits|quadratic|noisy|mnist RATE …

Ordinary runs of DeComFL on one thread: final test loss and accuracy, and seconds. `digits` needs scikit-learn.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedzero
from fedzero.model.params import Params
from fedzero.oracles.module import ModuleObjective
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.tasks import images
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero.tasks.models import initialise
from fedzero.tasks.partition import Iid, split

TRAINING = 1497


class Digits(Task, tag="digits"):
    """scikit-learn's 8×8 digits, the last 300 of which are the test set; a perceptron 64–32–10."""

    batch: int = 32

    def build(self, clients: int, context: BuildContext) -> Problem:
        from sklearn.datasets import load_digits

        images_, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))
        x, y = torch.tensor(images_[order] / 16, dtype=torch.float32), torch.tensor(labels[order])
        parts = split(Iid(), labels[order][:TRAINING], clients, context.keys)
        module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        params = Params.of_module(module)
        initialise(params, context.keys.root)
        objective = ModuleObjective(module, (x[TRAINING:], y[TRAINING:]))
        return Problem(params, objective, images.LabelledShards(x[:TRAINING], y[:TRAINING], parts, self.batch))


ALL = {"clients": 10, "cohort": 10}
CASES: dict[str, dict[str, Any]] = {
    "digits": {"rounds": 300, "task": {"kind": "digits"}, "federation": ALL},
    "quadratic": {"rounds": 300, "task": {"kind": "quadratic"}, "federation": ALL},
    "noisy": {"rounds": 300, "task": {"kind": "quadratic", "noise": 5.0}, "federation": {"clients": 10, "cohort": 5}},
    "mnist": {
        "rounds": 60,
        "task": {"kind": "mnist", "batch": 16},
        "federation": {"clients": 20, "cohort": 10},
        "algorithm": {"directions": 20, "distribution": "rademacher"},
    },
}


def main(case: str, *rates: str) -> None:
    torch.set_num_threads(1)
    fedzero.register(Digits)
    given = CASES[case]
    for rate in rates:
        algorithm = {"kind": "decomfl", "rate": rate if rate == "auto" else float(rate), **given.get("algorithm", {})}
        for seed in (1, 2, 3):
            rest = {"name": case, "seed": seed, "evaluate_every": given["rounds"], "algorithm": algorithm}
            with tempfile.TemporaryDirectory() as folder:
                recipe, place = recipes.decode(given | rest), Path(folder) / "run"
                done = session.start(recipe, place, Environment(), Silent())
            print(
                case, rate, f"seed {seed}:", done.final_loss, done.final_accuracy, f"{done.seconds:.0f} s", flush=True
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
