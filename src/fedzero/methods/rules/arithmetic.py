"""Powers and roots that have the same bits on every machine."""

from __future__ import annotations

from torch import Tensor


def power(base: float, exponent: int) -> float:
    """baseᵉ by repeated squaring: a library's pow may differ in the last bit between machines."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def root(x: Tensor) -> Tensor:
    """√x in float32, correctly rounded on every device.

    A library's float32 root may be off by one unit in the last place (one in 150 was, CPU against GPU). The exact root
    of a float32 number is so far from the middle between two float32 numbers that an error in float64's last place
    cannot matter.
    """
    return x.double().sqrt().float()
