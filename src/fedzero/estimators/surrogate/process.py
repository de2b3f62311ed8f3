"""A Gaussian process over the queries of a client, and its gradient (Shu et al., FZooS).

    H = (K + σ²I)⁻¹       s_i = slope(‖x − x_i‖²)
    ∇μ(x)     = ∂k(x)ᵀ H y                                          posterior mean of the gradient, (d,)
    tr ∂σ²(x) = d·roughness − Σ_ij H_ij s_i s_j (x_i − x)·(x_j − x)     its uncertainty

The trace of the d×d covariance takes quadratic forms with n×n matrices only, for all candidates at once; p_i = x_i·x:

    Σ_ij H_ij s_i s_j (x_i·x_j − p_i − p_j + x·x) = sᵀ(H∘XXᵀ)s − 2 (s∘p)ᵀHs + x·x sᵀHs

What a `GradientSurrogate` returns is a function of the observations in order and by blocks: a client that observes the
same again gets the same, to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedzero.errors import FedzeroError
from fedzero.estimators.surrogate.factor import BLOCK, Factor, NotPositive
from fedzero.estimators.surrogate.growable import append_rows, enlarge
from fedzero.estimators.surrogate.kernels import Kernel, Rbf, squares_between
from fedzero.model.numbers import PositiveInt
from fedzero.model.value import Checked


class Everything(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="all"):
    """All observations: one factor, to which rows are appended."""


class Nearest(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="nearest"):
    """The observations nearest to the point of the gradient: a small factor, computed for every such point."""

    count: PositiveInt = 150
    """how many"""


class Recent(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="recent"):
    """The last `count` observations or more: at twice as many the older half is dropped, with one fresh factor."""

    count: PositiveInt = 1000


Window = Everything | Nearest | Recent

Scaling = Literal["min-max", "centre", "none"]
"""Of outputs before the process sees them: to [0, 1]; less their mean; not at all."""

LENGTHS = tuple(2.0**power for power in (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4))
"""Length scales among which the likelihood chooses where one is fitted."""
MAX_JITTER = 1e3
"""Kernels are at most 1: with more on the diagonal a factor exists unless a point is NaN."""


@dataclass(frozen=True)
class Rebuild:
    """A factor of a numerically indefinite matrix was computed again with `jitter` on the diagonal."""

    points: int
    jitter: float


@dataclass(frozen=True, eq=False)
class Fit:
    """A process conditioned on some observations."""

    kernel: Kernel
    points: Tensor  # (n, d), relative to `origin`
    origin: Tensor  # (d,)
    factor: Factor
    mean: float
    spread: float
    alpha: Tensor  # (K + σ²I)⁻¹ (y − mean)/spread, (n,)
    gram: Tensor  # points · pointsᵀ, (n, n)

    def value(self, x: Tensor) -> Tensor:
        """μ at points (m, d), (m,)"""
        squares = squares_between(x - self.origin, self.points)
        return self.mean + self.spread * (self.kernel.value(squares) @ self.alpha)

    def gradient(self, x: Tensor) -> Tensor:
        """∇μ(x), (d,)"""
        to_x = (x - self.origin) - self.points
        pull = self.kernel.slope((to_x * to_x).sum(1)) * self.alpha
        return (pull @ to_x) * -self.spread

    def uncertainty(self, x: Tensor) -> Tensor:
        """tr ∂σ² at points (m, d), (m,), in units of scaled outputs."""
        z = x - self.origin
        slopes = self.kernel.slope(squares_between(z, self.points))
        inverse, along = self.factor.inverse, z @ self.points.T
        by_inverse = slopes @ inverse
        known = (z * z).sum(1) * (by_inverse * slopes).sum(1)
        known -= 2 * (by_inverse * along.mul_(slopes)).sum(1)
        for i in range(0, len(self.points), BLOCK):  # H∘XXᵀ is symmetric: the lower half, twice, by blocks
            here, end = slice(i, i + BLOCK), min(i + BLOCK, len(self.points))
            part = inverse[here, :end] * self.gram[here, :end]
            part[:, :i] *= 2
            known += ((slopes[:, here] @ part) * slopes[:, :end]).sum(1)
        return x.shape[1] * self.kernel.roughness - known


class GradientSurrogate:
    """`observe(x, y)`, then `gradient(x)` and `uncertainty(X)` without any further query.

    Points are (n, d) float64, best normalised to [0, 1]^d; y is (n,). Memory for n observations: 8 n d bytes for the
    points, and with a window of `all` 24 n² more (factor, inverse, Gram matrix), in buffers that double when full.
    """

    def __init__(
        self,
        dimension: int,
        kernel: Kernel | None = None,
        noise: float = 1e-6,
        window: Window | None = None,
        scaling: Scaling = "min-max",
        fit_scale: bool = False,
    ):
        self.dimension, self.kernel, self.noise = dimension, kernel or Rbf(), noise
        self.window, self.scaling, self.fit_scale = window or Everything(), scaling, fit_scale
        self.rebuilds: list[Rebuild] = []
        self._x, self._y, self._lengths = _rows(0, dimension), _rows(0, 1), _rows(0, 1)
        self._size = 0
        self._factor, self._gram = Factor(), _rows(0, 0)
        self._first = 0
        self._jitter = 0.0
        self._last: tuple[Tensor, Fit] | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def points(self) -> Tensor:
        """All observed points, (n, d)."""
        return self._x[: self._size]

    @property
    def outputs(self) -> Tensor:
        return self._y[: self._size, 0]

    def observe(self, x: Tensor, y: Tensor) -> None:
        """y = f(x) + noise at points (b, d)."""
        n, x, y = self._size, x.to(torch.float64, copy=True), y.to(torch.float64, copy=True)
        self._x, self._y = append_rows(self._x, n, x), append_rows(self._y, n, y[:, None])
        self._lengths = append_rows(self._lengths, n, ((x - 0.5) ** 2).sum(1, keepdim=True))
        self._size, self._last = n + len(x), None
        if isinstance(self.window, Nearest):
            return
        if isinstance(self.window, Recent) and self._size - self._first > 2 * self.window.count:
            self._first = self._size - self.window.count
            self._rebuild()
        else:
            self._append(n)

    @property
    def bytes(self) -> int:
        """Memory of the buffers."""
        return self._x.nbytes + self._y.nbytes + self._gram.nbytes + self._factor.bytes

    def chosen(self, x: Tensor, nearest: int | None = None) -> Tensor:
        """Indices, sorted, of the `nearest` observations to x (default: of those in the window)."""
        if nearest is None:
            if not isinstance(self.window, Nearest):
                return torch.arange(self._first, self._size)
            nearest = self.window.count
        if self._size <= nearest:
            return torch.arange(self._size)
        # ‖x_i − x‖² less ‖x‖², about the middle of the box: one pass over the points, no copy.
        centre = x - 0.5
        far = self._lengths[: self._size, 0] - 2 * (self.points @ centre) + centre.sum()
        return torch.topk(far, nearest, largest=False, sorted=False).indices.sort().values

    def at(self, x: Tensor) -> Fit:
        """The process as it is used around x, (d,)."""
        if self._last is None or not torch.equal(self._last[0], x):
            self._last = x.clone(), self._fit(x)
        return self._last[1]

    def gradient(self, x: Tensor) -> Tensor:
        """∇μ(x), (d,); zero where nothing was observed, or where it is NaN."""
        if not self._size:
            return torch.zeros_like(x)
        return self.at(x).gradient(x).nan_to_num_(0.0, 0.0, 0.0)

    def uncertainty(self, x: Tensor) -> Tensor:
        """tr ∂σ² at points (m, d), (m,); points of one call share the window around their mean."""
        return self.at(x.mean(0)).uncertainty(x)

    def scaled(self, y: Tensor) -> tuple[float, float]:
        """(mean, spread) by which outputs are scaled."""
        if self.scaling == "none":
            return 0.0, 1.0
        if self.scaling == "centre":
            return float(y.mean()), 1.0
        low, high = float(y.min()), float(y.max())
        return low, (high - low) or 1.0

    def _fit(self, x: Tensor) -> Fit:
        chosen = self.chosen(x)
        y = self.outputs[chosen]
        mean, spread = self.scaled(y)
        targets = (y - mean) / spread
        if not isinstance(self.window, Nearest):
            points = self.points[self._first :] - 0.5
            gram = self._gram[: len(points), : len(points)]
            alpha = self._factor.solve(targets)
            return Fit(self.kernel, points, torch.full_like(x, 0.5), self._factor, mean, spread, alpha, gram)
        points = self.points[chosen] - x
        gram = points @ points.T
        kernel, factor = self._small(gram, targets)
        return Fit(kernel, points, x, factor, mean, spread, factor.solve(targets), gram)

    def _small(self, gram: Tensor, targets: Tensor) -> tuple[Kernel, Factor]:
        """A fresh factor of a few points; the length scale with the largest likelihood, if it is to be fitted."""
        lengths = gram.diagonal()
        squares = (lengths[:, None] + lengths - 2 * gram).clamp_(min=0)
        squares.fill_diagonal_(0)
        kernel = type(self.kernel)(self._likeliest(squares, targets)) if self.fit_scale else self.kernel
        return kernel, self._fresh(kernel.value(squares))

    def _likeliest(self, squares: Tensor, targets: Tensor) -> float:
        """The length scale with the largest likelihood, the output scale at its optimum yᵀ(K + σ²I)⁻¹y / n."""
        shape = type(self.kernel)(1.0)
        lengths = torch.tensor(LENGTHS, dtype=torch.float64)
        values = shape.value(squares / (lengths * lengths)[:, None, None])
        values.diagonal(dim1=1, dim2=2).add_(self.noise)
        lower, failed = torch.linalg.cholesky_ex(values)
        towards = torch.linalg.solve_triangular(lower, targets[None, :, None].expand(len(lengths), -1, 1), upper=False)
        variance = (towards * towards).sum((1, 2)).clamp_(min=1e-300) / len(targets)
        likelihood = -len(targets) * variance.log() - 2 * lower.diagonal(dim1=1, dim2=2).log().sum(1)
        likelihood[(failed != 0) | ~likelihood.isfinite()] = -math.inf
        return LENGTHS[int(likelihood.argmax())]

    def _fresh(self, values: Tensor) -> Factor:
        jitter = 0.0
        while True:
            factor, noisy = Factor(), values.clone()
            noisy.diagonal().add_(self.noise + jitter)
            try:
                factor.append(noisy[:, :0], noisy)
                return factor
            except NotPositive:
                jitter = self._more_jitter(jitter, len(values))

    def _more_jitter(self, jitter: float, points: int) -> float:
        """The next jitter to try, put on record."""
        jitter = max(10 * jitter, self.noise, 1e-10)
        if jitter > MAX_JITTER:
            raise FedzeroError("the surrogate's matrix has no factor: is a point not a number?") from None
        self.rebuilds.append(Rebuild(points, jitter))
        return jitter

    def _append(self, first: int) -> None:
        """Rows of the observations from `first` on, into factor and Gram matrix."""
        held, new = self._x[self._first : self._size] - 0.5, self._x[first : self._size] - 0.5
        n = first - self._first
        products = new @ held.T
        self._gram = enlarge(self._gram, n, n + len(new))
        self._gram[n : n + len(new), : n + len(new)] = products
        self._gram[:n, n : n + len(new)] = products[:, :n].T
        lengths = (held * held).sum(1)
        squares = (lengths[n:, None] + lengths - 2 * products).clamp_(min=0)
        squares[:, n:].fill_diagonal_(0)
        values = self.kernel.value(squares)
        values[:, n:].diagonal().add_(self.noise + self._jitter)
        try:
            self._factor.append(values[:, :n], values[:, n:])
            _ = self._factor.inverse  # from the first rows on, or its bits would depend on when it is first used
        except NotPositive:
            self._jitter = self._more_jitter(self._jitter, n + len(new))
            self._rebuild()

    def _rebuild(self) -> None:
        self._factor, self._gram = Factor(), _rows(0, 0)
        self._append(self._first)


def _rows(count: int, width: int) -> Tensor:
    return torch.empty(count, width, dtype=torch.float64)
