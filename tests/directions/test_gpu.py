"""The Triton kernels give the reference's bits: in Triton's interpreter on any machine, and on a CUDA device.

    PYTHONPATH=src python tests/directions/test_gpu.py       prints FOLDED, derived by the CPU kernels

Tests marked `kernels` run where a device is, and everywhere else in a second process (test_interpreter), because Triton
decides when it is imported whether it compiles or interprets.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedzero.directions import Piece, reference
from fedzero.directions.spec import Domain
from fedzero.directions.terms import Program, Rule, Terms

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = triton.language
gpu: Any = importlib.import_module("fedzero.directions.gpu")
primitives: Any = importlib.import_module("fedzero.directions.gpu.primitives")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ALL = not INTERPRETED or os.environ.get("TEST_ALL_KERNELS") == "1"
CUDA = torch.cuda.is_available() and not INTERPRETED
DEVICE = torch.device("cuda" if CUDA else "cpu")
TILE = 8 * gpu.LANES
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STREAMS = {"gaussian": Domain.GAUSSIAN, "rademacher": Domain.RADEMACHER}
HYPERS = {
    Rule.SGD: (),
    Rule.MOMENTUM: (0.05, 0.9, 0.1),
    Rule.ADAM: (0.05, 0.9, 0.1, 0.99, 0.01, 0.001),
    Rule.SIGN: (0.01,),
}
LAST = 2**64 - 1

kernels: Any = pytest.mark.skipif(not INTERPRETED and not CUDA, reason="no CUDA device; test_interpreter runs this one")


def covered(test: Any) -> Any:
    """A few cases, see tests/sampling.py, where the interpreter does not run all."""
    return test if ALL else pytest.mark.covered(test)


def cuda(test: Any) -> Any:
    return pytest.mark.cuda(pytest.mark.skipif(not CUDA, reason="no CUDA device")(test))


def bits_of(x: torch.Tensor) -> np.ndarray:
    x = x.cpu()
    if x.dtype == torch.float32:
        return x.view(torch.int32).numpy().view(np.uint32)
    return x.view(torch.int16).numpy().view(np.uint16)


def same(got: torch.Tensor, expected: torch.Tensor | np.ndarray) -> None:
    if isinstance(expected, np.ndarray):
        expected = torch.from_numpy(expected)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(bits_of(got), bits_of(expected))


def numbers(n: int, seed: int = 0, scale: float = 0.1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def parameters(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of a model; those of 16 bits, where any NaN becomes the same one, with NaNs and infinities."""
    x = torch.from_numpy(numbers(n)).to(dtype)
    if dtype != torch.float32:
        x[5:8] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        x[8:12].view(torch.int16)[:] = torch.tensor([-1, 0x7FFF, 0x7F81, -0x7F], dtype=torch.int16)
    return x


def every_size(n: int) -> np.ndarray:
    """Numbers of all magnitudes a float32 has, subnormals, infinities and a NaN among them."""
    rng = np.random.default_rng(n)
    bits = rng.integers(0, 0x7F800000, n, dtype=np.uint32) | rng.integers(0, 2, n, dtype=np.uint32) << np.uint32(31)
    y = bits.view(np.float32).copy()
    y[::3] = np.ldexp(np.float32(1) + rng.random(y[::3].size, np.float32), rng.integers(-42, 18, y[::3].size))
    y[:5] = np.nan, np.inf, -np.inf, 65519.99, -0.0
    return y


def rounded(y: np.ndarray, dtype: torch.dtype, key: int, tensor: int) -> torch.Tensor:
    """float32 to `dtype` by the reference, stochastically for 16 bits."""
    if dtype == torch.float32:
        return torch.from_numpy(y)
    to16 = reference.round_bfloat16 if dtype == torch.bfloat16 else reference.round_float16
    return torch.from_numpy(to16(y, reference.rounding_bits(key, tensor, y.size)).view(np.int16)).view(dtype)


