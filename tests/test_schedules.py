"""Schedules are plain arithmetic on the round."""

from __future__ import annotations

import math

import msgspec
import pytest

from fedzero.model.schedules import Count, InverseSqrt, Piecewise, Schedule, Steps, count_at, rate_at


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
