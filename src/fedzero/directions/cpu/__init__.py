"""CPU kernels (numba), as functions on tensors, on as many threads as torch may use. Numba is imported here alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedzero.directions.cpu import kernels
from fedzero.directions.cpu.kernels import CHUNK, u16, u32, u64
from fedzero.directions.spec import Domain
from fedzero.directions.terms import Piece, Program, Terms

PARALLEL_FROM = 1 << 18
"""Coordinates × terms from which the work is worth a second thread."""


@cache
def _pool(workers: int, pid: int) -> ThreadPoolExecutor:
    """One pool for each process: threads do not survive a fork."""
    return ThreadPoolExecutor(workers, thread_name_prefix="fedzero-kernel")


def _run(work: Callable[[int, int], Any], n: int, terms: int) -> list[Any]:
    """Run `work(first chunk, last chunk)` over n coordinates, on as many threads as torch may use."""
    chunks = -(-n // CHUNK)
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


def generate(out: Tensor, stream: Domain, key: int, tensor: int, groups: NDArray[np.int64] | None = None) -> None:
    """out ← z(key) of tensor `tensor` (float32); of given groups g, at least coordinates 128g … 128g + 127."""
    if groups is not None and stream is Domain.GAUSSIAN:  # making all signs costs less than choosing some
        kernels._generate_groups(out.numpy(), u32(tensor), u64(key), groups)
        return
    common = (out.numpy(), u32(tensor), stream is Domain.GAUSSIAN, u64(key))
    _run(lambda lo, hi: kernels._generate(*common, lo, hi), out.numel(), 1)


def _advance(x: Tensor, out: Tensor, slots: tuple[Tensor, ...], p: Program, tensor: int, stochastic: bool) -> None:
    a, b = (*(s.numpy() for s in slots), _NONE, _NONE)[:2]
    common = (a, b, u32(tensor), p.stream is Domain.GAUSSIAN, int(p.rule), p.keys, p.coefficients, p.ends, p.hypers)
    if x.dtype == torch.float32:
        array = out.copy_(x).numpy()
        _run(lambda lo, hi: kernels._advance32(array, *common, lo, hi), x.numel(), len(p.keys))
    else:
        work = (_bits(x), _bits(out), *common, p.rounding, stochastic, x.dtype == torch.bfloat16)
        _run(lambda lo, hi: kernels._advance16(*work, lo, hi), x.numel(), len(p.keys))


def advance(x: Tensor, slots: tuple[Tensor, ...], program: Program, tensor: int) -> None:
    """Run all steps of `program` on one flat tensor in place, `slots` (float32) with it, in one pass over memory."""
    _advance(x, x, slots, program, tensor, stochastic=True)


def perturb(x: Tensor, out: Tensor, terms: Terms, tensor: int) -> None:
    """out ← x + Σ c z, x untouched; 16-bit results are rounded to nearest."""
    _advance(x, out, (), Program.of([terms], [0]), tensor, stochastic=False)


def listing(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Tensors to be worked on together."""
    return tuple(pieces)


def advance_all(many: Sequence[Piece], program: Program) -> None:
    """`advance` on all tensors of a list."""
    for piece in many:
        advance(piece.source, piece.slots, program, piece.ordinal)


def perturb_all(many: Sequence[Piece], terms: Terms) -> None:
    """`perturb` on all tensors of a list."""
    program = Program.of([terms], [0])
    for piece in many:
        _advance(piece.source, piece.out, (), program, piece.ordinal, stochastic=False)


def rows(x: Tensor, ids: Tensor, out: Tensor, terms: Terms, tensor: int) -> None:
    """out[r] ← row ids[r] of x + Σ c z, x (V, H) untouched: what `perturb` gives, of these rows alone."""
    wide, bfloat = x.dtype == torch.float32, x.dtype == torch.bfloat16
    common = (wide, bfloat, u32(tensor), terms.stream is Domain.GAUSSIAN, terms.keys, terms.coefficients)
    kernels._rows(_bits(x), ids.numpy(), _bits(out), *common)


def spread(out: Tensor, terms: Terms, tensor: int) -> None:
    """out[j] ← c_j z(key_j), (terms, n) float32: the terms side by side instead of added up."""
    kernels._spread(out.numpy(), u32(tensor), terms.stream is Domain.GAUSSIAN, terms.keys, terms.coefficients)


def points(x: Tensor, out: Tensor, program: Program, tensor: int) -> None:
    """out[p] ← x + Σ c z over the terms of step p, (steps, n) float32: what `perturb` gives, all points at once."""
    p, gaussian = program, program.stream is Domain.GAUSSIAN
    common = (x.numpy(), out.numpy(), u32(tensor), gaussian, p.keys, p.coefficients, p.ends)
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
