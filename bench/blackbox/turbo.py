"""TuRBO-1, a Gaussian process within one trust region (Eriksson et al., "Scalable global optimization via local
Bayesian optimization"), with botorch: the peer of bench/blackbox/compare.py. u in [0, 1]^d, batches by Thompson
sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.generation import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from numpy.typing import NDArray
from torch import Tensor
from torch.quasirandom import SobolEngine

Floats = NDArray[np.float64]
FIRST, SHORTEST, LONGEST, SUCCESSES = 0.8, 0.5**7, 1.6, 3
"""Sides of the trust region, in lengths of the box, and how many batches in a row make it longer: as in the paper."""


def turbo(ask: Callable[[Floats], Floats], start: Floats, batch: int, seed: int) -> None:
    """Asks for values of points (n, d) until `ask` raises; a region that has become too small is begun anew."""
    torch.manual_seed(seed)
    d, first = len(start), start[None]
    while True:
        sobol = SobolEngine(d, scramble=True, seed=seed).draw(2 * d - len(first), dtype=torch.float64).numpy()
        points = np.concatenate([first, sobol])
        x, y = torch.from_numpy(points), torch.from_numpy(ask(points))
        length, won, lost, patience = FIRST, 0, 0, math.ceil(max(4, d) / batch)
        while length >= SHORTEST:
            chosen = thompson(x, y, length, batch)
            values = torch.from_numpy(ask(chosen.numpy()))
            better = bool(values.min() < y.min() - 1e-3 * abs(float(y.min())))
            x, y = torch.cat([x, chosen]), torch.cat([y, values])
            won, lost = (won + 1, 0) if better else (0, lost + 1)
            if won == SUCCESSES:
                length, won = min(2 * length, LONGEST), 0
            elif lost == patience:
                length, lost = length / 2, 0
        seed, first = seed + 1, np.empty((0, d))


def thompson(x: Tensor, y: Tensor, length: float, batch: int) -> Tensor:
    """The minima of `batch` samples of the process on candidates in the region around the best point."""
    d, scaled = x.shape[1], -(y - y.mean()) / (y.std() + 1e-12)
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=d))
    model = SingleTaskGP(x, scaled[:, None], covar_module=kernel, outcome_transform=None)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 50}})
    scale = kernel.base_kernel.lengthscale.detach().flatten()
    side = length * scale / scale.log().mean().exp()  # volume lengthᵈ
    centre = x[y.argmin()]
    low, high = (centre - side / 2).clamp(0, 1), (centre + side / 2).clamp(0, 1)
    count = min(2000, max(500, 100 * d))
    anywhere = low + (high - low) * torch.rand(count, d, dtype=x.dtype)
    moved = torch.rand(count, d) < min(20 / d, 1.0)
    moved[torch.arange(count), torch.randint(d, (count,))] = True
    candidates = torch.where(moved, anywhere, centre)
    with torch.no_grad():
        return MaxPosteriorSampling(model, replacement=False)(candidates, num_samples=batch)
