"""The compiled kernels give the reference's bits: streams, folds, views, sums, on any number of threads."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.directions import cpu, kernels, reference, spec
from fedzero.directions.cpu import kernels as compiled
from fedzero.directions.spec import Domain
from fedzero.directions.terms import Program, Rule, Terms
from fedzero.errors import FedzeroError

HERE = Path(__file__).parent
GOLDEN = runpy.run_path(str(HERE / "golden.py"))
KEPT = json.loads((HERE / "golden.json").read_text())
as_bits, as_tensor = GOLDEN["as_bits"], GOLDEN["as_tensor"]
CPU = torch.device("cpu")

keys = st.integers(0, 2**64 - 1)
tensors = st.integers(0, 2**32 - 1)
streams = st.sampled_from([Domain.GAUSSIAN, Domain.RADEMACHER])
sizes = st.one_of(
    st.integers(0, 9000), st.sampled_from([127, 128, 129, 255, 256, 257, 4095, 4096, 4097, 8191, 8192, 8193])
)
coefficients = st.floats(-4, 4, width=32)
terms = st.lists(st.tuples(keys, coefficients), max_size=6)
quick = settings(max_examples=40, deadline=None, derandomize=True)


def terms_of(pairs: list[tuple[int, float]], stream: Domain) -> Terms:
    return Terms.of([key for key, _ in pairs], [c for _, c in pairs], stream)


def start(n: int, seed: int = 0, scale: float = 0.1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def folded(x: np.ndarray, terms: Terms, tensor: int) -> np.ndarray:
    """x + Σ c z by the reference: the product is rounded, then the sum."""
    for key, c in zip(terms.keys, terms.coefficients, strict=True):
        x = x + c * reference.direction(terms.stream, int(key), tensor, x.size)
    return x


def generate(stream: Domain, key: int, tensor: int, n: int) -> np.ndarray:
    out = torch.full((n,), torch.nan)
    cpu.generate(out, stream, key, tensor)
    return out.numpy()


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


# -- streams -----------------------------------------------------------------------------------------------------


def test_golden_digests():
    for part, table in GOLDEN["derive_table"](GOLDEN["NUMBA"]).items():
        assert table == KEPT[part], part


@quick
@given(streams, keys, tensors, sizes)
def test_generate_is_the_reference(stream, key, tensor, n):
    assert_same_bits(generate(stream, key, tensor, n), reference.direction(stream, key, tensor, n))


@pytest.mark.parametrize("stream", [Domain.GAUSSIAN, Domain.RADEMACHER])
def test_every_tail(stream):
    """Every size up to a few blocks, and around the chunk of 4096: a short tensor is a prefix of a long one."""
    whole = reference.direction(stream, 11, 3, 2 * cpu.CHUNK)
    for n in (*range(300), *range(cpu.CHUNK - 40, cpu.CHUNK + 300, 7)):
        assert_same_bits(generate(stream, 11, 3, n), whole[:n])


def test_generate_writes_nothing_beyond_its_tensor():
    for stream in (Domain.GAUSSIAN, Domain.RADEMACHER):
        guarded = torch.full((5000 + 64,), 7.0)
        cpu.generate(guarded[32:-32], stream, 1, 0)
        assert torch.all(guarded[:32] == 7)
        assert torch.all(guarded[-32:] == 7)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected):
    assert tuple(int(w) for w in compiled._philox(*map(np.uint32, (*counter, *key)))) == expected


@pytest.mark.parametrize("chunk", [2**27 - 1, 2**27, 2**27 + 5, 2**33 + 1])
def test_block_numbers_beyond_32_bits(chunk):
    """Too long to generate from the start, so the kernels are asked for one far chunk."""
    key, tensor, n = 0x0123456789ABCDEF, 9, cpu.CHUNK
    one = (np.array([key], np.uint64), np.ones(1, np.float32), 0, 1)
    groups = np.arange(chunk * 32, chunk * 32 + 32, dtype=np.uint64)
    blocks = (groups[:, None] * np.uint64(32) + np.arange(32, dtype=np.uint64)).reshape(-1)
    assert (blocks[0] >= 2**32) and blocks.size == 1024
    words = reference.philox(blocks, tensor, Domain.GAUSSIAN, key)
    planes = (*reference.box_muller(*words[:2]), *reference.box_muller(*words[2:]))
    y = np.zeros(n, np.float32)
    compiled._add_gaussian(y, n, chunk * 32, np.uint32(tensor), *one)
    assert_same_bits(y, np.stack([p.reshape(32, 32) for p in planes], axis=1).reshape(-1) + np.float32(0))

    blocks = np.arange(chunk * 32, chunk * 32 + 32, dtype=np.uint64)
    octets = np.stack(reference.philox(blocks, tensor, Domain.RADEMACHER, key), axis=1).astype("<u4").view(np.uint8)
    y = np.zeros(n, np.float32)
    compiled._add_rademacher(y, n, chunk, np.uint32(tensor), *one)
    assert_same_bits(y, 1 - 2 * np.unpackbits(octets.T.reshape(-1), bitorder="little").astype(np.float32))


# -- folds and views ---------------------------------------------------------------------------------------------


@quick
@given(streams, terms, tensors, sizes)
def test_fused_fold_is_many_single_folds_and_the_reference(stream, pairs, tensor, n):
    x = start(n)
    fused, single = torch.from_numpy(x.copy()), torch.from_numpy(x.copy())
    cpu.advance(fused, (), Program.of([terms_of(pairs, stream)], [0]), tensor)
    for pair in pairs:
        cpu.advance(single, (), Program.of([terms_of([pair], stream)], [0]), tensor)
    assert_same_bits(fused.numpy(), single.numpy())
    assert_same_bits(fused.numpy(), folded(x, terms_of(pairs, stream), tensor))


def test_fold_rounds_the_product_before_the_sum():
    """Cases where a fused multiply-add would give other bits exist in number, so the equality above says something."""
    x, z, c = start(20_000), reference.gaussian(3, 0, 20_000), np.float32(0.0123)
    fused = (x.astype(np.float64) + np.float64(c) * z.astype(np.float64)).astype(np.float32)
    twice = folded(x, Terms.of([3], [c], Domain.GAUSSIAN), 0)
    assert np.mean(fused != twice) > 0.01
    y = torch.from_numpy(x.copy())
    cpu.advance(y, (), Program.of([Terms.of([3], [c], Domain.GAUSSIAN)], [0]), 0)
    assert_same_bits(y.numpy(), twice)


def test_order_of_terms_matters_and_is_kept():
    pairs = [(1, 0.3), (2, 1e-4), (3, -0.3)]
    x = start(4096)
    results = []
    for order in (pairs, pairs[::-1]):
        y = torch.from_numpy(x.copy())
        cpu.advance(y, (), Program.of([terms_of(order, Domain.GAUSSIAN)], [0]), 0)
        assert_same_bits(y.numpy(), folded(x, terms_of(order, Domain.GAUSSIAN), 0))
        results.append(y)
    assert not torch.equal(*results)


def test_subnormal_numbers_are_kept():
    y = torch.zeros(1000)
    cpu.advance(y, (), Program.of([Terms.of([1], [1e-40], Domain.GAUSSIAN)], [0]), 0)
    assert_same_bits(y.numpy(), folded(np.zeros(1000, np.float32), Terms.of([1], [1e-40], Domain.GAUSSIAN), 0))
    assert torch.count_nonzero(y) > 990


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@quick
@given(stream=streams, pairs=terms, tensor=tensors, n=sizes)
def test_view_is_the_sum_rounded_to_nearest_and_leaves_x_alone(dtype, stream, pairs, tensor, n):
    x = torch.from_numpy(start(n)).to(GOLDEN["TYPES"][dtype])
    before, out = as_bits(x).copy(), torch.full_like(x, 5)
    cpu.perturb(x, out, terms_of(pairs, stream), tensor)
    assert_same_bits(as_bits(x), before)
    expected = torch.from_numpy(folded(x.float().numpy(), terms_of(pairs, stream), tensor)).to(x.dtype)
    assert_same_bits(as_bits(out), as_bits(expected))


def view_of_zero(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Each float32 value through `perturb`: 0 + c·(±1), one value a call; the sign of z is taken out again."""
    x, out, sign = torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype), reference.rademacher(1, 0, 1)
    result = []
    for c in values * sign:
        cpu.perturb(x, out, Terms.of([1], [c], Domain.RADEMACHER), 0)
        result.append(int(as_bits(out)[0]))
    return np.array(result, np.uint16)


