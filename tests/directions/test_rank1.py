"""Directions of rank one: the specification by hand, and the kernels against the reference.

The GPU kernels are tested on a device, or in Triton's interpreter by `test_gpu.test_interpreter`.
"""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.directions import Domain, LowRank, Piece, Program, Rule, Terms, cpu, reference, stream_of
from fedzero.errors import FedzeroError
from fedzero.estimators.spsa import expect_rank
from fedzero.model.params import Params

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SAMPLED = INTERPRETED and os.environ.get("TEST_ALL_KERNELS") != "1"
"""The interpreter takes seconds for what a device does at once: sizes and types that differ in kind."""
CUDA = torch.cuda.is_available() and not INTERPRETED
LAST = 2**64 - 1
SHAPES = ((7,), (5, 9), (33, 256), (3, 512), (40, 3, 5, 5), (17, 300), (2, 1030), (1, 1))
if SAMPLED:
    SHAPES = ((7,), (5, 9), (3, 512), (2, 3, 5, 5), (3, 300), (1, 1))
TYPES = (torch.float32, torch.bfloat16, torch.float16)
HYPERS = (0.05, 0.9, 0.1, 0.99, 0.01, 0.001)


def sides() -> list[tuple[Any, torch.device]]:
    found: list[tuple[Any, torch.device]] = [(cpu, torch.device("cpu"))]
    if INTERPRETED or CUDA:
        gpu = importlib.import_module("fedzero.directions.gpu")
        found.append((gpu, torch.device("cuda" if CUDA else "cpu")))
    return found


in_one_process = pytest.mark.skipif(INTERPRETED, reason="about CPU kernels, which the other process tests")
each_side = pytest.mark.parametrize(
    ("kernels", "device"), sides()[-1:] if INTERPRETED else sides(), ids=lambda v: getattr(v, "__name__", "")
)


def columns_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:]) if len(shape) > 1 else 0


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().view(torch.int32 if x.element_size() == 4 else torch.int16)


