"""CPU kernels (numba), as functions on tensors, on as many threads as torch may use. Numba is imported here alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# isort: off
from fedzero.directions.cpu import alone  # noqa: F401  # before anything imports numba
from fedzero.directions.cpu import kernels

# isort: on
from fedzero.directions.cpu.kernels import CHUNK, LANES, u16, u32, u64
from fedzero.directions.spec import Domain
from fedzero.directions.terms import U64, Piece, Program, Rule, Terms, stream_at

PARALLEL_FROM = 1 << 18
"""Coordinates × terms from which the work is worth a second thread."""


@cache
def _pool(workers: int, pid: int) -> ThreadPoolExecutor:
    """One pool for each process: threads do not survive a fork."""
    return ThreadPoolExecutor(workers, thread_name_prefix="fedzero-kernel")


def _run(work: Callable[[int, int], Any], n: int, terms: int, tiles: int | None = None) -> list[Any]:
    """Run `work(first chunk, last chunk)` over n coordinates, on as many threads as torch may use."""
    chunks = -(-n // CHUNK) if tiles is None else tiles
    workers = min(torch.get_num_threads(), chunks)
    if workers < 2 or n * max(terms, 1) < PARALLEL_FROM:
        return [work(0, chunks)]
    cuts = [chunks * w // workers for w in range(workers + 1)]
    return list(_pool(workers, os.getpid()).map(work, cuts[:-1], cuts[1:]))


def _bits(x: Tensor) -> Any:
    """The same memory as unsigned integers (NumPy has no bfloat16)."""
    signed, unsigned = (torch.int32, u32) if x.element_size() == 4 else (torch.int16, u16)
    return x.view(signed).numpy().view(unsigned)


_NONE = np.empty(0, np.float32)
_NO_FACTORS = np.empty((0, 0), np.uint32), np.empty((0, 0, 0), np.float32), 0


def _stream(stream: Domain, keys: U64, tensor: int, n: int, columns: int) -> tuple[Any, ...]:
    """A stream as kernels take it: its number, and if it is of rank one the factors of all terms of a matrix and its
    number of columns."""
    known = stream_at(stream, columns)
    if known is not Domain.RANK1:
        return u32(known), *_NO_FACTORS
    words = -(-(n // columns) // 32)
    rows, signs = np.empty((words, len(keys)), u32), np.empty((-(-columns // LANES), len(keys), LANES), np.float32)
    kernels._factors(rows, signs, columns, u32(tensor), keys)
    return u32(known), rows, signs, columns


def factors(terms: Terms, shapes: Sequence[tuple[int, int, int]], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """a_j (terms, rows) and b_j (terms, columns), ±1, of matrices (ordinal, rows, columns); float32, which products
    here take as they are."""
    found = []
    for tensor, rows, columns in shapes:
        _, words, blocks, _ = _stream(Domain.RANK1, terms.keys, tensor, rows * columns, columns)
        signs = blocks.transpose(1, 0, 2).reshape(len(terms), -1)[:, :columns]
        bits = np.unpackbits(words.T.astype("<u4", order="C").view(np.uint8), axis=1, bitorder="little")[:, :rows]
        found.append((torch.from_numpy(1 - 2 * bits.astype(np.float32)), torch.from_numpy(signs)))
    return found


def generate(
    out: Tensor, stream: Domain, key: int, tensor: int, groups: NDArray[np.int64] | None = None, columns: int = 0
) -> None:
    """out ← z(key) of tensor `tensor` (float32); of given groups g, at least coordinates 128g … 128g + 127."""
    if groups is not None and stream is Domain.GAUSSIAN:  # making all signs costs less than choosing some
        kernels._generate_groups(out.numpy(), u32(tensor), u64(key), groups)
        return
    _generate(out.reshape(1, -1), stream, np.array([key], u64), tensor, columns)


def _generate(rows: Tensor, stream: Domain, keys: U64, tensor: int, columns: int) -> None:
    """rows[j] ← z(key_j)"""
    given, out, n = _stream(stream, keys, tensor, rows.shape[1], columns), rows.numpy(), rows.shape[1]
    if stream_at(stream, columns) is Domain.RANK1:
        _run(lambda lo, hi: kernels._generate_rank1(out, given, lo, hi), n, len(keys))
    else:
        _run(lambda lo, hi: kernels._generate(out, u32(tensor), given, keys, lo, hi), n, len(keys))


def _advance(
    x: Tensor, out: Tensor, slots: tuple[Tensor, ...], p: Program, tensor: int, columns: int, stochastic: bool
) -> None:
    if stream_at(p.stream, columns) is Domain.RANK1:
        _advance_rank1(x, out, slots, p, tensor, columns, stochastic)
        return
    a, b = (*(s.numpy() for s in slots), _NONE, _NONE)[:2]
    stream = _stream(p.stream, p.keys, tensor, x.numel(), columns)
    common = (a, b, u32(tensor), stream, int(p.rule), p.keys, p.coefficients, p.ends, p.hypers)
    if x.dtype == torch.float32:
        array = out.copy_(x).numpy()
        _run(lambda lo, hi: kernels._advance32(array, *common, lo, hi), x.numel(), len(p.keys))
    else:
        work = (_bits(x), _bits(out), *common, p.rounding, stochastic, x.dtype == torch.bfloat16)
        _run(lambda lo, hi: kernels._advance16(*work, lo, hi), x.numel(), len(p.keys))


TILE_WIDTH, TILE_HEIGHT, TILE_NUMBERS = 1024, 64, 1 << 14
"""Of a tile of a matrix, at most: columns (a multiple of 256, for which rounding to 16 bits makes its bits), rows (each
is another page of memory), and numbers (they stay in the second-level cache)."""
STRIPE_TERMS = 32
"""From so many terms on, tiles go down the columns: the signs of a stripe stay in the cache while all rows use them."""
FACTOR_NUMBERS = 1 << 19
"""Signs of columns made at a time: 2 MB, of which a stripe needs its own columns."""


def _advance_rank1(
    x: Tensor, out: Tensor, slots: tuple[Tensor, ...], program: Program, tensor: int, columns: int, stochastic: bool
) -> None:
    a, b = (*(s.numpy() for s in slots), _NONE, _NONE)[:2]
    wide, n = x.dtype == torch.float32, x.numel()
    width = min(columns, TILE_WIDTH)
    height = min(TILE_HEIGHT, TILE_NUMBERS // width // 4 * 4)
    tiles = -(-(n // columns) // height) * -(-columns // width)
    if wide and out is not x:
        out.copy_(x)
    source = x
    most = max(8, FACTOR_NUMBERS // columns // 8 * 8)
    for p in program.parts(most, within_steps=wide and program.rule is Rule.SGD):
        stream = _stream(p.stream, p.keys, tensor, n, columns)
        shape = (height, width, len(p.keys) >= STRIPE_TERMS)
        if wide:
            work = partial(
                kernels._advance_rank1_32, out.numpy(), a, b, stream, int(p.rule), p.coefficients, p.ends, p.hypers
            )
        else:
            steps = (int(p.rule), p.coefficients, p.ends, p.hypers, p.rounding, stochastic, x.dtype == torch.bfloat16)
            work = partial(kernels._advance_rank1_16, _bits(source), _bits(out), a, b, u32(tensor), stream, *steps)
        _run(partial(work, *shape), n, len(p.keys), tiles)
        source = out


def advance(x: Tensor, slots: tuple[Tensor, ...], program: Program, tensor: int, columns: int = 0) -> None:
    """Run all steps of `program` on one flat tensor in place, `slots` (float32) with it, in one pass over memory."""
    _advance(x, x, slots, program, tensor, columns, stochastic=True)


def perturb(x: Tensor, out: Tensor, terms: Terms, tensor: int, columns: int = 0) -> None:
    """out ← x + Σ c z, x untouched; 16-bit results are rounded to nearest."""
    _advance(x, out, (), Program.of([terms], [0]), tensor, columns, stochastic=False)


def listing(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Tensors to be worked on together."""
    return tuple(pieces)