def near_ties(dtype: torch.dtype, lowest: float) -> np.ndarray:
    """Midpoints between neighbours of the type, and the float32 numbers just beside them."""
    grid = torch.arange(1, 0x7C00 if dtype == torch.float16 else 0x7F80, 97, dtype=torch.int16).view(dtype)
    above = (grid.view(torch.int16) + 1).view(dtype)
    middle = ((grid.double() + above.double()) / 2).float().numpy()
    middle = middle[np.isfinite(middle) & (middle >= lowest)]
    inf = np.float32(np.inf)
    return np.concatenate([middle, np.nextafter(middle, inf), np.nextafter(middle, -inf), -middle])


@pytest.mark.parametrize(
    ("dtype", "lowest"), [(torch.bfloat16, 2.0**-100), (torch.float16, 2.0**-17)], ids=["bfloat16", "float16"]
)
def test_view_rounds_ties_to_even(dtype, lowest):
    values = near_ties(dtype, lowest)
    assert values.size > 600
    assert_same_bits(view_of_zero(values, dtype), as_bits(torch.from_numpy(values).to(dtype)))


def test_view_rounds_deep_float16_subnormals_to_nearest():
    """Below 2⁻¹⁷ more bits are dropped than a random number has; a value just above a midpoint still goes up."""
    values = np.concatenate([near_ties(torch.float16, 0.0), near_ties(torch.float16, 0.0) * np.float32(2.0**-6)])
    values = np.append(values[np.abs(values) < 2.0**-17], np.float32(2.0**-25 * (1 + 2.0**-16)))
    assert_same_bits(view_of_zero(values, torch.float16), as_bits(torch.from_numpy(values).to(torch.float16)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_view_of_infinity_and_nan(dtype):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0], dtype=dtype)
    out = torch.empty_like(x)
    cpu.perturb(x, out, Terms.of([1], [1.0], Domain.RADEMACHER), 0)
    assert torch.isposinf(out[0])
    assert torch.isneginf(out[1])
    assert torch.isnan(out[2])
    assert as_bits(out)[2] == (0x7FC0 if dtype == torch.bfloat16 else 0x7E00)
    assert torch.isfinite(out[3])


