"""The general correction form of the FZooS paper, eq. (6), and its finite-difference instances.

    ĝ = g_i(x) + γ (g_{r−1}(x') − g_{i,r−1}(x''))

What stands in the brackets makes the method: control variates estimated anew at the round's start (SCAFFOLD type I),
the averages of the estimates of earlier walks (type II), surrogates (FZooS), or, as a pull instead, x − x_r (FedProx).
Each is a `walk.Correction`: a function of the point.
"""

from __future__ import annotations

from torch import Tensor

from fedzero.algorithms.walk import Correction
from fedzero.params import Params


def control_variate(everybody: Tensor, own: Tensor, gamma: float) -> Correction:
    """γ (c − c_i), the same at every point."""
    constant = (everybody - own) * gamma
    return lambda x: constant


def proximal(start: Tensor, gamma: float) -> Correction:
    """γ (x − x_r)"""

    def pull(x: Params) -> Tensor:
        return (x.vector() - start) * gamma

    return pull
