"""Which of many cases the default run has. The others are marked `slow`: `make test-all` runs them, too."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

sampled = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sample", "every"])
"""For a test that goes over many points by itself: a sample of them by default, `every` one in `make test-all`."""


def mostly_slow(cases: Iterable[Any], kept: Callable[..., bool]) -> list[Any]:
    """All cases of a parametrization, each a value, a tuple of values or a `pytest.param`; those are slow for which
    `kept`, which gets the values, does not hold."""
    made = []
    for case in cases:
        param = case if hasattr(case, "marks") else pytest.param(*(case if isinstance(case, tuple) else (case,)))
        marks = param.marks if kept(*param.values) else (*param.marks, pytest.mark.slow)
        made.append(pytest.param(*param.values, marks=marks, id=param.id))
    return made


def covering(names: Sequence[str]) -> set[int]:
    """Positions of a few cases, by their names, in which every word of all the names occurs: of methods × links, every
    method, every choice that it offers and every link at least once. Greedy: the case with most new words is next."""
    words = [set(re.split(r"[-+]", name)) for name in names]
    missing, chosen = set[str]().union(*words), set[int]()
    while missing:
        best = max(range(len(words)), key=lambda at: len(words[at] & missing))
        chosen.add(best)
        missing -= words[best]
    return chosen


def mark_rest_slow(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of tests with the marker `covered` as slow, except a `covering` of each test."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("covered") and hasattr(item, "callspec") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for alike in cases.values():
        kept = covering([item.callspec.id for item in alike])  # type: ignore[attr-defined]
        for at, item in enumerate(alike):
            if at not in kept:
                item.add_marker(pytest.mark.slow)
