"""The general correction form of the FZooS paper, eq. (6), and its finite-difference instances.

    ĝ = g_i(x) + γ (g_{r−1}(x') − g_{i,r−1}(x''))

The term in brackets makes the method: control variates estimated again at the round's start (SCAFFOLD type I), averages
of the estimates of earlier local steps (type II), surrogates (FZooS), or, as a pull instead, x − x_r (FedProx). Each is
a `local_steps.Correction`: a function of the point.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fedzero.estimators.surrogate import Features
from fedzero.methods.rules.arithmetic import power
from fedzero.methods.shared.local_steps import Correction
from fedzero.model.numbers import Fraction, NonNegative, Positive
from fedzero.model.params import Params
from fedzero.model.value import Checked


def control_variate(everybody: Tensor, own: Tensor, gamma: float) -> Correction:
    """γ (c − c_i), the same at every point."""
    constant = (everybody - own) * gamma
    return lambda x: constant


def proximal(start: Tensor, gamma: float) -> Correction:
    """γ (x − x_r)"""

    def pull(x: Params) -> Tensor:
        return (x.vector() - start) * gamma

    return pull


def transferred(features: Features, everybody: Tensor, own: Tensor) -> Callable[[Tensor], Tensor]:
    """∇μ̂(x) − ∇μ̂_i(x) = ∇φ(x)ᵀ (w − w_i), at any point (d,)"""
    difference = everybody - own
    return lambda x: features.gradient(difference, x)


class Inverse(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="inverse"):
    """γ_t = 1/t, t the local step."""

    def at(self, step: int, round: int, steps: int) -> float:
        return 1 / step


class Constant(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="constant"):
    """γ, the same at every step."""

    value: Fraction = 1.0
    """γ"""

    def at(self, step: int, round: int, steps: int) -> float:
        return self.value


class Corollary(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="corollary"):
    """γ_r = G / (G + 2ωκ ρ^((r−1)T) + 2Nε), corollary 1 of the FZooS paper."""

    heterogeneity: Positive = 1.0
    """G, the mean of ‖∇f_i − ∇F‖²"""
    error: NonNegative = 1.0
    """ωκ, error of the surrogates before the first query"""
    decay: Fraction = 0.9
    """ρ, factor of that error per step"""
    features_error: NonNegative = 0.0
    """Nε, error of the random features"""

    def at(self, step: int, round: int, steps: int) -> float:
        error = self.error * power(self.decay, max(round - 1, 0) * steps) + self.features_error
        return self.heterogeneity / (self.heterogeneity + 2 * error)


Gamma = Inverse | Constant | Corollary
"""Correction length γ at step t = 1 … T of round r = 1, 2, …"""
