"""What a step does with the estimated gradient: the rules of `fedzero.directions.Rule` with their hyper-parameters.

State (momentum, moments) is a function of the scalars alone, so every replica rebuilds it by the same fold. Where the
gradient is already a vector of numbers, `dense_step` takes the same step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedzero.directions import Rule
from fedzero.methods.rules.arithmetic import power, root
from fedzero.model.numbers import Positive, ProperFraction
from fedzero.model.value import Checked


class Sgd(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="sgd"):
    """x ← x − η G."""

    @property
    def rule(self) -> Rule:
        return Rule.SGD

    def hypers(self, rate: float, step: int) -> tuple[float, ...]:
        return ()


class Momentum(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="momentum"):
    """M ← β M + (1−β) G;  x ← x − η M."""

    beta: ProperFraction = 0.9
    """β, how much of M stays"""

    @property
    def rule(self) -> Rule:
        return Rule.MOMENTUM

    def hypers(self, rate: float, step: int) -> tuple[float, ...]:
        return rate, self.beta, 1 - self.beta


class Adam(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="adam"):
    """m ← β1 m + (1−β1) G;  v ← β2 v + (1−β2) G²;  x ← x − η m̂ / (√v̂ + ε), with the usual bias correction."""

    beta1: ProperFraction = 0.9
    """β1, how much of the mean stays"""
    beta2: ProperFraction = 0.999
    """β2, how much of the mean square stays"""
    epsilon: Positive = 1e-8
    """ε, added to the denominator"""

    @property
    def rule(self) -> Rule:
        return Rule.ADAM

    def hypers(self, rate: float, step: int) -> tuple[float, ...]:
        # η m̂/(√v̂ + ε) = (η √c2/c1) m / (√v + ε√c2) with c = 1 − βᵗ: the correction moves into two scalars.
        c1, c2 = 1 - power(self.beta1, step + 1), math.sqrt(1 - power(self.beta2, step + 1))
        return rate * c2 / c1, self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2, self.epsilon * c2


class Sign(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="sign"):
    """x ← x − η sign(G)."""

    @property
    def rule(self) -> Rule:
        return Rule.SIGN

    def hypers(self, rate: float, step: int) -> tuple[float, ...]:
        return (rate,)


Optimizer = Sgd | Momentum | Adam | Sign

Moments = tuple[Tensor, ...]
"""What a rule remembers of earlier steps: nothing, M, or m and v; empty before the first step."""


def dense_step(
    optimizer: Optimizer, moments: Moments, gradient: Tensor, rate: float, step: int
) -> tuple[Tensor, Moments]:
    """(what to add to x, moments) of step `step` = 0, 1, … with G a vector of numbers, (d,).

    Numbers stay of the gradient's type. One rounded operation at a time and in the order of `Params.advance`, so that
    float32 steps have the same bits on every device, and those of a fold.
    """
    h = optimizer.hypers(rate, step)
    if isinstance(optimizer, Momentum):
        (before,) = moments or (torch.zeros_like(gradient),)
        m = before * h[1] + gradient * h[2]
        return m * -h[0], (m,)
    if isinstance(optimizer, Adam):
        first, second = moments or (torch.zeros_like(gradient), torch.zeros_like(gradient))
        m = first * h[1] + gradient * h[2]
        v = second * h[3] + (gradient * gradient) * h[4]
        # Through float32, `root` would cost a float64 gradient its last digits.
        length = v.sqrt() if v.dtype == torch.float64 else root(v)
        return (m * -h[0]) / (length + h[5]), (m, v)
    return (gradient.sign() if isinstance(optimizer, Sign) else gradient) * -rate, ()