@in_one_process
def test_the_specification_by_hand() -> None:
    """Signs in the order of the bits of consecutive blocks; a of the whole key, b of its low half."""
    key, tensor, rows, columns = 0x0123456789ABCDEF, 5, 200, 70

    def signs(key: int, domain: int, n: int) -> list[float]:
        found = []
        for i in range(n):
            words = reference.philox(np.array([i // 128], np.uint64), tensor, Domain(domain), key)
            found.append(-1.0 if int(words[(i // 32) % 4][0]) >> (i % 32) & 1 else 1.0)
        return found

    a, b = signs(key, 4, rows), signs(0x89ABCDEF, 5, columns)
    z = reference.direction(Domain.RANK1, key, tensor, rows * columns, columns).reshape(rows, columns)
    np.testing.assert_array_equal(z, np.outer(a, b))


def test_keys_with_equal_low_halves_share_the_signs_of_columns() -> None:
    a, b = reference.factors(0x1_0000_0007, 0, 64, 64)
    c, d = reference.factors(0x2_0000_0007, 0, 64, 64)
    np.testing.assert_array_equal(b, d)
    assert (a != c).any()


def test_a_vector_has_signs() -> None:
    x = Params({"x": torch.zeros(100)})
    assert torch.equal(x.direction(Domain.RANK1, 3), x.direction(Domain.RADEMACHER, 3))


def test_the_reference_refuses_what_is_no_stream() -> None:
    with pytest.raises(ValueError, match="no stream"):
        reference.direction(Domain.ROUNDING, 0, 0, 10)


def test_rank_is_for_directions_of_rank_one() -> None:
    with pytest.raises(FedzeroError, match="rank1"):
        expect_rank("gaussian", 2)
    expect_rank("rank1", 2)


@in_one_process
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_rank_r_is_the_sum_of_r_products_over_the_root_of_r(rank: int) -> None:
    x = Params({"w": torch.zeros(40, 30)})
    z = x.total(Terms.of([11], [1.0], stream_of("rank1", rank))).view(40, 30)
    expected = sum(np.outer(*reference.factors(11 + k, 0, 40, 30)) for k in range(rank)) / np.sqrt(rank)
    np.testing.assert_allclose(z.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert np.linalg.matrix_rank(z.numpy()) == rank


def test_keys_of_a_rank_wrap_around() -> None:
    assert Terms.of([LAST], [1.0], LowRank(2)).keys.tolist() == [LAST, 0]


@in_one_process
@pytest.mark.parametrize("rank", [1, 3])
def test_entries_have_mean_zero_and_variance_one_and_are_not_correlated(rank: int) -> None:
    """Over keys: E z = 0 and E z_i z_j = δ_ij, which an unbiased estimate of a gradient needs."""
    x, count = Params({"w": torch.zeros(3, 4)}), 4000
    z = torch.stack([x.total(Terms.of([k * 64], [1.0], stream_of("rank1", rank))) for k in range(count)]).double()
    assert float(z.mean(0).abs().max()) < 5 / math.sqrt(count)
    assert float((z.T @ z / count - torch.eye(12)).abs().max()) < 5 / math.sqrt(count) * 1.5


@each_side
@settings(max_examples=4 if INTERPRETED else 40, deadline=None)
@given(
    key=st.integers(0, LAST), tensor=st.integers(0, 2**32 - 1), rows=st.integers(1, 300), columns=st.integers(1, 1100)
)
def test_generate_and_factors_are_the_reference(
    kernels: Any, device: torch.device, key: int, tensor: int, rows: int, columns: int
) -> None:
    out = torch.empty(rows * columns, device=device)
    kernels.generate(out, Domain.RANK1, key, tensor, columns=columns)
    np.testing.assert_array_equal(out.cpu().numpy(), reference.rank1(key, tensor, rows * columns, columns))
    ((a, b),) = kernels.factors(Terms.of([key], [0.5], Domain.RANK1), [(tensor, rows, columns)], device)
    for got, expected in zip((a, b), reference.factors(key, tensor, rows, columns), strict=True):
        np.testing.assert_array_equal(got[0].cpu().numpy(), expected)


def program(rule: Rule, many: int = 0) -> Program:
    first = Terms.of([LAST, 1, 2], [0.1, -0.2, 0.3], Domain.RANK1)
    rest = Terms.of(range(5, 5 + many), [0.01 * (k % 7 - 3) for k in range(many)], Domain.RANK1)
    steps = [first, Terms.of([9], [0.05], Domain.RANK1), rest, Terms.of([], [], Domain.RANK1)]
    return Program.of(steps, [11, LAST, 13, 14], rule, [HYPERS] * 4)


def start(dtype: torch.dtype, device: torch.device, rule: Rule) -> list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]]:
    made = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(math.prod(shape), generator=made).to(device, dtype),
            tuple(torch.zeros(math.prod(shape), device=device) for _ in range(rule.slots)),
        )
        for shape in SHAPES
    ]


def pieces(tensors: list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]]) -> list[Piece]:
    return [Piece(x, x, slots, i, columns_of(SHAPES[i])) for i, (x, slots) in enumerate(tensors)]


def by_reference(x: torch.Tensor, steps: Program, ordinal: int, columns: int) -> np.ndarray:
    """Plain steps on float32."""
    y = x.numpy().copy()
    for terms in steps.steps():
        for key, c in zip(terms.keys, terms.coefficients, strict=True):
            y = y + c * reference.direction(Domain.RANK1, int(key), ordinal, y.size, columns)
    return y


@in_one_process
@pytest.mark.parametrize("many", [0, 9, 300])
def test_a_fold_is_the_reference_and_fused_or_one_by_one(many: int) -> None:
    tensors = start(torch.float32, torch.device("cpu"), Rule.SGD)
    steps = program(Rule.SGD, many)
    for i, (x, _) in enumerate(tensors):
        columns = columns_of(SHAPES[i])
        expected = by_reference(x, steps, i, columns)
        fused, single = x.clone(), x.clone()
        cpu.advance(fused, (), steps, i, columns)
        for terms in steps.steps():
            for key, c in zip(terms.keys, terms.coefficients, strict=True):
                cpu.advance(single, (), Program.of([Terms.of([int(key)], [c], Domain.RANK1)], [0]), i, columns)
        np.testing.assert_array_equal(fused.numpy(), expected)
        np.testing.assert_array_equal(single.numpy(), expected)


@in_one_process
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rule", Rule)
def test_a_program_in_parts_is_the_program(dtype: torch.dtype, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors that do not fit the cache are made for some terms at a time."""
    whole, parts = (start(dtype, torch.device("cpu"), rule) for _ in range(2))
    cpu.advance_all(cpu.listing(pieces(whole)), program(rule, 40))
    monkeypatch.setattr(cpu, "FACTOR_NUMBERS", 8)
    cpu.advance_all(cpu.listing(pieces(parts)), program(rule, 40))
    for (a, slots), (b, others) in zip(whole, parts, strict=True):
        assert torch.equal(bits(a), bits(b))
        assert all(map(torch.equal, slots, others))


@in_one_process
@settings(max_examples=40)
@given(rows=st.integers(1, 150), columns=st.integers(1, 1100), many=st.sampled_from([1, 3, 127, 128, 129, 260]))
def test_any_shape_and_number_of_terms_is_the_reference(rows: int, columns: int, many: int) -> None:
    """Blocks of rows, columns and terms that are not whole ones, in a fold and at points."""
    terms = Terms.of(range(many), [0.01 * (k % 7 - 3.5) for k in range(many)], Domain.RANK1)
    x = torch.linspace(-1, 1, rows * columns)
    expected = by_reference(x, Program.of([terms], [0]), 3, columns)
    out = torch.empty(1, x.numel())
    cpu.points(x, out, Program.of([terms], [0]), 3, columns)
    np.testing.assert_array_equal(out[0].numpy(), expected)
    cpu.advance(x, (), Program.of([terms], [0]), 3, columns)
    np.testing.assert_array_equal(x.numpy(), expected)


@in_one_process
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rule", Rule)
def test_bits_do_not_depend_on_tiles(dtype: torch.dtype, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    n, columns = 70 * 600, 600
    steps = program(rule, 40)
    found = []
    for size in ({}, {"TILE_WIDTH": 256, "TILE_HEIGHT": 8, "TILE_NUMBERS": 1024}):
        for name, value in size.items():
            monkeypatch.setattr(cpu, name, value)
        x, slots = torch.linspace(-1, 1, n).to(dtype), tuple(torch.zeros(n) for _ in range(rule.slots))
        cpu.advance(x, slots, steps, 1, columns)
        found.append((x, *slots))
    assert all(map(torch.equal, *found))


WITHOUT_WIDE_VECTORS = """
from llvmlite import binding
known = binding.get_host_cpu_features()
known["avx512f"] = False
binding.get_host_cpu_features = lambda: known
import torch
from fedzero.directions import Domain, Program, Terms, cpu
x = torch.linspace(-1, 1, 37 * 75)
cpu.advance(x, (), Program.of([Terms.of(range(9), [0.1] * 9, Domain.RANK1)], [0]), 0, 75)
print(cpu.LANES, cpu.checksum(x))
"""


@in_one_process
def test_bits_do_not_depend_on_the_width_of_vectors(tmp_path: Path) -> None:
    """As on a processor without 512-bit vectors, whatever this one has."""
    x = torch.linspace(-1, 1, 37 * 75)
    cpu.advance(x, (), Program.of([Terms.of(range(9), [0.1] * 9, Domain.RANK1)], [0]), 0, 75)
    child = [sys.executable, "-c", WITHOUT_WIDE_VECTORS]
    done = subprocess.run(
        child, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["16", str(cpu.checksum(x))]


STEPS = [(rule, dtype) for rule in Rule for dtype in TYPES]
if SAMPLED:  # a rule before the rounding to 16 bits, and the rounding after any rule
    STEPS = [(Rule.SGD, torch.float32), (Rule.ADAM, torch.bfloat16)]


@pytest.mark.skipif(len(sides()) == 1, reason="no CUDA device; test_gpu.test_interpreter runs this one")
@pytest.mark.parametrize(("rule", "dtype"), STEPS)
def test_steps_on_the_gpu_are_those_on_the_cpu(dtype: torch.dtype, rule: Rule) -> None:
    gpu, device = sides()[1]
    here, there = start(dtype, torch.device("cpu"), rule), start(dtype, device, rule)
    for (x, _), (y, _) in zip(here, there, strict=True):
        y.copy_(x)
    cpu.advance_all(cpu.listing(pieces(here)), program(rule))
    gpu.advance_all(gpu.listing(pieces(there)), program(rule))
    for (a, slots), (b, others) in zip(here, there, strict=True):
        assert torch.equal(bits(a), bits(b))
        assert all(torch.equal(s, other.cpu()) for s, other in zip(slots, others, strict=True))


@each_side
@pytest.mark.parametrize("dtype", TYPES)
def test_views_and_rows_are_the_sum_to_nearest(kernels: Any, device: torch.device, dtype: torch.dtype) -> None:
    terms = Terms.of([LAST, 4], [0.1, -0.2], Domain.RANK1)
    for i, (x, _) in enumerate(start(dtype, torch.device("cpu"), Rule.SGD)):
        columns = columns_of(SHAPES[i])
        expected = torch.from_numpy(by_reference(x.float(), Program.of([terms], [0]), i, columns)).to(dtype)
        there, out = x.to(device), torch.empty_like(x, device=device)
        kernels.perturb(there, out, terms, i, columns)
        assert torch.equal(bits(out), bits(expected))
        assert torch.equal(there.cpu(), x)
        if columns:
            ids = torch.tensor([0, len(x) // columns - 1], device=device)
            rows = torch.empty(2, columns, dtype=dtype, device=device)
            kernels.rows(there.view(-1, columns), ids, rows, terms, i)
            assert torch.equal(bits(rows), bits(out.view(-1, columns)[ids]))


@each_side
def test_points_and_terms_side_by_side(kernels: Any, device: torch.device) -> None:
    terms = Terms.of([3, LAST], [0.5, -0.25], Domain.RANK1)
    x = torch.linspace(-1, 1, 60, device=device)
    out, points = torch.empty(2, 60, device=device), torch.empty(2, 60, device=device)
    kernels.spread(out, terms, 2, 12)
    kernels.points(x, points, Program(terms.keys, terms.coefficients, np.array([1, 2]), *_unused(terms)), 2, 12)
    for j, key in enumerate((3, LAST)):
        z = terms.coefficients[j] * reference.rank1(key, 2, 60, 12)
        np.testing.assert_array_equal(out[j].cpu().numpy(), z)
        np.testing.assert_array_equal(points[j].cpu().numpy(), x.cpu().numpy() + z)


def _unused(terms: Terms) -> tuple[Any, ...]:
    return np.zeros(2, np.uint64), np.zeros((2, 6), np.float32), terms.stream, Rule.SGD
