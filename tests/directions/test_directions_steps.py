"""Steps: the four rules, programs of many steps and 16-bit parameters, against a plain NumPy loop."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.directions import cpu, reference
from fedzero.directions.spec import Domain
from fedzero.directions.terms import HYPERS, Program, Rule, Terms, stream_of

GOLDEN = runpy.run_path(str(Path(__file__).with_name("golden.py")))
TYPES, as_bits, widen = GOLDEN["TYPES"], GOLDEN["as_bits"], GOLDEN["widen"]
NUMBERS = GOLDEN["HYPERS"]

keys = st.integers(0, 2**64 - 1)
streams = st.sampled_from([Domain.GAUSSIAN, Domain.RADEMACHER])
sizes = st.one_of(st.integers(0, 5000), st.sampled_from([255, 256, 257, 4095, 4096, 4097]))
lists = st.lists(st.tuples(keys, st.floats(-1, 1, width=32)), max_size=3)
quick = settings(max_examples=12, deadline=None, derandomize=True)
all_rules = pytest.mark.parametrize("rule", list(Rule))
all_types = pytest.mark.parametrize("dtype", list(TYPES))


def terms_of(pairs: list[tuple[int, float]], stream: Domain) -> Terms:
    return Terms.of([key for key, _ in pairs], [c for _, c in pairs], stream)


def start(n: int, dtype: str, rule: Rule) -> tuple[np.ndarray, list[np.ndarray]]:
    """x (16-bit ones as bits) and the memory of the rule, already in use."""
    random = np.random.default_rng(n)
    x = torch.from_numpy((random.standard_normal(n) * 0.1).astype(np.float32)).to(TYPES[dtype])
    slots = [np.abs(random.standard_normal(n) * 0.01).astype(np.float32) for _ in range(rule.slots)]
    return x.numpy() if dtype == "float32" else as_bits(x), slots


def assert_same_bits(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


@all_types
@all_rules
@quick
@given(stream=streams, steps=st.lists(lists, min_size=1, max_size=3), tensor=st.integers(0, 2**32 - 1), n=sizes)
def test_program_is_the_plain_loop(rule, dtype, stream, steps, tensor, n):
    """Compiled, fused over steps and chunks = NumPy, one operation at a time."""
    rounding = [101 + s for s in range(len(steps))]
    hypers = [[h * (1 + s / 8) for h in NUMBERS[rule]] for s in range(len(steps))]
    program = Program.of([terms_of(pairs, stream) for pairs in steps], rounding, rule, hypers)
    x, slots = start(n, dtype, rule)
    expected = GOLDEN["run_steps"](x, dtype, slots, program, tensor)
    assert_same_bits(GOLDEN["_advance"](x, dtype, slots, program, tensor), expected)


@all_types
@all_rules
def test_program_is_its_steps_one_at_a_time(rule, dtype):
    n, tensor = 9001, 4
    for stream in (Domain.GAUSSIAN, Domain.RADEMACHER):
        steps = [terms_of([(10 * s + j, 0.02 * (j + 1)) for j in range(s % 3 + 1)], stream) for s in range(5)]
        rounding = [900 + s for s in range(5)]
        hypers = [[h * (1 + s / 8) for h in NUMBERS[rule]] for s in range(5)]
        x, slots = start(n, dtype, rule)
        whole = GOLDEN["_advance"](x, dtype, slots, Program.of(steps, rounding, rule, hypers), tensor)
        state = [x, *slots]
        for step, key, h in zip(steps, rounding, hypers, strict=True):
            state = GOLDEN["_advance"](state[0], dtype, state[1:], Program.of([step], [key], rule, [h]), tensor)
        assert_same_bits(whole, state)


# -- the rules do what their equations say -----------------------------------------------------------------------


def one_step(rule: Rule, x: np.ndarray, slots: list[np.ndarray], c: float, hypers: list[float]) -> list[np.ndarray]:
    program = Program.of([Terms.of([5], [c], Domain.GAUSSIAN)], [0], rule, [hypers])
    return GOLDEN["_advance"](x, "float32", slots, program, 0)


def test_momentum_in_exact_arithmetic():
    x, (m,) = start(4000, "float32", Rule.MOMENTUM)
    g = 0.5 * reference.gaussian(5, 0, 4000).astype(np.float64)
    got = one_step(Rule.MOMENTUM, x, [m], 0.5, [0.05, 0.9, 0.1])
    moving = 0.9 * m + 0.1 * g
    np.testing.assert_allclose(got[1], moving, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(got[0], x - 0.05 * moving, rtol=1e-5, atol=1e-7)


def test_adam_in_exact_arithmetic():
    x, (m, v) = start(4000, "float32", Rule.ADAM)
    g = 0.5 * reference.gaussian(5, 0, 4000).astype(np.float64)
    got = one_step(Rule.ADAM, x, [m, v], 0.5, [0.05, 0.9, 0.1, 0.99, 0.01, 1e-3])
    mean, square = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    np.testing.assert_allclose(got[1], mean, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(got[2], square, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(got[0], x - 0.05 * mean / (np.sqrt(square) + 1e-3), rtol=1e-4, atol=1e-6)


def test_sign_moves_by_the_step_size_or_not_at_all():
    x = np.zeros(4000, np.float32)
    z = reference.gaussian(5, 0, 4000)
    (y,) = one_step(Rule.SIGN, x, [], -2.0, [0.25])
    np.testing.assert_array_equal(y, np.where(z == 0, 0, 0.25 * np.sign(z)).astype(np.float32))
    (y,) = one_step(Rule.SIGN, x + 1, [], 0.0, [0.25])
    np.testing.assert_array_equal(y, 1)


def test_adam_without_epsilon_divides_as_ieee_says():
    """0/0 is NaN, as on every other device, and not an exception halfway through the model."""
    got = one_step(
        Rule.ADAM, np.ones(8, np.float32), [np.zeros(8, np.float32)] * 2, 0.0, [0.1, 0.9, 0.1, 0.99, 0.01, 0]
    )
    assert np.all(np.isnan(got[0]))


def test_momentum_and_adam_without_terms_still_decay():
    x, slots = start(300, "float32", Rule.ADAM)
    program = Program.of([Terms.of([], [], Domain.GAUSSIAN)], [0], Rule.ADAM, [NUMBERS[Rule.ADAM]])
    got = GOLDEN["_advance"](x, "float32", slots, program, 0)
    assert_same_bits(got[1:], [np.float32(0.9) * slots[0], np.float32(0.99) * slots[1]])


def test_program_keeps_its_books():
    steps = [terms_of([(j, 0.5) for j in range(count)], Domain.RADEMACHER) for count in (2, 0, 3)]
    program = Program.of(steps, [1, 2, 3], Rule.MOMENTUM, [(0.1, 0.9), (0.2,), ()])
    assert len(program) == 3
    assert program.ends.tolist() == [2, 2, 5]
    assert program.keys.tolist() == [0, 1, 0, 1, 2]
    assert program.hypers.shape == (3, HYPERS)
    np.testing.assert_array_equal(program.hypers[:, 0], np.array([0.1, 0.2, 0], np.float32))
    assert program.stream is Domain.RADEMACHER
    assert [rule.slots for rule in Rule] == [0, 1, 2, 0]
    assert [stream_of(d) for d in ("gaussian", "rademacher", "sphere")] == [
        Domain.GAUSSIAN,
        Domain.RADEMACHER,
        Domain.GAUSSIAN,
    ]


# -- 16 bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@quick
@given(stream=streams, pairs=lists, key=keys, tensor=st.integers(0, 2**32 - 1), n=sizes)
def test_fold_sums_in_float32_and_rounds_once(dtype, stream, pairs, key, tensor, n):
    x, _ = start(n, dtype, Rule.SGD)
    y = widen(x, dtype)
    for k, c in pairs:
        y = y + np.float32(c) * reference.direction(stream, k, tensor, n)
    expected = GOLDEN["rounded"](y, dtype, key, tensor)
    program = Program.of([terms_of(pairs, stream)], [key])
    assert_same_bits(GOLDEN["_advance"](x, dtype, [], program, tensor), [expected])


def patterns() -> np.ndarray:
    """float32 numbers of every exponent and both signs, with hard mantissas, then random ones of every magnitude."""
    exponents = np.arange(256, dtype=np.uint32) << np.uint32(23)
    mantissas = np.array(
        [0, 1, 0xFFF, 0x1000, 0x1FFF, 0x2000, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x400000, 0x7FFFFF], np.uint32
    )
    hard = (exponents[:, None] | mantissas).reshape(-1)
    random = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    return np.concatenate([hard, hard | np.uint32(0x80000000), random]).view(np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("key", [0, 77, 2**64 - 1])
def test_rounding_of_every_kind_of_number_is_the_reference(dtype, key):
    y = patterns()
    out = torch.empty(y.size, dtype=TYPES[dtype])
    cpu.round_into(out, torch.from_numpy(y.copy()), key, 6)
    assert_same_bits([as_bits(out)], [GOLDEN["rounded"](y, dtype, key, 6)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_kept_between_steps_is_what_was_stored(dtype):
    """Two tiny steps in one program see the rounded x in between, not the float32 sum."""
    x, _ = start(9000, dtype, Rule.SGD)
    steps = [Terms.of([s], [1e-4], Domain.GAUSSIAN) for s in range(2)]
    (got,) = GOLDEN["_advance"](x, dtype, [], Program.of(steps, [1, 2]), 0)
    unrounded = widen(x, dtype) + np.float32(1e-4) * reference.gaussian(0, 0, 9000)
    unrounded = unrounded + np.float32(1e-4) * reference.gaussian(1, 0, 9000)
    assert np.any(got != GOLDEN["rounded"](unrounded, dtype, 2, 0))
    between = GOLDEN["rounded"](widen(x, dtype) + np.float32(1e-4) * reference.gaussian(0, 0, 9000), dtype, 1, 0)
    last = widen(between, dtype) + np.float32(1e-4) * reference.gaussian(1, 0, 9000)
    assert_same_bits([got], [GOLDEN["rounded"](last, dtype, 2, 0)])