def advance_all(many: Sequence[Piece], program: Program) -> None:
    """`advance` on all tensors of a list."""
    for piece in many:
        advance(piece.source, piece.slots, program, piece.ordinal, piece.columns)


def perturb_all(many: Sequence[Piece], terms: Terms) -> None:
    """`perturb` on all tensors of a list."""
    program = Program.of([terms], [0])
    for piece in many:
        _advance(piece.source, piece.out, (), program, piece.ordinal, piece.columns, stochastic=False)


def rows(x: Tensor, ids: Tensor, out: Tensor, terms: Terms, tensor: int) -> None:
    """out[r] ← row ids[r] of x + Σ c z, x (V, H) untouched: what `perturb` gives, of these rows alone."""
    wide, bfloat = x.dtype == torch.float32, x.dtype == torch.bfloat16
    stream = _stream(terms.stream, terms.keys, tensor, x.numel(), x.shape[1])
    kernels._rows(_bits(x), ids.numpy(), _bits(out), wide, bfloat, u32(tensor), stream, terms.keys, terms.coefficients)


def spread(out: Tensor, terms: Terms, tensor: int, columns: int = 0) -> None:
    """out[j] ← c_j z(key_j), (terms, n) float32: the terms side by side instead of added up."""
    _generate(out, terms.stream, terms.keys, tensor, columns)
    out.mul_(torch.from_numpy(terms.coefficients)[:, None])