def stepped(x: torch.Tensor, slots: list[np.ndarray], program: Program, tensor: int) -> torch.Tensor:
    """All steps of `program` by the reference; changes the list `slots`."""
    first = 0
    for s, last in enumerate(program.ends):
        y, h = x.float().numpy(), program.hypers[s]
        g = y if program.rule is Rule.SGD else np.zeros_like(y)
        for key, c in zip(program.keys[first:last], program.coefficients[first:last], strict=True):
            g = g + c * reference.direction(program.stream, int(key), tensor, y.size)
        if slots:
            slots[0] = h[1] * slots[0] + h[2] * g
        if program.rule is Rule.SGD:
            y = g
        elif program.rule is Rule.MOMENTUM:
            y = y - h[0] * slots[0]
        elif program.rule is Rule.ADAM:
            slots[1] = h[3] * slots[1] + h[4] * (g * g)
            y = y - (h[0] * slots[0]) / (np.sqrt(slots[1]) + h[5])
        else:
            y = y - h[0] * np.sign(g)
        x = rounded(y, x.dtype, int(program.rounding[s]), tensor)
        first = last
    return x


def check_advance(x: torch.Tensor, slots: list[np.ndarray], program: Program, tensor: int) -> None:
    y, memory = x.to(DEVICE, copy=True), tuple(torch.tensor(s, device=DEVICE) for s in slots)
    gpu.advance(y, memory, program, tensor)
    same(y, stepped(x, slots, program, tensor))
    for got, expected in zip(memory, slots, strict=True):
        same(got, expected)


# -- in the interpreter and on the device ------------------------------------------------------------------------


