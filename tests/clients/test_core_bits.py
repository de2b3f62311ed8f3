"""The core in C against fedzero: keys, streams, folds, digests and estimates have the same bits."""

from __future__ import annotations

import math
from typing import Any

import native
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedzero.directions import Domain, Keys, Program, Rule, Terms, reference
from fedzero.directions.keys import derive, shift
from fedzero.estimators.spsa import slopes
from fedzero.links.clip import Clip
from fedzero.methods.rules.contract import average
from fedzero.model.params import Params

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
small = st.floats(-1, 1, width=32)
STREAMS = {native.RADEMACHER: Domain.RADEMACHER, native.RANK_ONE: Domain.RANK1}
streams = st.sampled_from(sorted(STREAMS))
shapes = st.one_of(
    st.lists(st.integers(1, 7), max_size=4).map(tuple),
    st.tuples(st.integers(1, 300)),
    st.tuples(st.integers(1, 140), st.integers(1, 140)),
    st.just((4200,)),
)
cases = settings(max_examples=25)


@cases
@given(
    i64, st.binary(min_size=1, max_size=64), st.text("abcdefgh-", min_size=1, max_size=16), st.lists(i64, max_size=8)
)
def test_roots_and_keys(core: native.Core, seed: int, secret: bytes, purpose: str, numbers: list[int]) -> None:
    root = Keys.of_seed(seed).root
    assert core.root(seed) == root
    assert core.shifted_root(root, secret) == shift(root, secret)
    assert core.key(root, purpose, *numbers) == derive(root, purpose, *numbers)


@given(i64, i64, i64, i64)
def test_keys_of_directions(core: native.Core, round: int, step: int, direction: int, client: int) -> None:
    keys = Keys.of_seed(3)
    assert core.direction_key(keys.root, round, step, direction, client) == keys.direction(
        round, step, direction, client
    )


def test_secrets_and_purposes_that_are_not_valid(core: native.Core) -> None:
    root = Keys.of_seed(0).root
    for secret in (b"", b"x" * 65):
        with pytest.raises(native.Failed, match="argument"):
            core.shifted_root(root, secret)
    for purpose, numbers in (("", ()), ("x" * 17, ()), ("a", range(9))):
        with pytest.raises(native.Failed, match="argument"):
            core.key(root, purpose, *numbers)


