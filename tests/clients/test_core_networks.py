"""Losses of the core's networks beside torch, and batches beside the draws of README.md."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from typing import Any

import draws
import make
import native
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params

LINEAR, CONV, RELU, POOL = range(4)
STREAMS = {native.RADEMACHER: Domain.RADEMACHER, native.RANK_ONE: Domain.RANK1}
u64 = st.integers(0, 2**64 - 1)


@st.composite
def networks(draw: st.DrawFn) -> tuple[tuple[int, int, int], list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Input, layers and shapes of tensors: some convolutions with or without pools, some linear layers."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(4, 9), st.integers(4, 9)))
    channels, height, width = shape
    layers: list[tuple[int, ...]] = []
    shapes: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(0, 2))):
        kernel, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 6))
        padding = draw(st.integers(0, kernel - 1))
        height, width = height + 2 * padding - kernel + 1, width + 2 * padding - kernel + 1
        if min(height, width) < 1:
            height, width = height - 2 * padding + kernel - 1, width - 2 * padding + kernel - 1
            break
        layers.append((CONV, outputs, kernel, padding))
        shapes += [(outputs, channels, kernel, kernel), (outputs,)]
        channels = outputs
        for other in draw(st.permutations((RELU, POOL)))[: draw(st.integers(0, 2))]:
            if other == POOL:
                if min(height, width) < 2:
                    continue
                height, width = height // 2, width // 2
            layers.append((other, 0, 0, 0))
    inputs = channels * height * width
    for outputs in (*draw(st.lists(st.integers(1, 20), max_size=1)), draw(st.integers(2, 11))):
        layers += [(LINEAR, outputs, 0, 0), (RELU, 0, 0, 0)]
        shapes += [(outputs, inputs), (outputs,)]
        inputs = outputs
    return shape, layers[:-1], shapes


@settings(max_examples=25)
@given(networks(), st.integers(0, 2**32 - 1), st.integers(1, 13), st.integers(1, 9), st.sampled_from(sorted(STREAMS)))
def test_losses_at_points(core: native.Core, network: Any, seed: int, rows: int, at_once: int, stream: int) -> None:
    shape, layers, shapes = network
    generator = np.random.default_rng(seed)
    tensors = {f"t{i}": generator.standard_normal(s).astype(np.float32) * np.float32(0.3) for i, s in enumerate(shapes)}
    x = generator.standard_normal((rows, *shape)).astype(np.float32)
    y = generator.integers(0, shapes[-1][0], rows).astype(np.uint8)
    keys, numbers = [0, 8, 8, seed], [0.0, 0.05, -0.05, 0.02]
    places = sorted(generator.choice(rows, 1 + rows // 2, replace=False).tolist()) if seed % 2 else None
    own = native.Networked(core, native.Model(tensors), layers, x, y, at_once)
    chosen = slice(None) if places is None else places
    params = Params({name: torch.from_numpy(t) for name, t in tensors.items()})
    for key, c, value in zip(keys, numbers, own.values(stream, keys, numbers, places), strict=True):
        terms = Terms.of([key][: c != 0], [c][: c != 0], STREAMS[stream])
        out = make.forward(layers, list(params.view(terms).tensors().values()), torch.from_numpy(x[chosen]))
        expected = F.cross_entropy(out, torch.from_numpy(y[chosen]).long(), reduction="none").double().mean()
        assert value == pytest.approx(float(expected), rel=2e-5, abs=2e-6)
    out = make.forward(layers, list(params.tensors.values()), torch.from_numpy(x))
    best = out.max(1).values
    assert torch.allclose(out[range(rows), own.classes().astype(np.int64)], best, atol=1e-5)


@pytest.mark.parametrize("logits", [(0.0, 0.0), (80.0, -80.0), (-3e38, 3e38), (1e-30, 2e-30), (100.0, 99.0)])
def test_losses_of_outputs_of_any_size(core: native.Core, logits: tuple[float, float]) -> None:
    model = native.Model({"w": np.zeros((2, 1), np.float32), "b": np.array(logits, np.float32)})
    for label in (0, 1):
        x, y = np.zeros((1, 1, 1, 1), np.float32), np.array([label], np.uint8)
        own = native.Networked(core, model, [(LINEAR, 2, 0, 0)], x, y)
        expected = F.cross_entropy(torch.tensor([logits]), torch.tensor([label]))
        assert own.values(native.RANK_ONE, [0], [0.0])[0] == pytest.approx(float(expected), rel=1e-6, abs=2e-7)


def test_networks_that_do_not_fit_are_refused(core: native.Core) -> None:
    w, b = np.zeros((3, 4), np.float32), np.zeros(3, np.float32)
    x, y = np.zeros((2, 1, 1, 4), np.float32), np.zeros(2, np.uint8)

    def size(layers: Any, tensors: Any, inputs: Any = x, at_once: int = 1) -> int:
        return native.Networked(core, native.Model(tensors), layers, inputs, y, at_once).size(native.RANK_ONE, 2)

    fine = {"w": w, "b": b}
    assert size([(LINEAR, 3, 0, 0)], fine) > 0
    assert size([(LINEAR, 4, 0, 0)], fine) == size([(RELU, 0, 0, 0)], fine) == size([(LINEAR, 3, 0, 0)], {"w": w}) == 0
    assert size([(LINEAR, 3, 0, 0)], {**fine, "c": b}) == size([(9, 3, 0, 0)], fine) == size([], fine) == 0
    assert size([(LINEAR, 3, 0, 0), (POOL, 0, 0, 0)], fine) == size([(LINEAR, 3, 0, 0)], fine, at_once=0) == 0
    assert (
        size([(CONV, 3, 2**31, 0)], fine)
        == size([(LINEAR, 3, 0, 0)], fine, np.zeros((2, 2**13, 1, 4), np.float32))
        == 0
    )
    wrong = native.Networked(core, native.Model(fine), [(LINEAR, 3, 0, 0)], x, np.full(2, 3, np.uint8))
    with pytest.raises(native.Failed, match="argument"):
        wrong.values(native.RANK_ONE, [0], [0.0])


@given(u64, st.integers(0, 300), st.integers(0, 300))
def test_a_sample_is_as_specified(core: native.Core, key: int, count: int, size: int) -> None:
    assert core.sample(key, count, size) == draws.sample(key, count, size)


@given(u64, st.integers(0, 200), st.one_of(st.floats(0, 1), st.floats(0, 1e-15)), st.integers(0, 200))
def test_a_poisson_draw_is_as_specified(core: native.Core, key: int, count: int, rate: float, most: int) -> None:
    expected = draws.poisson(key, count, rate)
    assert core.poisson(key, count, rate, most) == (len(expected), expected[:most])


def chi_square(counts: list[int], expected: float) -> float:
    """In standard deviations above its mean."""
    degrees = len(counts) - 1
    return (sum((count - expected) ** 2 / expected for count in counts) - degrees) / math.sqrt(2 * degrees)


def test_every_subset_is_as_probable_as_any_other(core: native.Core) -> None:
    found = Counter(tuple(core.sample(key, 7, 3)) for key in range(35_000))
    assert chi_square([found[each] for each in combinations(range(7), 3)], 1000) < 4
    coins = Counter(tuple(core.poisson(key, 3, 0.5)[1]) for key in range(8_000))
    assert chi_square([coins[each] for k in range(4) for each in combinations(range(3), k)], 1000) < 4
    drawn = sum(core.poisson(key, 1000, 0.03)[0] for key in range(300))
    assert abs(drawn - 9000) < 4 * math.sqrt(9000 * 0.97)


def test_a_private_draw_without_a_rate_has_nobody(core: native.Core) -> None:
    for rate in (0.0, -1.0, math.nan):
        assert core.poisson(1, 50, rate) == (0, [])
    assert core.poisson(1, 50, 2.0) == (50, list(range(50)))
