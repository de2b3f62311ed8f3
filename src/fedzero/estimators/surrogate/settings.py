"""Settings of the surrogates, as a recipe has them."""

from __future__ import annotations

from typing import Literal

from fedzero.estimators.surrogate.kernels import Kernel, Rbf
from fedzero.estimators.surrogate.process import Everything, GradientSurrogate, Scaling, Window
from fedzero.model.numbers import Positive, PositiveInt
from fedzero.model.value import Checked


class Surrogate(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The process over a client's own queries."""

    kernel: Kernel = Rbf()
    """covariance of values at two points"""
    fit_scale: bool = False
    """Fit ℓ by maximum likelihood at every gradient; only with window.kind = "nearest"."""
    noise: Positive = 1e-6
    """σ², in units of the scaled outputs"""
    window: Window = Everything()
    scaling: Scaling = "min-max"
    """of the observed values: to [0, 1], minus their mean, or none"""

    def empty(self, dimension: int) -> GradientSurrogate:
        return GradientSurrogate(dimension, self.kernel, self.noise, self.window, self.scaling, self.fit_scale)


class Transfer(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The random features that represent a surrogate on the wire."""

    count: PositiveInt = 10_000
    """M"""
    scale: Positive = 1.0
    """ℓ"""
    noise: Positive = 1e-5
    """σ²"""
    window: Window = Everything()


class Active(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a client queries: of candidates in a small box around a point, the most uncertain."""

    initial: PositiveInt = 20
    """how many around x_r in a client's first turn"""
    a_step: PositiveInt = 5
    """how many around every iterate"""
    candidates: PositiveInt = 100
    """of how many"""
    around: PositiveInt = 20
    """how many around x_{r+1} at the end of a turn"""
    around_candidates: PositiveInt = 200
    """of how many"""
    reach: Positive = 0.01
    """half the side of the box"""
    by: Literal["uncertainty", "chance"] = "uncertainty"
    """which candidates are queried: the most uncertain, or any"""
    shared: bool = False
    """The same candidates, relative to their centre, for all clients."""
