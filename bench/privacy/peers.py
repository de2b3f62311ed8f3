"""Peers and controls of private training at the level of clients: a perceptron, in plain torch, a cohort at a time.

Every method turns the data of a client into one vector, and all that follows is the same:

    u_i = −Z ∇f_i(x)        "gradient": what fedzero's clients measure by differences, without their error
    u_i = Z (x_i − x)       "sketch":   the change of x by local steps on the client, along the same directions
    u_i = −∇f_i(x)          "fedsgd":   DP-FedSGD
    u_i = x_i − x           "fedavg":   DP-FedAvg (McMahan et al., 1710.06963)

    g = (Σ_{i ∈ Poisson(q)} u_i/‖u_i‖ + N(0, σ²)) / (q N)          (P,) or (d,)
    x ← x + η Zᵀ (g/rms(g)) / √P   or   x + η g/rms(g)              "rms": a step moves a weight by η
    v ← 0.9 v + g,  x ← x + η v                                     "momentum"

Z has P rows of d signs and is drawn again in every round; η falls in a straight line to zero. Noise and draws are
floating-point pseudorandom numbers: that is enough to compare accuracies, and no protection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

HIDDEN, CLASSES = 64, 10
LOCAL_BATCH, LOCAL_RATE, BETA = 20, 0.1, 0.9
PROJECTED = ("gradient", "sketch")
AVERAGED = ("sketch", "fedavg")


@dataclass(frozen=True, eq=False)
class Clients:
    """Client i has x[i] (rows, inputs) and y[i] (rows,), as many rows each; `test` is nobody's."""

    x: Tensor
    y: Tensor
    test: tuple[Tensor, Tensor]

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Settings:
    """One run of a peer. directions: P, if it has them; sigma: 0 means no noise."""

    method: str
    rule: str
    rate: float
    rounds: int
    q: float
    sigma: float = 0.0
    directions: int = 0
    seed: int = 0


def perceptron(inputs: int, seed: int) -> nn.Sequential:
    """inputs-64-10 with ReLU, the same for every method with that seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def logits(w: Tensor, x: Tensor) -> Tensor:
    """w: all weights, (d,); x: (rows, inputs)."""
    inputs = x.shape[-1]
    shapes = ((HIDDEN, inputs), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))
    A, a, B, b = (v.view(s) for v, s in zip(w.split([math.prod(s) for s in shapes]), shapes, strict=True))
    return F.linear(F.relu(F.linear(x, A, a)), B, b)


def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits(w, x), y)


def accuracy(w: Tensor, test: tuple[Tensor, Tensor]) -> float:
    x, y = test
    return float((logits(w, x).argmax(-1) == y).double().mean())


def gradients(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(m, d) at one point (d,) for m clients."""
    return vmap(grad(loss), (None, 0, 0))(w, x, y)


def changes(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(m, d): local steps of SGD once over each client's rows."""
    local = w.expand(len(x), -1)
    for first in range(0, x.shape[1], LOCAL_BATCH):
        part = slice(first, first + LOCAL_BATCH)
        local = local - LOCAL_RATE * vmap(grad(loss))(local, x[:, part], y[:, part])
    return local - w


def unit(u: Tensor) -> Tensor:
    """Rows of norm one; a row of zeros stays."""
    return u / u.norm(dim=1, keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)


def noisy_mean(settings: Settings, u: Tensor, expected: float, draw: torch.Generator) -> Tensor:
    """g of the vectors (m, k) of those who take part, who may be nobody."""
    noise = torch.randn(u.shape[1], generator=draw, device=u.device)
    return (unit(u).sum(0) + settings.sigma * noise) / expected


def trained(settings: Settings, clients: Clients) -> float:
    """The accuracy on the test rows after the last round."""
    device, n = clients.x.device, len(clients)
    coins = torch.Generator().manual_seed(settings.seed)
    draw = torch.Generator(device).manual_seed(settings.seed)
    w = flat(perceptron(clients.x.shape[-1], settings.seed)).to(device)
    velocity = torch.zeros_like(w)
    local = changes if settings.method in AVERAGED else lambda *at: -gradients(*at)
    for t in range(settings.rounds):
        drawn = (torch.rand(n, generator=coins) < settings.q).nonzero()[:, 0].to(device)
        u = local(w, clients.x[drawn], clients.y[drawn]) if len(drawn) else w.new_zeros(0, len(w))
        Z = signs(settings.directions, len(w), draw) if settings.method in PROJECTED else None
        g = noisy_mean(settings, u if Z is None else u @ Z.T, settings.q * n, draw)
        rate = settings.rate * (1 - t / settings.rounds)
        if settings.rule == "momentum":
            velocity = BETA * velocity + g
            w = w + rate * velocity
            continue
        g = g / g.square().mean().sqrt().clamp(min=torch.finfo(g.dtype).tiny)
        w = w + rate * (g if Z is None else g @ Z / math.sqrt(len(Z)))
    return accuracy(w, clients.test)


def signs(count: int, size: int, draw: torch.Generator) -> Tensor:
    """(P, d) of ±1"""
    return torch.randint(0, 2, (count, size), generator=draw, device=draw.device, dtype=torch.int8).float() * 2 - 1


def bytes_up(settings: Settings, size: int) -> int:
    """Of a client in a turn: float32."""
    return 4 * (settings.directions if settings.method in PROJECTED else size)
