"""Which rank of directions learns as well as dense signs, and what it costs.

    python -m bench.methods.ranks [--seeds 3] RATE …

DeComFL on the packaged MNIST digits, a perceptron 784-64-10, ten clients with equal shares, batches of 16, P = 50, 300
rounds, one thread. Rates are compared by the loss of training rows that are held out (seed 0), for dense signs and for
rank one; then all kinds of directions have the best rate of dense signs, and seeds 1, 2, … end with accuracy and loss
on the test set.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from bench.table import show
from torch import nn

import fedzero
from fedzero.directions import Keys
from fedzero.model.params import Params
from fedzero.oracles.criteria import accuracy
from fedzero.tasks import images
from fedzero.tasks.models import initialise

CLIENTS, ROUNDS, P = 10, 300, 50
KINDS = (("dense ±1", "rademacher", 1), *((f"rank {r}", "rank1", r) for r in (1, 2, 4, 8)))


def run(distribution: str, rank: int, rate: float, seed: int, held_out: bool = False) -> tuple[float, float, float]:
    """Accuracy and loss on the test set, or on a fifth of the training rows that is held out; seconds."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    initialise(Params.of_module(model), Keys.of_seed(seed).root)
    data = images.load("mnist", False, None)
    x, y = images.tensors(data.train_x, data.train_y, torch.device("cpu"))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    test = images.tensors(data.test_x, data.test_y, torch.device("cpu"))
    if held_out:
        order, others = order[len(y) // 5 :], order[: len(y) // 5]
        test = (x[others], y[others])
    method = fedzero.DeComFL(rate=rate, directions=P, distribution=distribution, rank=rank)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = fedzero.train(
            model,
            clients=[(x[part], y[part]) for part in order.chunk(CLIENTS)],
            loss=nn.functional.cross_entropy,
            test=test,
            metrics={"accuracy": accuracy},
            method=method,
            rounds=ROUNDS,
            batch=16,
            seed=seed,
            evaluate_every=ROUNDS,
            out=Path(folder, "run"),
            progress=False,
        )
        history = result.history
        return float(history["accuracy"][-1]), float(history["loss"][-1]), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rates", nargs="+", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tried = {
        (name, rate): run(distribution, rank, rate, 0, held_out=True)[1]
        for name, distribution, rank in KINDS[:2]
        for rate in given.rates
    }
    for (name, rate), loss in tried.items():
        print(f"{name}, rate {rate:g}: loss of held-out rows {loss:.3f}", flush=True)
    best = min(given.rates, key=lambda rate: tried[KINDS[0][0], rate])
    rows = []
    for name, distribution, rank in KINDS:
        found = [run(distribution, rank, best, seed) for seed in range(1, given.seeds + 1)]
        accuracies, losses, seconds = zip(*found, strict=True)
        rows.append(
            (
                name,
                " ".join(f"{100 * a:.1f}" for a in accuracies),
                f"{100 * statistics.mean(accuracies):.1f}",
                f"{statistics.mean(losses):.3f}",
                f"{statistics.mean(seconds):.1f}",
            )
        )
        print(rows[-1], flush=True)
    show(f"MNIST, 784-64-10, P {P}, {ROUNDS} rounds, rate {best:g}", rows, ("", "accuracy", "mean", "loss", "seconds"))


if __name__ == "__main__":
    main()
