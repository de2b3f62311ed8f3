"""Arithmetic modulo 2⁶¹ − 1, beside Python's integers; integers of values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedzero.errors import Refused
from fedzero.gatherings import field
from fedzero.gatherings.field import LARGEST, P

NUMBERS = st.integers(0, P - 1)
EDGES = [0, 1, 2, P - 1, P - 2, 1 << 31, (1 << 31) - 1, 1 << 30, 1 << 60, (1 << 60) - 1]


def of(*numbers: int) -> field.U64:
    return np.array(numbers, np.uint64)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=50))
@example([(a, b) for a in EDGES for b in EDGES])
def test_products_and_sums_are_those_of_integers(pairs) -> None:
    one, other = of(*(a for a, _ in pairs)), of(*(b for _, b in pairs))
    assert field.multiply(one, other).tolist() == [a * b % P for a, b in pairs]
    assert field.add(one, other).tolist() == [(a + b) % P for a, b in pairs]
    assert field.total(np.stack([one, other, one])).tolist() == [(2 * a + b) % P for a, b in pairs]


@given(st.integers(0, 2**64 - 1))
@example(P)
@example(2**64 - 1)
def test_any_64_bits_are_reduced(number) -> None:
    assert field.reduced(of(number)).tolist() == [number % P]
    data = number.to_bytes(8, "little")
    assert field.uniform(data).tolist() == [number % 2**61 % P]


@given(st.lists(st.integers(-(P // 2), P // 2), max_size=20))
def test_signed_integers_come_back(integers) -> None:
    there = field.of_integers(np.array(integers, np.int64))
    assert field.integers_of(there).tolist() == integers
    assert field.from_bytes(field.to_bytes(there), len(integers)).tolist() == [k % P for k in integers]


@given(st.lists(st.integers(-(2**24), 2**24), max_size=20), st.sampled_from([2.0**-10, 1.0, 2.0**20]))
def test_values_are_integers_of_the_scale(integers, scale) -> None:
    values = (np.array(integers, np.float64) / scale).astype(np.float32)
    assert field.fixed(values, scale, exact=True).tolist() == integers
    assert field.fixed(values, scale, exact=False).tolist() == integers


@pytest.mark.parametrize(
    ("value", "exact", "why"),
    [
        (0.3, True, "no multiple"),
        (2.0 * LARGEST, False, "larger than"),
        (np.inf, False, "larger"),
        (np.nan, False, "larger"),
    ],
)
def test_other_values_are_refused(value, exact, why) -> None:
    with pytest.raises(Refused, match=why):
        field.fixed(np.array([1.0, value], np.float32), 1.0, exact)


def test_integers_beyond_the_field_are_refused() -> None:
    with pytest.raises(Refused, match="too large"):
        field.of_integers(np.array([P // 2 + 1]))


@pytest.mark.parametrize(
    ("data", "why"), [(bytes(15), "15 bytes where 16"), (P.to_bytes(8, "little") * 2, "not in the field")]
)
def test_bytes_that_are_no_numbers_are_refused(data, why) -> None:
    with pytest.raises(Refused, match=why):
        field.from_bytes(data, 2)