def offsets(terms: Terms, sizes: Sequence[tuple[int, int]], device: torch.device) -> list[Tensor]:
    """c_j z(key_j) of vectors (ordinal, n), (terms, n) float32 each."""
    found = [torch.empty(len(terms), n, dtype=torch.float32) for _, n in sizes]
    for out, (tensor, _) in zip(found, sizes, strict=True):
        spread(out, terms, tensor)
    return found


def points(x: Tensor, out: Tensor, program: Program, tensor: int, columns: int = 0) -> None:
    """out[p] ← x + Σ c z over the terms of step p, (steps, n) float32: what `perturb` gives, all points at once."""
    p, stream = program, _stream(program.stream, program.keys, tensor, x.numel(), columns)
    common = (x.numpy(), out.numpy(), u32(tensor), stream, p.keys, p.coefficients, p.ends)
    _run(lambda lo, hi: kernels._points32(*common, lo, hi), x.numel(), len(p.keys))


def round_into(x: Tensor, source: Tensor, key: int, tensor: int) -> None:
    """x ← source (float32), rounded stochastically to the 16 bits of x."""
    bits, array, bfloat = _bits(x), source.numpy(), x.dtype == torch.bfloat16
    _run(lambda lo, hi: kernels._round16(array, bits, u32(tensor), u64(key), bfloat, lo, hi), x.numel(), 1)


def checksum(x: Tensor) -> int:
    """Σ mix(index, bits) mod 2⁶⁴ of one flat tensor."""
    bits = _bits(x)
    return sum(int(s) for s in _run(lambda lo, hi: kernels._checksum(bits, lo, hi), x.numel(), 1)) % (1 << 64)


def checksums(many: Sequence[Piece]) -> dict[int, int]:
    """`checksum` of all tensors of a list, by ordinal."""
    return {piece.ordinal: checksum(piece.source) for piece in many}


def squares(key: int, tensor: int, n: int, device: torch.device) -> int:
    """Σ ⌊z² · 2²⁴⌋ of a gaussian direction over one tensor of n coordinates."""
    return sum(int(s) for s in _run(lambda lo, hi: kernels._squares(n, u32(tensor), u64(key), lo, hi), n, 1))
