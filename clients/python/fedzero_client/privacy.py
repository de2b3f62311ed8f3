"""The device's half of privacy: the vector of a turn, bounded, as integers; noise of its own, if the run asks for it.

    v → C v / max(C, ‖v‖)  or  C v / ‖v‖           the whole vector of a turn, K·P numbers
    k = s v rounded at random, again while ‖k‖² > L      L = ⌈(sC)² + n/4 + sC + √n/2⌉, n = K·P
    k + discrete Gaussian of variance ⌈σ √L⌉²            local noise alone; ⌈ ⌉: to the next multiple of 2⁻²⁰

A vector with NaN or infinite numbers is a zero vector. Nothing else about the data leaves the device. The norm is
checked in integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedzero_client.errors import ClientError
from fedzero_client.noise import discrete_gaussian

Entropy = Callable[[int], bytes]
"""So many random bytes that nobody else knows."""
CLIENT = 1
CENTRAL, LOCAL = 1, 2
CLIPPED, NORMALISED = 1, 2
ATTEMPTS = 1_000
STEP = 1 << 20
LEAST_SIGMA, LARGEST_DELTA = 0.2, 0.1


@dataclass(frozen=True)
class Privacy:
    """As the plan has it. clip: C; scale: s, a power of two; sigma: σ; delta: δ."""

    unit: int
    noise: int
    bound: int
    clip: float
    scale: float
    sigma: float
    delta: float

    def check(self, places: int, count: int) -> None:
        """Refuse what is not known here, or promises nothing."""
        whole = math.frexp(self.scale)[0] == 0.5 and 2.0**-100 <= self.scale <= 2.0**100
        odd = (
            (self.unit != CLIENT, f"privacy of the unit {self.unit}"),
            (self.noise not in (CENTRAL, LOCAL), f"noise of kind {self.noise}"),
            (self.bound not in (CLIPPED, NORMALISED), f"a bound of kind {self.bound}"),
            (not (whole and 0 < self.clip < math.inf and self.scale * self.clip < 1 << 24), "integers out of range"),
            (not LEAST_SIGMA <= self.sigma < math.inf, f"σ = {self.sigma:g}"),
            (not 0 < self.delta * places <= LARGEST_DELTA * (1 + 1e-9), f"δ = {self.delta:g} for {places} places"),
            (not 1 <= count <= 1 << 20, f"{count} numbers in a turn"),
        )
        for holds, what in odd:
            if holds:
                raise ClientError(f"the run has {what}, which is not in this client's profile of privacy")

    def allowance(self, count: int) -> int:
        """L"""
        radius, root = Fraction(self.scale) * Fraction(self.clip), _root_above(Fraction(count))
        return math.ceil(radius**2 + Fraction(count, 4) + radius + root / 2)

    def sent(self, values: NDArray[np.float32], entropy: Entropy) -> bytes:
        """The bytes of a turn: int32 with central noise, int64 with noise of the device; little-endian."""
        whole = self.integers(values, entropy)
        if self.noise == CENTRAL:
            return whole.astype("<i4").tobytes()
        share = _root_above(Fraction(self.sigma) ** 2 * self.allowance(values.size))
        drawn = discrete_gaussian(share * share, values.size, entropy)
        return np.array([int(k) + z for k, z in zip(whole, drawn, strict=True)], "<i8").tobytes()

    def integers(self, values: NDArray[np.float32], entropy: Entropy) -> NDArray[np.int64]:
        """The bounded vector as integers whose squared norm is at most L."""
        scaled, allowance = self._bounded(values) * self.scale, self.allowance(values.size)
        if not math.sqrt(float((scaled * scaled).sum())) <= self.clip * self.scale * (1 + 1e-9):
            return np.zeros(values.size, np.int64)
        for _ in range(ATTEMPTS):
            down = np.floor(scaled)
            coins = np.frombuffer(entropy(8 * values.size), "<u8") >> np.uint64(11)
            whole = down.astype(np.int64) + (np.ldexp(coins.astype(np.float64), -53) < scaled - down)
            if sum(k * k for k in whole.tolist()) <= allowance:
                return whole
        return np.zeros(values.size, np.int64)

    def _bounded(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        row = values.astype(np.float64)
        if not np.isfinite(row).all() or not row.any():
            return np.zeros(values.size)
        largest = np.abs(row).max()  # nothing overflows, nothing vanishes
        unit = row / largest
        length = math.sqrt(float((unit * unit).sum()))
        if self.bound == CLIPPED and largest * length <= self.clip:
            return row
        return self.clip * (unit / length)


def _root_above(number: Fraction) -> Fraction:
    """The smallest multiple of 1/STEP that is not below the square root."""
    return Fraction(1 + math.isqrt(math.ceil(number * STEP**2) - 1), STEP)