@pytest.mark.skipif(INTERPRETED or CUDA, reason="the tests it would start run in this process")
@pytest.mark.parametrize("all_", ["0", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "files",
    [
        pytest.param(("test_gpu.py",), id="first"),
        pytest.param(("test_rank1.py", "test_gpu_layers.py"), id="others", marks=pytest.mark.slow),
    ],
)
def test_interpreter(files: tuple[str, ...], all_: str) -> None:
    """The tests marked `kernels`, on CPU tensors."""
    source = str(Path(gpu.__file__).parents[3])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    tests = [str(Path(__file__).with_name(name)) for name in files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", *tests],
        env={**os.environ, "TRITON_INTERPRET": "1", "TEST_ALL_KERNELS": all_, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@kernels
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(("key", "tensor", "n"), [(LAST, 7, 1), (5, 2**32 - 1, TILE + 131)])
def test_generate_is_the_reference_and_stays_inside(name: str, key: int, tensor: int, n: int) -> None:
    guarded = torch.full((n + 64,), 7.0, device=DEVICE)
    gpu.generate(guarded[32:-32], STREAMS[name], key, tensor)
    same(guarded[32:-32], reference.direction(STREAMS[name], key, tensor, n))
    assert torch.all(guarded[:32] == 7)
    assert torch.all(guarded[-32:] == 7)


STEPS = [
    *product(STREAMS, [Rule.SGD], TYPES),
    *product(["rademacher"], [Rule.MOMENTUM, Rule.ADAM, Rule.SIGN], ["float32"]),
    ("gaussian", Rule.MOMENTUM, "float16"),
    ("gaussian", Rule.ADAM, "bfloat16"),
    ("gaussian", Rule.SIGN, "bfloat16"),
]


@kernels
@covered
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("name", "rule", "dtype"), STEPS if INTERPRETED else list(product(STREAMS, Rule, TYPES)))
def test_steps_are_the_reference(name: str, rule: Rule, dtype: str) -> None:
    """Three steps of 2, 0 and 1 terms over a whole tile and a rest."""
    n, stream = TILE + 300, STREAMS[name]
    steps = [
        Terms.of(keys, [0.01 * (k % 5 - 2.5) for k in keys], stream) for keys in ([LAST, 1], [], [0x8123456789ABCDEF])
    ]
    x = parameters(n, TYPES[dtype])
    slots = [np.abs(numbers(n, seed)) for seed in range(rule.slots)]
    check_advance(x, slots, Program.of(steps, [LAST, 3, 2**63], rule, [HYPERS[rule]] * 3), 3)


@kernels
@covered
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("name", "rule", "dtype"),
    [
        *product(STREAMS, [Rule.SGD], TYPES),
        ("gaussian", Rule.ADAM, "bfloat16"),
        ("rademacher", Rule.MOMENTUM, "float32"),
    ],
)
def test_a_single_term_is_the_reference(name: str, rule: Rule, dtype: str) -> None:
    """The most frequent program has kernels of its own, without loops."""
    n = TILE + 300
    x = parameters(n, TYPES[dtype])
    terms = Terms.of([0x8123456789ABCDEF], [-0.03], STREAMS[name])
    slots = [np.abs(numbers(n, seed)) for seed in range(rule.slots)]
    check_advance(x, slots, Program.of([terms], [2**63 + 5], rule, [HYPERS[rule]]), 3)


@kernels
@pytest.mark.parametrize("rule", [Rule.SGD, Rule.ADAM])
def test_denormals_are_kept(rule: Rule) -> None:
    """Coefficients, squares, roots and quotients below 2⁻¹²⁶: v is about (10⁻²⁰)², the steps about 10⁻³⁹."""
    tiny = rule is Rule.SGD
    terms = Terms.of([1, 2], [1e-40, -1e-41] if tiny else [1e-20, 2e-20], Domain.GAUSSIAN)
    hypers = [(1e-39, 0.9, 0.1, 0.99, 0.01, 1e-30)]
    x, slots = torch.from_numpy(numbers(500, scale=1e-39)), [np.zeros(500, np.float32)] * rule.slots
    check_advance(x, slots, Program.of([terms], [0], rule, hypers), 0)
    assert tiny or np.mean((slots[1] > 0) & (slots[1] < 2.0**-126)) > 0.9


@kernels
@pytest.mark.parametrize("dtype", TYPES)
def test_view_is_the_sum_to_nearest_and_leaves_x_alone(dtype: str) -> None:
    """The small coefficient gives float16 its deepest subnormals."""
    for c in (2.0**-24, 0.3):
        x = torch.from_numpy(numbers(600, scale=c)).to(TYPES[dtype])
        y, out = x.to(DEVICE), torch.full_like(x, 5).to(DEVICE)
        gpu.perturb(y, out, Terms.of([7, 8], [c, -c / 3], Domain.GAUSSIAN), 2)
        same(y, x)
        z = [reference.gaussian(key, 2, x.numel()) for key in (7, 8)]
        total = x.float().numpy() + np.float32(c) * z[0] + np.float32(-c / 3) * z[1]
        same(out, torch.from_numpy(total).to(x.dtype))


@kernels
@pytest.mark.parametrize("rule", [Rule.SGD, Rule.ADAM] if ALL else [Rule.ADAM])
def test_many_tensors_in_one_launch_are_each_by_itself(rule: Rule) -> None:
    """Of all types, some smaller than a tile, some a tile and a bit, one that begins in the middle of another."""
    sizes = {"float32": (5, TILE + 3), "bfloat16": (TILE, 70), "float16": (2 * TILE + 1,)}
    ones = [torch.from_numpy(numbers(n, seed=n)).to(TYPES[t]).to(DEVICE) for t, all_ in sizes.items() for n in all_]
    ones.append(torch.from_numpy(numbers(200, seed=1)).to(DEVICE)[3:])
    others = [x.clone() for x in ones]
    others[-1] = torch.cat([torch.zeros(1, device=DEVICE), ones[-1]])[1:]  # no multiple of 16 bytes either
    slots = [[torch.ones(x.numel(), device=DEVICE) for _ in range(rule.slots)] for x in ones]
    same_slots = [[s.clone() for s in some] for some in slots]
    terms = [Terms.of([3, LAST], [0.2, -0.1], Domain.GAUSSIAN), Terms.of([5], [0.3], Domain.GAUSSIAN)]
    program = Program.of(terms, [11, 12], rule, [HYPERS[rule]] * 2)
    ordinals = [4, 2, 9, 0, 7, 1]
    for x, some, ordinal in zip(others, same_slots, ordinals, strict=True):
        gpu.advance(x, tuple(some), program, ordinal)
    gpu.advance_all(gpu.listing(list(map(Piece, ones, ones, map(tuple, slots), ordinals))), program)
    for x, y in zip(ones, others, strict=True):
        same(x, y)
    for some, them in zip(slots, same_slots, strict=True):
        for a, b in zip(some, them, strict=True):
            same(a, b)
    views, wanted = [torch.empty_like(x) for x in ones], [torch.empty_like(x) for x in ones]
    gpu.perturb_all(gpu.listing(list(map(Piece, ones, views, [()] * 6, ordinals))), terms[0])
    for x, out, ordinal in zip(ones, wanted, ordinals, strict=True):
        gpu.perturb(x, out, terms[0], ordinal)
    for x, y in zip(views, wanted, strict=True):
        same(x, y)


@kernels
@pytest.mark.parametrize("capacity", [1, 4])
def test_terms_that_are_replaced_in_place(capacity: int) -> None:
    """Whatever is in place is what kernels read: none of them is given the terms themselves."""
    live = gpu.TermsBuffer(Domain.GAUSSIAN, capacity, DEVICE)
    points = [Terms.of([5], [0.1], Domain.GAUSSIAN), Terms.of([6], [-0.2], Domain.GAUSSIAN)]
    if capacity > 1:
        points += [Terms.of([7, 8, LAST], [0.1, 0.2, 0.3], Domain.GAUSSIAN), Terms.of([], [], Domain.GAUSSIAN)]
    x = torch.from_numpy(numbers(TILE + 30)).to(DEVICE)
    matrix, ids = x.view(-1, 2), torch.tensor([3, 0], device=DEVICE)
    out, some = torch.empty_like(x), torch.empty(2, 2, device=DEVICE)
    many, bank = gpu.listing([Piece(x, out, (), 3)]), live.upload(points)
    for point, terms in enumerate(points):
        live.load(bank[point])
        gpu.perturb_all(many, live)
        gpu.rows(matrix, ids, some, live, 3)
        wanted = torch.empty_like(x)
        gpu.perturb(x, wanted, terms, 3)
        same(out, wanted)
        same(some, wanted.view(-1, 2)[ids])
    with pytest.raises(ValueError, match="room for"):
        live.upload([Terms.of([1] * 5, [1] * 5, Domain.GAUSSIAN)])


@kernels
@covered
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_are_those_of_the_view(dtype: str, name: str) -> None:
    """Rows that begin anywhere in a block, twice the same among them, and the last one."""
    height, width = 23, gpu.SPAN + 67
    x = torch.from_numpy(numbers(height * width)).to(TYPES[dtype])
    terms = Terms.of([7, LAST], [0.3, -0.1], STREAMS[name])
    ids = torch.tensor([5, 0, 22, 5, 13])
    out = torch.empty(5, width, dtype=x.dtype, device=DEVICE)
    gpu.rows(x.view(height, width).to(DEVICE), ids.to(DEVICE), out, terms, 2)
    z = [reference.direction(STREAMS[name], key, 2, x.numel()) for key in (7, LAST)]
    total = x.float().numpy() + np.float32(0.3) * z[0] + np.float32(-0.1) * z[1]
    same(out, torch.from_numpy(total).to(x.dtype).view(height, width)[ids])


@kernels
@pytest.mark.parametrize("name", STREAMS)
def test_terms_side_by_side_are_the_reference(name: str) -> None:
    """n is no multiple of 4, so rows start anywhere; 10⁻⁴⁰ gives denormals and zeros of both signs."""
    keys, coefficients, n = [3, LAST, 4], np.array([0.5, -2, 1e-40], np.float32), TILE + 2
    out = torch.full((3, n), torch.nan, device=DEVICE)
    gpu.spread(out, Terms.of(keys, coefficients, STREAMS[name]), 9)
    z = np.stack([reference.direction(STREAMS[name], key, 9, n) for key in keys])
    same(out, coefficients[:, None] * z)


@kernels
def test_offsets_of_many_vectors_are_the_reference() -> None:
    """Vectors of several tiles and of a part of one, in one launch; directions of rank one are signs there."""
    keys, coefficients, sizes = [3, LAST], np.array([0.5, -2], np.float32), [(4, 2 * TILE + 3), (9, 1), (2, TILE)]
    found = gpu.offsets(Terms.of(keys, coefficients, Domain.RANK1), sizes, torch.device(DEVICE))
    for (tensor, n), each in zip(sizes, found, strict=True):
        z = np.stack([reference.direction(Domain.RADEMACHER, key, tensor, n) for key in keys])
        same(each, coefficients[:, None] * z)
    assert gpu.offsets(Terms.of(keys, coefficients, Domain.RANK1), [], torch.device(DEVICE)) == []


@kernels
@covered
@pytest.mark.parametrize("keys", [[[], [3], [LAST]], [[3, 4], [], [LAST]]], ids=["one term", "several"])
@pytest.mark.parametrize("name", STREAMS)
def test_points_side_by_side_are_the_reference(name: str, keys: list[list[int]]) -> None:
    x, out = numbers(TILE + 2), torch.full((3, TILE + 2), torch.nan, device=DEVICE)
    steps = [Terms.of(own, [0.5] * len(own), STREAMS[name]) for own in keys]
    gpu.points(torch.from_numpy(x).to(DEVICE), out, Program.of(steps, [0] * 3), 9)
    for row, own in zip(out, keys, strict=True):
        expected = x.copy()
        for key in own:
            expected += np.float32(0.5) * reference.direction(STREAMS[name], key, 9, len(x))
        same(row, expected)


@kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_the_reference(dtype: torch.dtype) -> None:
    y = every_size(TILE + 77)
    out = torch.empty(y.size, dtype=dtype, device=DEVICE)
    gpu.round_into(out, torch.tensor(y, device=DEVICE), 0xFEDCBA9876543210, 6)
    same(out, rounded(y, dtype, 0xFEDCBA9876543210, 6))


@kernels
@pytest.mark.parametrize("n", [0, 3, 2 * TILE + 5])
def test_sums_are_the_reference(n: int) -> None:
    words = np.random.default_rng(n).integers(0, 2**32, n, dtype=np.uint32)
    assert gpu.checksum(torch.tensor(words.view(np.float32), device=DEVICE)) == reference.checksum(words)
    halves = words.astype(np.uint16)
    x = torch.tensor(halves.view(np.int16), device=DEVICE).view(torch.bfloat16)
    assert gpu.checksum(x) == reference.checksum(halves)
    assert gpu.squares(LAST, 4, n, DEVICE) == reference.squares(LAST, 4, n)


@kernels
def test_sums_of_a_list_are_those_of_its_tensors() -> None:
    """Of several types and sizes, one of them empty and one not at a multiple of 16 bytes."""
    generator = np.random.default_rng(5)
    sizes = (3, TILE, 0, 2 * TILE + 5, 40)
    floats = [torch.tensor(generator.standard_normal(n).astype(np.float32), device=DEVICE) for n in sizes]
    tensors = [x.to(dtype) for x in floats for dtype in TYPES.values()] + [floats[1][1:]]
    pieces = [Piece(x, x, (), ordinal) for ordinal, x in enumerate(tensors)]
    found = gpu.checksums(gpu.listing(pieces))
    assert {ordinal: found.get(ordinal, 0) for ordinal in range(len(tensors))} == {
        ordinal: gpu.checksum(x) for ordinal, x in enumerate(tensors)
    }


# -- on the device -----------------------------------------------------------------------------------------------


@cuda
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("key", [0, 0x0123456789ABCDEF, LAST])
def test_digests_of_16_million_samples(name: str, key: int) -> None:
    """The digests that pin the stream on the CPU (golden.py derives them)."""
    kept = json.loads(Path(__file__).with_name("golden.json").read_text())["large"]
    out = torch.empty(2**24, device=DEVICE)
    gpu.generate(out, STREAMS[name], key, 0)
    digest = hashlib.sha256(out.cpu().numpy().astype("<f4").tobytes()).hexdigest()
    assert digest == kept[f"{name} key {key:#018x} tensor 0 n 16777216"]


SIZES = (4_000_037, 3_999_000, 1_500_963, 500_000)
FOLDED = {
    "gaussian SGD float32": 0x2AF0A32EEDCFB4DA,
    "gaussian SGD bfloat16": 0x35E040E051DFF0BA,
    "gaussian SGD float16": 0x382AB1A33F972D42,
    "gaussian MOMENTUM float32": 0x75DFEF6703356157,
    "gaussian MOMENTUM bfloat16": 0x54340C51AC7EDA9C,
    "gaussian MOMENTUM float16": 0x2F6468F9E599B72B,
    "gaussian ADAM float32": 0x7ABC98BDDB3727D8,
    "gaussian ADAM bfloat16": 0x49710C66E46781E4,
    "gaussian ADAM float16": 0xE62F3BAC64F7DB95,
    "gaussian SIGN float32": 0x169E60563D76C3EA,
    "gaussian SIGN bfloat16": 0x1F0083FED99FBD42,
    "gaussian SIGN float16": 0xD803E535C9D7E65B,
    "rademacher SGD float32": 0x71F6E279B06158AB,
    "rademacher SGD bfloat16": 0xC42227B4ABB7EE04,
    "rademacher SGD float16": 0x4DC0C63EA391712D,
    "rademacher MOMENTUM float32": 0xC8F55A1274D9EA04,
    "rademacher MOMENTUM bfloat16": 0x97BA17DB406D4B2B,
    "rademacher MOMENTUM float16": 0x37035D483AA82226,
    "rademacher ADAM float32": 0x815DBFCB43E39FBF,
    "rademacher ADAM bfloat16": 0x38270DAACB71AAE4,
    "rademacher ADAM float16": 0xEACE04A63F791BDD,
    "rademacher SIGN float32": 0xE42968D8F4C37414,
    "rademacher SIGN bfloat16": 0xACD7185603F79120,
    "rademacher SIGN float16": 0x2F24FE48672CC88B,
}
"""Checksums of the model of SIZES after 100 terms, on a CPU: for machines that have a GPU but no numba."""


def folded(side: Any, device: torch.device, name: str, rule: Rule, dtype: str) -> int:
    """Sum over the tensors of a model of 10 million: its checksum after two steps of 50 terms, and its slots'."""
    steps = []
    for s in range(2):
        keys = [(50 * s + j) * 0x9E3779B97F4A7C15 % 2**64 for j in range(50)]
        steps.append(Terms.of(keys, [(j % 7 - 2.75) * 1e-3 for j in range(50)], STREAMS[name]))
    program = Program.of(steps, [11, 12], rule, [HYPERS[rule]] * 2)
    total = 0
    for tensor, n in enumerate(SIZES):
        start = (np.arange(n, dtype=np.uint32) * np.uint32(2654435761)).view(np.int32).astype(np.float32) * np.float32(
            2.0**-34
        )
        x = torch.from_numpy(start).to(TYPES[dtype]).to(device)
        slots = tuple(torch.zeros(n, device=device) for _ in range(rule.slots))
        side.advance(x, slots, program, tensor)
        total += sum(side.checksum(t) for t in (x, *slots))
    return total % 2**64


def on_cpu(name: str, rule: Rule, dtype: str) -> int:
    if importlib.util.find_spec("numba") is None:
        return FOLDED[f"{name} {rule.name} {dtype}"]
    return folded(importlib.import_module("fedzero.directions.cpu"), torch.device("cpu"), name, rule, dtype)


@cuda
@pytest.mark.parametrize(("name", "rule", "dtype"), list(product(STREAMS, Rule, TYPES)))
def test_fold_of_100_terms_over_10_million_parameters(name: str, rule: Rule, dtype: str) -> None:
    assert folded(gpu, DEVICE, name, rule, dtype) == on_cpu(name, rule, dtype)


@pytest.mark.skipif(INTERPRETED, reason="has nothing to do with the interpreter")
def test_folded_is_what_the_cpu_gives() -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    assert on_cpu("rademacher", Rule.ADAM, "bfloat16") == FOLDED["rademacher ADAM bfloat16"]


def far(stream: Domain, key: int, tensor: int, first: int, n: int) -> np.ndarray:
    """Coordinates first … first + n − 1 by the reference, without those before; whole chunks only."""
    if stream is Domain.GAUSSIAN:
        blocks = np.arange(first // 4, (first + n) // 4, dtype=np.uint64)
        words = reference.philox(blocks, tensor, stream, key)
        planes = (*reference.box_muller(*words[:2]), *reference.box_muller(*words[2:]))
        return np.stack([p.reshape(-1, 32) for p in planes], axis=1).reshape(-1)
    blocks = np.arange(first // 128, (first + n) // 128, dtype=np.uint64)
    octets = np.stack(reference.philox(blocks, tensor, stream, key), axis=1).astype("<u4").view(np.uint8)
    bits = np.unpackbits(octets.reshape(-1, 32, 16).transpose(0, 2, 1).reshape(-1), bitorder="little")
    return 1 - 2 * bits.astype(np.float32)


@cuda
@pytest.mark.parametrize("name", STREAMS)
def test_tensors_of_more_than_2_to_the_31_coordinates(name: str) -> None:
    n, tail = 2**31 + 2 * TILE + 77, 4 * TILE
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB on the device")
    first, stream = 2**31 - 2 * TILE, STREAMS[name]
    z = far(stream, 5, 1, first, tail)
    x = torch.zeros(n, device=DEVICE)
    gpu.generate(x, stream, 5, 1)
    same(x[first : first + tail], z)
    del x
    y = torch.zeros(n, dtype=torch.bfloat16, device=DEVICE)
    gpu.perturb(y, y, Terms.of([5], [1.0], stream), 1)
    same(y[first : first + tail], torch.from_numpy(z + np.float32(0)).to(y.dtype))


@cuda
def test_blocks_beyond_32_bits() -> None:
    """2³⁴ coordinates are too many to keep, not to count: what the next two tiles add is the reference's sum."""
    n = 2**34
    more = gpu.squares(3, 2, n + 2 * TILE, DEVICE) - gpu.squares(3, 2, n, DEVICE)
    z = far(Domain.GAUSSIAN, 3, 2, n, 2 * TILE)
    assert more == int((z * z * np.float32(2**24)).astype(np.int64).sum())


@triton.jit
def _wrong_roots(count, first, N: tl.constexpr):
    """count += numbers among `N` consecutive float32s whose root in gpu.py is not the IEEE one."""
    bits = first + tl.program_id(0) * N + tl.arange(0, N)
    s = bits.to(tl.float32, bitcast=True)
    wrong = primitives._radius(s).to(tl.int32, bitcast=True) != tl.sqrt_rn(s).to(tl.int32, bitcast=True)
    tl.atomic_add(count, tl.sum(wrong.to(tl.int32), axis=0))


@cuda
def test_every_root_that_box_and_muller_take() -> None:
    """All float32s from 2⁻²⁴ to 64, and 0: the radius is √(−log2 u), u = (w | 1)/2³²."""
    count = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    first, last = (int(np.float32(v).view(np.int32)) for v in (2.0**-24, 64.0))
    _wrong_roots[((last - first) // 4096,)](count, first, N=4096, enable_fp_fusion=False)
    _wrong_roots[(1,)](count, 0, N=1, enable_fp_fusion=False)
    assert count.item() == 0


if __name__ == "__main__":
    for case in product(STREAMS, Rule, TYPES):
        print(f'    "{case[0]} {case[1].name} {case[2]}": {on_cpu(*case):#018x},')