@given(u64, u64, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_words(core: native.Core, key: int, block: int, ordinal: int, domain: int) -> None:
    words = reference.philox(np.array([block], np.uint64), ordinal, domain, key)  # type: ignore[arg-type]
    assert core.block(key, block, ordinal, domain) == [int(word[0]) for word in words]


@cases
@given(u64, st.integers(0, 2**32 - 1), shapes, streams)
def test_directions(core: native.Core, key: int, ordinal: int, shape: tuple[int, ...], stream: int) -> None:
    n = math.prod(shape)
    columns = n // shape[0] if len(shape) > 1 else 0
    expected = reference.direction(STREAMS[stream], key, ordinal, n, columns)
    assert (core.direction(stream, key, ordinal, shape).reshape(-1) == expected).all()


@given(u64, st.integers(0, 2**32 - 1), st.integers(1, 400), st.integers(1, 400))
def test_signs_of_factors(core: native.Core, key: int, ordinal: int, rows: int, columns: int) -> None:
    a, b = reference.factors(key, ordinal, rows, columns)
    assert (core.signs(key, ordinal, rows) == a).all()
    assert (core.signs(key, ordinal, columns, columns=True) == b).all()


def same_bits(a: Any, b: Any) -> bool:
    return bool((np.asarray(a).reshape(-1).view(np.uint32) == np.asarray(b).reshape(-1).view(np.uint32)).all())


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[np.ndarray], list[tuple[list[int], list[float]]], list[tuple[float, ...]]]:
    """Tensors with numbers of any size, subnormal ones too, and steps of any number of terms."""
    scale = draw(st.sampled_from((1.0, 1e-3, 1e-38, 1e-44, 1e30)))
    sizes = draw(st.lists(shapes, min_size=1, max_size=3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    tensors = [
        (generator.standard_normal(math.prod(shape)) * scale).astype(np.float32).reshape(shape) for shape in sizes
    ]
    steps = []
    for count in draw(st.lists(st.integers(0, 19), min_size=1, max_size=3)):
        keys = draw(st.lists(u64, min_size=count, max_size=count))
        numbers = draw(st.lists(small, min_size=count, max_size=count))
        steps.append((keys, [float(np.float32(value * scale)) for value in numbers]))
    hypers = [tuple(draw(st.tuples(small, small, small))) for _ in steps]
    return tensors, steps, hypers


@cases
@given(programs(), streams, st.sampled_from((Rule.SGD, Rule.MOMENTUM)))
def test_steps_and_digests(core: native.Core, program: Any, stream: int, rule: Rule) -> None:
    tensors, steps, hypers = program
    mine = native.Model({f"ä{i}": np.array(t, order="C") for i, t in enumerate(tensors)}, rule is Rule.MOMENTUM)
    params = Params({f"ä{i}": torch.from_numpy(t.copy()) for i, t in enumerate(tensors)})
    lines = [Terms.of(keys, numbers, STREAMS[stream]) for keys, numbers in steps]
    slots = params.slots(1) if rule is Rule.MOMENTUM else None
    params.advance(Program.of(lines, [0] * len(steps), rule, hypers if slots else None), slots)
    core.advance(mine, stream, steps, int(rule), hypers)
    for ours, theirs in zip(mine.values, params.tensors.values(), strict=True):
        assert same_bits(ours, theirs.numpy())
    for ours, theirs in zip(mine.momentum, slots or (), strict=True):
        assert same_bits(ours, theirs[0].numpy())
    assert core.digest(mine) == params.digest()


@cases
@given(shapes, streams, u64, finite)
def test_a_view_is_a_fold_elsewhere(core: native.Core, shape: Any, stream: int, key: int, c: float) -> None:
    x = np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape)
    before, model = x.copy(), native.Model({"x": x})
    seen = core.view(model, 0, stream, key, c)
    assert same_bits(x, before)
    if c:
        core.advance(model, stream, [([key], [c])])
    assert same_bits(seen, x)


@given(hnp.arrays(np.uint32, st.integers(0, 50)))
def test_checksums_are_of_bits(core: native.Core, bits: np.ndarray) -> None:
    assert core.checksum(bits.view(np.float32)) == reference.checksum(bits)


values = st.floats(-1e6, 1e6)


@given(st.data(), st.sampled_from(("forward", "central")), st.integers(1, 150), st.floats(1e-4, 10))
def test_slopes(core: native.Core, data: st.DataObject, difference: Any, directions: int, radius: float) -> None:
    count = directions + 1 if difference == "forward" else 2 * directions
    found = data.draw(hnp.arrays(np.float64, count, elements=values))
    g, loss = slopes(found, (1.0,) * directions, radius, difference)
    mine, own = core.slopes(found, ("forward", "central").index(difference), directions, radius)
    assert same_bits(mine, g) and own == loss


@given(hnp.arrays(np.float32, st.integers(1, 50), elements=small), st.floats(-10, 10))
def test_coefficients(core: native.Core, g: np.ndarray, factor: float) -> None:
    expected = average(range(g.size), g, factor, Domain.RADEMACHER).coefficients
    assert same_bits(core.coefficients(g, factor), expected)


@cases
@given(hnp.arrays(np.float32, st.integers(1, 700), elements=finite), st.floats(1e-30, 1e30))
def test_clip(core: native.Core, g: np.ndarray, norm: float) -> None:
    assert same_bits(core.clip(g, norm), Clip(norm=norm).shape(g))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_values_without_a_slope_are_refused(core: native.Core, bad: float) -> None:
    with pytest.raises(native.Failed, match="number"):
        core.slopes([1.0, bad], native.FORWARD, 1, 1e-3)
