"""Rows fitted to scalars directly: fewer measurements than parameters are enough, since a row has fewer numbers still.

    min over x in [0, 1]^p and label c of  ‖Z_n ∇f(θ; x, c) − y‖²         n ≥ p is what counts, not n ≥ d

The model θ is known. It works for one row to a client. Every label is tried; pixels are sigmoids of free numbers; Adam
for a fixed number of steps, all clients and labels at once.
"""

from __future__ import annotations

import torch
from bench.attacks.digits import CLASSES, Perceptron
from torch import Tensor

from fedzero.oracles.contract import F32, F64

STEPS, RATE = 400, 0.1


def fitted(model: Perceptron, Z: F32, seen: F64, public: Tensor) -> F64:
    """(m, p): the digit for each column of `seen` (n, m). The start is the mean of `public` digits (k, p)."""
    model = Perceptron(*(part.float() for part in (model.W, model.b, model.V, model.c)))
    count, pixels = seen.shape[1], public.shape[1]
    labels = torch.arange(CLASSES).repeat(count)
    target = torch.from_numpy(seen).float().repeat_interleave(CLASSES, 1)
    known = torch.from_numpy(Z[: len(seen)])
    start = torch.logit(public.mean(0).clamp(0.02, 0.98)).expand(count * CLASSES, pixels)
    free = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([free], lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        misfits = _misfits(model, known, free, labels, target)
        misfits.sum().backward()
        optimiser.step()
    with torch.no_grad():
        misfits = _misfits(model, known, free, labels, target).view(count, CLASSES)
        best = torch.arange(count) * CLASSES + misfits.argmin(1)
        found: F64 = torch.sigmoid(free[best]).double().numpy()
    return found


def _misfits(model: Perceptron, Z: Tensor, free: Tensor, labels: Tensor, target: Tensor) -> Tensor:
    """Of every column the squared distance, as a share of what was seen."""
    gradients = model.gradients(torch.sigmoid(free)[:, None], labels[:, None])
    return ((Z @ gradients.T - target) ** 2).sum(0) / (target**2).sum(0)
