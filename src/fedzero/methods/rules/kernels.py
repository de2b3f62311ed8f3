"""Kernel rules make a step of the estimated gradient: the kernels of `fedzero.directions.Rule` with hyper-parameters.

The state (momentum, moments) is a function of the scalars alone, so every replica rebuilds it by the same fold. If the
gradient is already a vector of numbers, `dense_step` takes the same step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedzero.directions import Rule as Kernel
from fedzero.methods.rules.arithmetic import power, root
from fedzero.methods.rules.contract import Fact, KernelRule, Line, RuleTraits, Step, joined
from fedzero.model.numbers import Positive, ProperFraction


def _no_sum(name: str) -> RuleTraits:
    needs: dict[Fact, str] = {"step": "a method that leaves its step to a rule", "state": "a place for its memory"}
    why = f"a step of {name} is no sum of the directions of its round: leave out one of the two"
    return RuleTraits(needs, {"sum": why})


class Sgd(KernelRule, tag="sgd", kw_only=False):
    """x ← x − η G."""

    kernel: ClassVar[Kernel] = Kernel.SGD

    def hypers(self, rate: float, step: int) -> tuple[float, ...]:
        return ()

    def lines(self, steps: Sequence[Step], taken: int) -> list[Line]:
        """One sum per round, hence one rounding of 16-bit parameters; each correction is a separate line."""
        own = [step for step in steps if step.own]
        sums = [Line(joined([step.change() for step in own]), own[0].rounding, ())] if own else []
        return sums + [Line(step.change(), step.rounding, ()) for step in steps if not step.own]


class Momentum(KernelRule, tag="momentum", kw_only=False):
    """M ← β M + (1−β) G;  x ← x − η M."""

    beta: ProperFraction = 0.9
    """β, how much of M stays"""

    kernel: ClassVar[Kernel] = Kernel.MOMENTUM

    @property
    def traits(self) -> RuleTraits:
        return _no_sum(self.name)

    def hypers(self, rate: float, step: int) -> tuple[float, ...]:
        return rate, self.beta, 1 - self.beta


class Adam(KernelRule, tag="adam", kw_only=False):
    """m ← β1 m + (1−β1) G;  v ← β2 v + (1−β2) G²;  x ← x − η m̂ / (√v̂ + ε), with the usual bias correction."""

    beta1: ProperFraction = 0.9
    """β1, how much of the mean stays"""
    beta2: ProperFraction = 0.999
    """β2, how much of the mean square stays"""
    epsilon: Positive = 1e-8
    """ε, added to the denominator"""

    kernel: ClassVar[Kernel] = Kernel.ADAM

    @property
    def traits(self) -> RuleTraits:
        return _no_sum(self.name)

    def hypers(self, rate: float, step: int) -> tuple[float, ...]:
        # η m̂/(√v̂ + ε) = (η √c2/c1) m / (√v + ε√c2) with c = 1 − βᵗ: the correction moves into two scalars.
        c1, c2 = 1 - power(self.beta1, step + 1), math.sqrt(1 - power(self.beta2, step + 1))
        return rate * c2 / c1, self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2, self.epsilon * c2


class Sign(KernelRule, tag="sign", kw_only=False):
    """x ← x − η sign(G)."""

    kernel: ClassVar[Kernel] = Kernel.SIGN

    @property
    def traits(self) -> RuleTraits:
        return _no_sum(self.name)

    def hypers(self, rate: float, step: int) -> tuple[float, ...]:
        return (rate,)


Optimizer = Sgd | Momentum | Adam | Sign

Moments = tuple[Tensor, ...]
"""The state of an optimizer: nothing, M, or m and v; empty before the first step."""


def dense_step(
    optimizer: Optimizer, moments: Moments, gradient: Tensor, rate: float, step: int
) -> tuple[Tensor, Moments]:
    """(change of x, moments) of step `step` = 0, 1, … with G a vector of numbers, (d,).

    Numbers keep the gradient's type. Operations are rounded one by one, in the order of `Params.advance`, so that
    float32 steps have the same bits on every device, and the same bits as a fold.
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
