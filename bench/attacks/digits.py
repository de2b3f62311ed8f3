"""Real digits, a small perceptron, and clients of one, two or four rows: what the attacks of this folder are tried on.

    h = W x + b,  a = max(h, 0),  logits = V a + c        x: a digit of side × side pixels in [0, 1]

The gradient of one row: ∂W = δ xᵀ, ∂b = δ, ∂V = e aᵀ, ∂c = e, with e = softmax(logits) − onehot(label) and
δ = (Vᵀ e) · 1[h > 0]. So each row of [∂W, ∂b] of a single sample is a multiple of (x, 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.oracles.contract import F32, F64
from fedzero.oracles.module import ModuleObjective
from fedzero.tasks import images
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero.tasks.models import initialise

CLASSES = 10


def pooled(x: Tensor, side: int) -> Tensor:
    """Pixels in [0, 1] of images of 28 × 28 bytes, (n, side²)."""
    return nn.functional.adaptive_avg_pool2d(x.float()[:, None] / 255, side).flatten(1)


@dataclass(frozen=True)
class Rows:
    """Client i has rows i·each … (i + 1)·each − 1; every batch of a client is all of its rows."""

    x: Tensor
    y: Tensor
    clients: int
    each: int

    def batch(self, keys: object, round: int, step: int, client: int) -> tuple[Tensor, Tensor]:
        part = slice(client * self.each, (client + 1) * self.each)
        return self.x[part], self.y[part]


class Digits(Task, tag="attacked-digits"):
    """A perceptron on digits; the clients have `rows` training digits each, in an order drawn from the keys."""

    side: PositiveInt = 12
    hidden: PositiveInt = 16
    rows: PositiveInt = 1
    full: bool = False
    """False: the 5,000 digits of the package; True: the IDX files of the data folder."""

    def build(self, clients: int, context: BuildContext) -> Problem:
        x, y, _, _ = loaded(self.side, self.full, context.data)
        order = torch.from_numpy(context.keys.generator("partition").permutation(len(x)))
        module = nn.Sequential(
            nn.Linear(self.side**2, self.hidden), nn.ReLU(), nn.Linear(self.hidden, CLASSES)
        )  # fmt: skip
        params = Params.of_module(module)
        initialise(params, context.keys.root)
        rows = Rows(x[order], y[order], clients, self.rows)
        return Problem(params, ModuleObjective(module, []), rows)


def loaded(side: int, full: bool, folder: Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training digits and labels, then those that the attacker may know: test digits and labels."""
    data = images.load("mnist", full, folder)
    train, test = (pooled(torch.from_numpy(each.copy()), side) for each in (data.train_x, data.test_x))
    return train, torch.from_numpy(data.train_y.astype(np.int64)), test, torch.from_numpy(data.test_y.astype(np.int64))


@dataclass(frozen=True)
class Perceptron:
    """The known model: W (h, p), b (h,), V (10, h), c (10,), and gradients of many batches at once."""

    W: Tensor
    b: Tensor
    V: Tensor
    c: Tensor

    @staticmethod
    def of(params: Params) -> Perceptron:
        return Perceptron(*(tensor.double().clone() for tensor in params.tensors.values()))

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients of the mean losses of batches: x (m, rows, p), y (m, rows) → (m, d)."""
        h = x @ self.W.T + self.b
        a = h.clamp(min=0)
        e = (torch.softmax(a @ self.V.T + self.c, -1) - nn.functional.one_hot(y, CLASSES)) / x.shape[1]
        delta = (e @ self.V) * (h > 0)
        parts = (delta.mT @ x, delta.sum(1), e.mT @ a, e.sum(1))
        return torch.cat([part.flatten(1) for part in parts], 1)

    def first_layer(self, gradient: F64) -> tuple[F64, F64]:
        """∂W (h, p) and ∂b (h,) of a gradient (d,)."""
        hidden, pixels = self.W.shape
        return gradient[: hidden * pixels].reshape(hidden, pixels), gradient[hidden * pixels :][:hidden]


@dataclass(frozen=True)
class Prior:
    """What the attacker assumes of a gradient before it sees anything: mean 0 and covariance Σ, of trace 1.

    known: Σ of the first layer is I ⊗ E[(x, 1)(x, 1)ᵀ] over digits that are public, since its rows are multiples of
    (x, 1); without: Σ = I/d, which gives the solution of minimum norm.
    """

    hidden: int
    pixels: int
    size: int
    known: F64 | None = None

    def times(self, Z: F32 | F64) -> F64:
        """Z Σ, (n, d)."""
        if self.known is None:
            return Z.astype(np.float64) / self.size
        h, p, C = self.hidden, self.pixels, self.known
        W, b, rest = Z[:, : h * p].reshape(-1, h, p), Z[:, h * p : h * p + h, None], Z[:, h * p + h :]
        joint = np.concatenate([W, b], 2).astype(np.float64) @ C
        scale = np.trace(C) / (p + 1)
        parts = (joint[:, :, :p].reshape(len(Z), -1), joint[:, :, p], rest * scale)
        return np.concatenate(parts, 1) / (h * np.trace(C) + rest.shape[1] * scale)


def prior_of(model: Perceptron, public: Tensor | None) -> Prior:
    """public: digits (n, p) of the same kind that the attacker has; None: it has none."""
    (hidden, pixels), size = model.W.shape, sum(map(torch.numel, (model.W, model.b, model.V, model.c)))
    if public is None:
        return Prior(hidden, pixels, size)
    rows = torch.cat([public, torch.ones(len(public), 1)], 1).double().numpy()
    return Prior(hidden, pixels, size, rows.T @ rows / len(rows) + 1e-4 * np.eye(pixels + 1))


def side_of(pixels: int) -> int:
    return math.isqrt(pixels)