# -- sums --------------------------------------------------------------------------------------------------------


@quick
@given(keys, sizes)
def test_checksum_is_the_reference(seed, n):
    words = np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32)
    for bits in (words, words.astype(np.uint16)):
        for dtype in ("float32",) if bits.itemsize == 4 else ("bfloat16", "float16"):
            x = as_tensor(bits.view(np.float32) if bits.itemsize == 4 else bits, dtype)
            assert cpu.checksum(x) == reference.checksum(bits)


@quick
@given(keys, tensors, sizes)
def test_squares_is_the_reference(key, tensor, n):
    assert cpu.squares(key, tensor, n, CPU) == reference.squares(key, tensor, n)


# -- threads -----------------------------------------------------------------------------------------------------


def everything(n: int) -> list[bytes | int]:
    """Results of every kernel on n coordinates."""
    results: list[bytes | int] = []
    for stream in (Domain.GAUSSIAN, Domain.RADEMACHER):
        pairs = terms_of([(1, 0.01), (2, -0.02)], stream)
        results.append(generate(stream, 5, 1, n).tobytes())
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x = torch.from_numpy(start(n)).to(dtype)
            out, slots = torch.empty_like(x), (torch.zeros(n), torch.zeros(n))
            cpu.perturb(x, out, pairs, 2)
            program = Program.of([pairs, pairs], [7, 8], Rule.ADAM, [(0.1, 0.9, 0.1, 0.99, 0.01, 1e-3)] * 2)
            cpu.advance(x, slots, program, 2)
            results += [as_bits(t).tobytes() for t in (out, x, *slots)]
            results.append(cpu.checksum(x))
    y = torch.empty(n, dtype=torch.bfloat16)
    cpu.round_into(y, torch.from_numpy(start(n)), 3, 4)
    return [*results, as_bits(y).tobytes(), cpu.squares(6, 0, n, CPU)]


