"""Schedules are plain arithmetic on the round."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.model.schedules import (
    Cosine,
    Count,
    Exponential,
    InverseSqrt,
    OneCycle,
    Piecewise,
    Schedule,
    Steps,
    Warmup,
    count_at,
    half_cosine,
    rate_at,
    reaches_zero,
)


def test_piecewise() -> None:
    line = Piecewise(points=((10, 1.0), (20, 2.0), (40, 0.0)))
    assert [line.at(r) for r in (0, 10, 15, 20, 30, 40, 1000)] == [1.0, 1.0, 1.5, 2.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("points", [[], [[5, 1.0], [5, 2.0]], [[5, 1.0], [4, 2.0]], [[-1, 1.0]], [[0, -1.0]]])
def test_piecewise_refuses_nonsense(points) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "piecewise", "points": points}, Schedule)


def test_steps_inverse_sqrt_and_constant() -> None:
    steps = Steps(start=1.0, factor=0.5, at_rounds=(3, 6))
    assert [steps.at(r) for r in (0, 2, 3, 5, 6, 9)] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    assert InverseSqrt(start=2.0).at(3) == 2.0 / math.sqrt(4)
    assert rate_at(0.25, 7) == 0.25
    assert rate_at(steps, 3) == 0.5


def test_counts_double_as_in_the_paper() -> None:
    counts = Count(start=25, then=((500, 50), (1000, 100), (2000, 200)))
    assert [count_at(counts, r) for r in (0, 499, 500, 999, 1000, 1999, 2000)] == [25, 25, 50, 50, 100, 100, 200]
    assert count_at(7, 100) == 7


lengths = st.integers(1, 10**8)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lengths, st.floats(0, 1))
def test_half_a_cosine_is_right_to_twelve_digits(whole: int, share: float) -> None:
    part = round(share * whole)
    assert abs(half_cosine(part, whole) - (1 + math.cos(math.pi * part / whole)) / 2) < 1e-12
    assert 0.0 <= half_cosine(part, whole) <= 1.0
    assert half_cosine(0, whole) == 1.0
    assert half_cosine(whole, whole) == half_cosine(whole + 7, whole) == 0.0


def test_the_error_does_not_grow_with_the_round() -> None:
    whole = 99_991
    errors = [abs(half_cosine(r, whole) - (1 + math.cos(math.pi * r / whole)) / 2) for r in range(0, whole, 97)]
    assert max(errors) < 1e-14


def test_cosine_exponential_one_cycle_and_warm_up() -> None:
    cosine = Cosine(start=0.5, rounds=100, end=0.1)
    assert (cosine.at(0), cosine.at(100), cosine.at(10**9)) == (0.5, 0.1, 0.1)
    assert cosine.at(50) == pytest.approx(0.3, abs=1e-15)
    rates = [cosine.at(r) for r in range(101)]
    assert rates == sorted(rates, reverse=True)
    slow = Exponential(start=2.0, factor=0.5, every=10, end=0.3)
    assert [slow.at(r) for r in (0, 9, 10, 19, 20, 30, 10**9)] == [2.0, 2.0, 1.0, 1.0, 0.5, 0.3, 0.3]
    assert Exponential(start=1.0, factor=0.9).at(37) == pytest.approx(0.9**37, rel=1e-14)
    cycle = OneCycle(start=0.1, peak=1.0, rise=30, rounds=100, end=0.01)
    assert (cycle.at(0), cycle.at(30), cycle.at(100), cycle.at(500)) == pytest.approx((0.1, 1.0, 0.01, 0.01), rel=1e-15)
    rates = [cycle.at(r) for r in range(101)]
    assert rates == [*sorted(rates[:30]), *sorted(rates[30:], reverse=True)]
    warm = Warmup(rounds=4, then=cosine)
    assert [warm.at(r) for r in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [warm.at(r) for r in (4, 54, 104)] == [cosine.at(r) for r in (0, 50, 100)]
    assert rate_at(Warmup(rounds=1, then=0.5), 0) == 0.25


def test_schedules_have_these_bits_on_every_machine() -> None:
    golden = {
        Cosine(start=0.1, rounds=100): [
            "0x1.997fbac3ed364p-4",
            "0x1.7d1478b9d1dacp-4",
            "0x1.9ded5ac630f9fp-16",
            "0x0.0p+0",
        ],
        Cosine(start=3e-3, rounds=1000, end=1e-5): [
            "0x1.89370c674f94dp-9",
            "0x1.88efc57a62c25p-9",
            "0x1.7fd090a4d240fp-9",
            "0x1.4fd2a30e4eb39p-9",
        ],
        Exponential(start=0.1, factor=0.97): [
            "0x1.8d4fdf3b645a2p-4",
            "0x1.e819c727ee7e4p-5",
            "0x1.414749d007c23p-8",
            "0x1.9da4118ce67acp-15",
        ],
        OneCycle(start=1e-3, peak=0.05, rise=30, rounds=300, end=1e-6): [
            "0x1.2953c8a5b2c80p-10",
            "0x1.f53fd9b9e697fp-6",
            "0x1.5b11399620d46p-5",
            "0x1.0d98cf6ca78e5p-8",
        ],
        Warmup(rounds=20, then=Cosine(start=0.1, rounds=250)): [
            "0x1.3813813813814p-7",
            "0x1.5f15f15f15f16p-4",
            "0x1.3cb39994c11ecp-4",
            "0x1.9bc96b1968335p-10",
        ],
    }
    found = {schedule: [schedule.at(r).hex() for r in (1, 17, 99, 250)] for schedule in golden}
    assert found == golden


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "cosine", "start": 1.0, "rounds": 0},
        {"kind": "cosine", "start": 0.0, "rounds": 9},
        {"kind": "exponential", "start": 1.0, "factor": 1.1},
        {"kind": "exponential", "start": 1.0, "factor": 0.0},
        {"kind": "one-cycle", "start": 0.1, "peak": 1.0, "rise": 9, "rounds": 9},
        {"kind": "warmup", "rounds": 3, "then": {"kind": "warmup", "rounds": 3, "then": 1.0}},
        {"kind": "warmup", "rounds": 0, "then": 1.0},
    ],
)
def test_schedules_of_their_own_length_refuse_nonsense(table) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, Schedule)


def test_which_schedules_fall_to_zero() -> None:
    falling = [Cosine(1.0, 9), Exponential(1.0, 0.9), OneCycle(0.0, 1.0, 3, 9, 0.1), OneCycle(0.1, 1.0, 3, 9)]
    falling += [Warmup(3, Cosine(1.0, 9)), Piecewise(((0, 1.0), (3, 0.0)))]
    assert all(map(reaches_zero, falling))
    staying = [0.5, InverseSqrt(1.0), Steps(1.0, 0.5, (3,)), Cosine(1.0, 9, 0.1), Exponential(1.0, 0.9, 1, 0.1)]
    assert not any(map(reaches_zero, [*staying, OneCycle(0.1, 1.0, 3, 9, 0.1), Warmup(3, 0.5)]))
