"""A LightningModule trained through its own `training_step`; nothing of it is changed.

python examples/lightning_module.py          (pip install lightning)
"""

from __future__ import annotations

from pathlib import Path

import lightning
import torch
from torch.utils.data import TensorDataset

import fedzero


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.mse_loss(self(x), y)


def train(out: Path, rounds: int = 150) -> fedzero.Run:
    torch.manual_seed(0)
    x = torch.randn(600, 5)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2]
    return fedzero.train(
        Regression(),
        clients=[TensorDataset(x[i:500:5], y[i:500:5]) for i in range(5)],
        test=(x[500:], y[500:]),
        objective=lambda model, batch: model.training_step(batch, 0),
        method=fedzero.DeComFL(rate=0.05, directions=20),
        rounds=rounds,
        out=out,
    )


if __name__ == "__main__":
    print(train(Path("runs/regression")))