def test_threads_do_not_change_results(monkeypatch):
    n = 9 * cpu.CHUNK + 77
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = everything(n)
        monkeypatch.setattr(cpu, "PARALLEL_FROM", 1)
        spans = []
        for workers in (2, 3, 4, 7, 16):
            torch.set_num_threads(workers)
            spans.append(len(cpu._run(lambda lo, hi: (lo, hi), n, 1)))
            assert everything(n) == alone
        assert spans == [2, 3, 4, 7, 10]  # work really was split; never into more pieces than chunks
    finally:
        torch.set_num_threads(before)


def test_work_is_split_by_itself_from_the_stated_size():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert len(cpu._run(lambda lo, hi: None, cpu.PARALLEL_FROM - 1, 1)) == 1
        assert cpu._run(lambda lo, hi: hi - lo, cpu.PARALLEL_FROM, 1) == [32, 32]
        assert_same_bits(generate(Domain.GAUSSIAN, 2, 0, 300_001), reference.gaussian(2, 0, 300_001))
    finally:
        torch.set_num_threads(before)


def test_kernels_of_a_device():
    assert kernels(CPU) is cpu
    with pytest.raises(FedzeroError, match="meta"):
        kernels(torch.device("meta"))


def test_chunks_hold_whole_groups():
    for group in (spec.GAUSSIAN_CHUNK, spec.RADEMACHER_CHUNK, spec.ROUNDING_CHUNK):
        assert cpu.CHUNK % group == 0


@pytest.mark.parametrize("stream", [Domain.GAUSSIAN, Domain.RADEMACHER])
def test_some_groups_are_those_of_the_whole(stream: Domain) -> None:
    whole, some = torch.empty(1000), torch.full((1000,), torch.nan)
    groups = np.array([0, 3, 7])  # the last one is cut short at 1,000
    cpu.generate(whole, stream, 77, 3)
    cpu.generate(some, stream, 77, 3, groups)
    for g in groups:
        assert torch.equal(some[128 * g : 128 * g + 128], whole[128 * g : 128 * g + 128])
    if stream is Domain.GAUSSIAN:
        assert some[128:384].isnan().all(), "only what was asked for"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stream", [Domain.GAUSSIAN, Domain.RADEMACHER])
@pytest.mark.parametrize("width", [1, 67, 128, 4100])
def test_rows_are_those_of_the_view(stream: Domain, dtype: torch.dtype, width: int) -> None:
    height = 19
    x = torch.from_numpy(np.random.default_rng(width).standard_normal((height, width))).to(dtype)
    ids = torch.tensor([[18, 3], [3, 0]])
    for terms in (Terms.of([5, 6, 7], [0.5, -0.25, 1e-3], stream), Terms.of([], [], stream)):
        whole, some = torch.empty_like(x), torch.empty(4, width, dtype=dtype)
        cpu.perturb(x.view(-1), whole.view(-1), terms, 9)
        cpu.rows(x, ids.view(-1), some, terms, 9)
        assert torch.equal(some, whole[ids.view(-1)])
