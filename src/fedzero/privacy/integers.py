"""Vectors of units (clients, rows, persons) as integers of bounded norm.

    rows = clipped(vectors, C)                    or normalised(vectors, C); shape [units, P]
    grid = choose_grid(C, P, units=N)             integers per unit of value: a power of two
    whole = quantised(rows, grid, draws)          int64 [units, P], each row with whole · whole ≤ grid.allowance
    floats(whole.sum(0), grid)                    exact, if below 2²⁴ in magnitude

Sums of integers are exact, so nothing about a unit hides in an order of additions or a last bit. Rounding at random
keeps the mean and makes a vector longer. Kairouz, Liu and Steinke (arXiv:2102.06387, theorem 1 and proposition 22, here
with scale s = 1/γ and β = exp(−1/2)) draw the rounding again while the squared norm of the integers exceeds

    (sC)² + P/4 + √(2 ln 1/β) (sC + √P/2) = (sC)² + P/4 + sC + √P/2

which happens with a probability of at most β. Their other bound, (sC + √P)², is never smaller for this β. The ceiling
of the right side is the *allowance* L. The norm is checked as an integer, so the sensitivity of a sum is √L by what was
checked and not by what was computed in floating point. Noise has to be measured by it: of standard deviation σ √L for a
noise multiplier σ (`Grid.noise`), a little more than σ s C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import Invalid
from fedzero.privacy.words import Draws

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

EXACT = 1 << 24
"""Integers below it in magnitude are float32 numbers, and so are they divided by a power of two."""
LARGEST = 1 << 30
"""sC + √P is below it, so that the allowance is below 2⁶⁰."""
EXPONENTS = range(-100, 101)
TAIL = 12
"""Standard deviations of noise that have room in a field: beyond them lie 4 · 10⁻³³ of a Gaussian."""
INFLATION = Fraction(11, 10)
"""√L is at most so many times sC: on a coarser grid, rounding would cost more noise than clipping does."""
ATTEMPTS = 1_000
"""Roundings of a row; all fail with a probability of at most exp(−500). The row is zero then."""
STEP = 1 << 20
"""Standard deviations of noise are multiples of 1/STEP, rounded up."""


@dataclass(frozen=True)
class Grid:
    """count numbers of norm at most `clip`, times 2**exponent, as integers."""

    clip: float
    exponent: int
    count: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise Invalid(f"clip = {self.clip} is not valid: a finite number above 0")
        if self.count < 1 or self.exponent not in EXPONENTS:
            raise Invalid(f"no grid of {self.count} numbers with a scale of 2**{self.exponent}")
        if self.radius + _root_above(self.count) >= LARGEST:
            raise Invalid(f"scale = 2**{self.exponent} is too fine for clip = {self.clip}: norms would exceed 64 bits")

    @property
    def scale(self) -> Fraction:
        return Fraction(2) ** self.exponent

    @property
    def radius(self) -> Fraction:
        """sC, exactly."""
        return self.scale * Fraction(self.clip)

    @property
    def allowance(self) -> int:
        """L = ⌈(sC)² + P/4 + sC + √P/2⌉, the largest squared norm of a row of integers."""
        return math.ceil(self.radius**2 + Fraction(self.count, 4) + self.radius + _root_above(self.count) / 2)

    @property
    def largest(self) -> int:
        """The largest magnitude of a single integer: ⌈sC⌉ + 1."""
        return math.ceil(self.radius) + 1

    def noise(self, sigma: float, parties: int = 1) -> Fraction:
        """At least σ √(L/parties): the standard deviation, in integers, of the noise of one of so many parties."""
        return _root_above(Fraction(sigma) ** 2 * self.allowance / parties)


def choose_grid(
    clip: float,
    count: int,
    *,
    units: int,
    message: int | None = None,
    sigma: float = 0.0,
    surplus: float = 1.0,
    field: int | None = None,
) -> Grid:
    """The finest grid on which nothing overflows.

    units: the most units in a sum, N: every row of the data, not the expected number of a Poisson draw.
    message: the most units in one client's message (None: all), whose sums are sent as float32: message (⌈sC⌉ + 1) <
    2²⁴.
    sigma, surplus, field: of all noise in the sum the multiplier, of variance surplus · σ² L (more parties add noise
    than are counted on), and the number of elements of the field: N (⌈sC⌉ + 1) + 12 √surplus σ √L < field/2.
    """
    for exponent in reversed(EXPONENTS):
        try:
            grid = Grid(clip, exponent, count)
        except Invalid:
            if exponent == EXPONENTS[0] or not math.isfinite(clip) or clip <= 0 or count < 1:
                raise
            continue
        noise = TAIL * _root_above(Fraction(surplus)) * grid.noise(sigma)
        fits = field is None or 2 * (units * grid.largest + noise) < field
        if fits and (units if message is None else message) * grid.largest < EXACT:
            if grid.allowance > INFLATION**2 * grid.radius**2:
                break
            return grid
    raise Invalid(f"no grid has room for {units} units of {count} numbers: use fewer, or a larger field")


def clipped(vectors: NDArray[np.floating], clip: float) -> F64:
    """v min(1, C/‖v‖₂) for each row v; rows with NaN or infinity are zero rows."""
    rows, unit, length = _measured(vectors)
    return np.where(length <= clip, rows, clip * unit)


def normalised(vectors: NDArray[np.floating], clip: float) -> F64:
    """C v/‖v‖₂ for each row v, and zero for v = 0; rows with NaN or infinity are zero rows."""
    return clip * _measured(vectors)[1]


def _measured(vectors: NDArray[np.floating]) -> tuple[F64, F64, F64]:
    """Rows, the same with norm 1 (or 0), and their norms, [units, 1]. They are divided by their largest magnitude
    before they are squared: nothing overflows, nothing vanishes."""
    rows = np.array(vectors, np.float64, ndmin=2)
    rows[~np.isfinite(rows).all(1)] = 0.0
    largest = np.abs(rows).max(1, initial=0.0, keepdims=True)
    unit = np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0)
    length = np.sqrt((unit * unit).sum(1, keepdims=True))
    with np.errstate(over="ignore"):  # an infinite norm is larger than every clip
        return rows, np.divide(unit, length, out=unit, where=length > 0), largest * length


def quantised(rows: F64, grid: Grid, draws: Draws) -> I64:
    """Each s v rounded at random, ⌊x⌋ + 1 with probability x − ⌊x⌋, again while its squared norm exceeds the allowance.
    Rows that were not clipped to grid.clip become zero rows. What is drawn again makes a mean shorter, by a part of a
    step.
    """
    if rows.ndim != 2 or rows.shape[1] != grid.count:
        raise Invalid(f"vectors of shape {rows.shape} are not valid: [units, {grid.count}]")
    found = np.zeros(rows.shape, np.int64)
    with np.errstate(over="ignore", invalid="ignore"):  # of rows that nobody clipped: their norms compare as too large
        scaled = np.ldexp(rows, grid.exponent)
        (left,) = np.nonzero(_length(scaled) <= float(grid.radius) * (1 + 1e-9))
    for _ in range(ATTEMPTS):
        if not len(left):
            break
        whole = np.floor(scaled[left])
        up = _uniform(whole.shape, draws) < scaled[left] - whole
        tried = whole.astype(np.int64) + up
        fits = within(tried, grid)
        found[left[fits]] = tried[fits]
        left = left[~fits]
    return found


def within(whole: I64, grid: Grid) -> NDArray[np.bool_]:
    """Which rows of integers have a squared norm of at most the allowance; exact for all of 64 bits.

    The allowance is below 2⁶⁰. A row of twice the norm is refused by its norm in floating point, and the squares of
    every other one add up to less than 2⁶³.
    """
    near = _length(whole.astype(np.float64)) ** 2 <= 4.0 * grid.allowance
    safe = np.where(near[:, None], whole, 0)
    return np.asarray(near & ((safe * safe).sum(1) <= grid.allowance))


def _length(rows: F64) -> F64:
    return np.asarray(np.sqrt((rows * rows).sum(1)))


def floats(total: I64, grid: Grid) -> NDArray[np.float32]:
    """total / s as float32, exactly; `Invalid` where a float32 number cannot hold it."""
    if (np.abs(total) >= EXACT).any():
        raise Invalid("a sum is not a float32 number: the grid was chosen for fewer units")
    return np.ldexp(total.astype(np.float32), -grid.exponent)


def _uniform(shape: tuple[int, ...], draws: Draws) -> F64:
    """53 random bits each. That they are not more makes a mean wrong by 2⁻⁵³ of a step, and no norm larger."""
    bits = np.frombuffer(draws(8 * math.prod(shape)), "<u8") >> np.uint64(11)
    return np.ldexp(bits.astype(np.float64), -53).reshape(shape)


def _root_above(number: Fraction | int) -> Fraction:
    """The smallest multiple of 1/STEP that is not below the square root."""
    return Fraction(1 + isqrt(math.ceil(number * STEP**2) - 1), STEP) if number else Fraction(0)


__all__ = ["Draws", "Grid", "choose_grid", "clipped", "floats", "normalised", "quantised", "within"]
