"""Whether points side by side have the values of views: points to try it at, and the comparison."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Terms
from fedzero.model.params import Params

TRIED = 3
"""Points of a trial at most."""
FAR = 0.3
"""How far, by the root mean square of what is trained: values differ by much more than rounding in float32."""
FAR_IN_16_BITS = (0.1, 0.3, 1.0, 3.0)
"""Nearer, since far away a deep model amplifies rounding until nothing can be compared. Where values differ by little
more than rounding there, farther: adapters that begin at B = 0 move W by scaling · B A, which is small in both."""


def trials(base: Params, points: Sequence[Terms]) -> Iterator[list[Terms]]:
    """Some of the points, farther away in each trial. They agree if they do so in one of these: what is no rounding
    grows with the distance as values do."""
    rms = math.sqrt(sum(float(t.float().square().sum()) for t in base.tensors.values()) / base.size)
    moved = [terms for terms in points if len(terms) and terms.coefficients.any()][:TRIED]
    for share in (FAR,) if all(t.dtype == torch.float32 for t in base.tensors.values()) else FAR_IN_16_BITS:
        far = share * rms if math.isfinite(rms) and rms else 0.1
        scales = [np.float32(far / np.abs(terms.coefficients).max()) for terms in moved]
        there = [Terms(t.keys, t.coefficients * scale, t.stream) for t, scale in zip(moved, scales, strict=True)]
        yield there if len(there) != 1 else [*there, Terms(there[0].keys, -there[0].coefficients, there[0].stream)]


def agree(found: Tensor, wanted: Tensor, exact: bool) -> bool:
    """Whether values of points (points, …) are the same but for rounding; `exact`: in float32 with exact products.

    With coarser products by the root mean square, and generously: a parameter that is read where nobody expects it is
    NaN and needs no trial, and rows that depend on each other are off by as much as points differ.
    """
    error, deviation, floor = found - wanted, wanted - wanted.mean(0), 1e-3 * wanted.abs().max()
    if exact:
        return bool(error.abs().max() <= 2e-3 * (deviation.abs().max() + floor))
    return bool(_rms(error) <= 0.3 * (_rms(deviation) + floor))


def _rms(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()


def warn_one_by_one(what: str) -> None:
    """A language model that needs a pass for every point is many times slower: say so."""
    warnings.warn(
        f"points are evaluated one by one, which is slower: side by side this model {what}",
        RuntimeWarning,
        stacklevel=3,
    )
