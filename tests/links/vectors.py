"""Vectors to try links on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedzero import plugins
from fedzero.links import Chain

EPS = 2.0**-24
"""Half a unit in the last place of float32: the relative error of one rounding."""
TINY = 2.0**-149
"""The absolute error where numbers are too small for that."""
LARGE = 2.0**100

few = settings(derandomize=True, max_examples=60, deadline=None)
lengths = st.integers(1, 70)
numbers = st.floats(-LARGE, LARGE, width=32)
vectors = lengths.flatmap(lambda n: arrays(np.float32, n, elements=numbers))
"""Any finite numbers, also zeros, ties and ones of very different size."""
tame = lengths.flatmap(lambda n: arrays(np.float32, n, elements=st.floats(-100, 100, width=32)))


def chain_of(*links: dict[str, Any]) -> Chain:
    return Chain(tuple(msgspec.convert(link, plugins.find("filters", link["kind"]).type) for link in links))


def draw(seed: int = 1) -> Callable[[], np.random.Generator]:
    return lambda: np.random.default_rng(seed)


def normal(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)
