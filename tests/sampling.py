"""Which of many cases the default run has. The others are marked `slow`: `make test-faults` runs them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

sampled = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sample", "every"])
"""For a test that goes over many points by itself: a sample of them by default, `every` one in `make test-faults`."""


def mostly_slow(cases: Iterable[Any], kept: Callable[..., bool]) -> list[Any]:
    """All cases of a parametrization, each a value, a tuple of values or a `pytest.param`; those are slow for which
    `kept`, which gets the values, does not hold."""
    made = []
    for case in cases:
        param = case if hasattr(case, "marks") else pytest.param(*(case if isinstance(case, tuple) else (case,)))
        marks = param.marks if kept(*param.values) else (*param.marks, pytest.mark.slow)
        made.append(pytest.param(*param.values, marks=marks, id=param.id))
    return made
