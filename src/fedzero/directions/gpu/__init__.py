"""GPU kernels (Triton), as functions on tensors. Triton is imported in this package alone.

With TRITON_INTERPRET=1 the same kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from fedzero.directions.gpu import kernels, matrices
from fedzero.directions.gpu.launch import start
from fedzero.directions.gpu.layers import add_terms as add_terms
from fedzero.directions.gpu.layers import layer_norm as layer_norm
from fedzero.directions.gpu.lists import (
    BLOCKS,
    Matrices,
    Plan,
    addresses,
    aligned,
    matrices_of,
    owned,
    plan_of,
    row_layout,
)
from fedzero.directions.gpu.primitives import _BFLOAT16, _FLOAT16, _FLOAT32
from fedzero.directions.gpu.tables import Tables, TermsBuffer, tables_of
from fedzero.directions.gpu.vocabulary import log_sum_exp as log_sum_exp
from fedzero.directions.spec import Domain
from fedzero.directions.terms import Piece, Program, Rule, Terms, stream_at

LANES = 512
"""Lanes of a tile: 8 × 512 coordinates, a chunk of signs."""
WARPS = 4
"""128 threads, each with 4 neighbouring lanes in all 8 planes: 32 numbers in registers, loads of 8 or 16 bytes."""
SIGN_WARPS = 2
"""Signs need few further registers: 64 numbers a thread, and half the threads."""
GROUPS, AHEAD, MATRIX_WARPS = 2, 4, 2
"""Of a tile of a matrix: groups of rows (of which a thread of two warps keeps two each), terms whose words are read
ahead, warps."""
SPAN = 512
"""Columns of a row that one program makes where single rows are wanted."""
SUM_PROGRAMS = 1 << 14
"""Programs that share a checksum or a sum of squares, each with many tiles: few additions to one address."""

KINDS = {torch.float32: _FLOAT32.value, torch.bfloat16: _BFLOAT16.value, torch.float16: _FLOAT16.value}


def _launch(kernel: Any, n: int, warps: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
    """Run `kernel` over n coordinates, on the device of its first argument: whole tiles, then a rest with masks."""
    whole, rest = divmod(n, 8 * LANES)
    with torch.cuda.device_of(arguments[0]):
        if whole:
            start(kernel, whole, warps, (n, 0, *arguments), (*constants, False, LANES))
        if rest:
            start(kernel, 1, warps, (n, whole, *arguments), (*constants, True, LANES))


def _total(kernel: Any, n: int, device: torch.device, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> int:
    """What the programs of `kernel` add up over n coordinates, as a signed 64-bit integer."""
    whole, rest = divmod(n, 8 * LANES)
    total = torch.zeros(1, dtype=torch.int64, device=device)
    with torch.cuda.device_of(total):
        if whole:
            programs = min(whole, SUM_PROGRAMS)
            start(kernel, programs, WARPS, (n, 0, whole, total, *arguments), (*constants, False, LANES))
        if rest:
            start(kernel, 1, WARPS, (n, whole, whole + 1, total, *arguments), (*constants, True, LANES))
    return int(total.item())


def _warps(stream: Domain, rule: Rule = Rule.SGD) -> int:
    return SIGN_WARPS if stream is Domain.RADEMACHER and not rule.slots else WARPS


def _integers(x: Tensor) -> Tensor:
    """16-bit numbers as int16: rounding is done on bits."""
    return x if x.dtype == torch.float32 else x.view(torch.int16)


def _signed(key: int) -> int:
    return key - (1 << 64) if key >> 63 else key


def generate(
    out: Tensor, stream: Domain, key: int, tensor: int, groups: NDArray[np.int64] | None = None, columns: int = 0
) -> None:
    """out ← z(key) of tensor `tensor` (float32); all groups, since choosing some would take longer than making them."""
    known = stream_at(stream, columns)
    if known is Domain.RANK1:
        spread(out[None], Terms.of([key], [1.0], stream), tensor, columns)
    else:
        _launch(kernels._generate, out.numel(), _warps(known), (out, tensor, _signed(key)), (int(known),))


def advance(x: Tensor, slots: tuple[Tensor, ...], program: Program, tensor: int, columns: int = 0) -> None:
    """Run all steps of `program` on one flat tensor in place, `slots` (float32) with it, in one pass over memory."""
    if program.stream is Domain.RANK1:
        advance_all(listing([Piece(x, x, slots, tensor, columns)]), program)
        return
    bits, tables, rule = _integers(x), tables_of(program, x.device), program.rule
    arguments = (bits, bits, *(*slots, bits, bits)[:2], tensor, *tables)
    one = tables.terms == tables.steps == 1
    constants = (int(program.stream), int(rule), rule.slots, KINDS[x.dtype], True, one)
    _launch(kernels._advance, x.numel(), _warps(program.stream, rule), arguments, constants)


def perturb(x: Tensor, out: Tensor, terms: Terms | TermsBuffer, tensor: int, columns: int = 0) -> None:
    """out ← x + Σ c z, x untouched; 16-bit results are rounded to nearest."""
    if terms.stream is Domain.RANK1:
        perturb_all(listing([Piece(x, out, (), tensor, columns)]), terms)
        return
    _perturb(x, out, terms, tensor, terms.stream)


def _perturb(x: Tensor, out: Tensor, terms: Terms | TermsBuffer, tensor: int, stream: Domain) -> None:
    bits, tables = _integers(x), tables_of(terms, x.device)
    arguments = (bits, _integers(out), bits, bits, tensor, *tables)
    constants = (int(stream), int(Rule.SGD), 0, KINDS[x.dtype], False, tables.terms == 1)
    _launch(kernels._advance, x.numel(), _warps(stream), arguments, constants)


@dataclass(frozen=True, eq=False)
class Listing:
    """Tensors made ready for one launch a type: rows and owners of tiles for `_advance_list`; the rest one by one."""

    device: torch.device
    lists: tuple[tuple[torch.dtype, Tensor, Tensor], ...]
    together: tuple[Piece, ...]
    """those in the lists, kept because their addresses are"""
    apart: tuple[Piece, ...]

    @cached_property
    def by_rank(self) -> tuple[tuple[Matrices, ...], Listing]:
        """Matrices and vectors apart, as directions of rank one need them."""
        pieces = (*self.together, *self.apart)
        vectors = [piece for piece in pieces if not piece.columns]
        rest = listing(vectors) if vectors else Listing(self.device, (), (), ())
        return matrices_of([piece for piece in pieces if piece.columns], LANES), rest

    def of_stream(self, stream: Domain) -> tuple[tuple[Matrices, ...], Listing, Domain]:
        """Matrices with factors, all other tensors, and the stream of those."""
        return ((), self, stream) if stream is not Domain.RANK1 else (*self.by_rank, Domain.RADEMACHER)


def listing(pieces: Sequence[Piece]) -> Listing:
    """Tensors to be worked on together."""
    device = pieces[0].source.device
    pieces = [piece for piece in pieces if piece.source.numel()]
    together = tuple(piece for piece in pieces if aligned(piece))
    lists: list[tuple[torch.dtype, Tensor, Tensor]] = []
    for dtype in dict.fromkeys(piece.source.dtype for piece in together):
        some = [piece for piece in together if piece.source.dtype == dtype]
        tiles = [triton.cdiv(piece.source.numel(), 8 * LANES) for piece in some]
        rows = [
            (*addresses(piece), piece.source.numel(), piece.ordinal, start)
            for piece, start in zip(some, (0, *accumulate(tiles)), strict=False)
        ]
        lists.append((dtype, *owned(rows, tiles, device)))
    return Listing(device, tuple(lists), together, tuple(piece for piece in pieces if not aligned(piece)))


def _run_lists(
    many: Listing, work: Program | Terms | TermsBuffer, stream: Domain, rule: Rule, stochastic: bool
) -> None:
    tables = tables_of(work, many.device)
    one = tables.terms == tables.steps == 1
    for dtype, table, owners in many.lists:
        with torch.cuda.device_of(table):
            constants = (int(stream), int(rule), rule.slots, KINDS[dtype], stochastic, one, LANES)
            start(kernels._advance_list, len(owners), _warps(stream, rule), (table, owners, *tables), constants)


def _make_factors(plan: Plan, room: tuple[Tensor, Tensor], tables: Tables) -> None:
    terms = tables.terms
    made = (plan.jobs, plan.jobs_of_rows, len(plan.jobs), *room, terms, tables.integers, terms, tables.steps)
    if programs := len(plan.jobs) * terms:
        start(matrices._factor_tables, programs, 1, made, (BLOCKS,))


def _run_matrices(
    many: Matrices, work: Program | Terms | TermsBuffer, rule: Rule, stochastic: bool, device: torch.device
) -> None:
    tables = tables_of(work, device)
    with torch.cuda.device_of(many.table):
        factors = many.factors(tables.terms, keep=isinstance(work, TermsBuffer))
        _make_factors(many.plan, factors, tables)
        arguments = (many.table, many.owners, *factors, tables.terms, *tables)
        constants = (int(rule), rule.slots, KINDS[many.dtype], stochastic)
        if many.aligned:
            shape = (1 if rule.slots else GROUPS, LANES, AHEAD)
            start(matrices._advance_aligned, len(many.owners), MATRIX_WARPS, arguments, (*constants, *shape))
        else:
            start(matrices._advance_general, len(many.owners), WARPS, arguments, (*constants, LANES))


def advance_all(many: Listing, program: Program) -> None:
    """`advance` on all tensors of a list, in one launch for each type."""
    factored, rest, stream = many.of_stream(program.stream)
    for some in factored:
        plain = some.dtype == torch.float32 and program.rule is Rule.SGD
        for part in program.parts(some.most_terms, within_steps=plain):
            _run_matrices(some, part, part.rule, True, many.device)
    _run_lists(rest, program, stream, program.rule, True)
    for piece in rest.apart:
        advance(piece.source, piece.slots, replace(program, stream=stream), piece.ordinal)


def perturb_all(many: Listing, terms: Terms | TermsBuffer) -> None:
    """`perturb` on all tensors of a list, in one launch for each type."""
    factored, rest, stream = many.of_stream(terms.stream)
    for some in factored:
        _run_matrices(some, terms, Rule.SGD, False, many.device)
    _run_lists(rest, terms, stream, Rule.SGD, False)
    for piece in rest.apart:
        _perturb(piece.source, piece.out, terms, piece.ordinal, stream)


def rows(x: Tensor, ids: Tensor, out: Tensor, terms: Terms | TermsBuffer, tensor: int) -> None:
    """out[r] ← row ids[r] of x + Σ c z, x (V, H) untouched: what `perturb` gives, of these rows alone."""
    width, tables = x.shape[1], tables_of(terms, x.device)
    programs = ids.numel() * triton.cdiv(width, SPAN)
    if programs:
        with torch.cuda.device_of(out):
            arguments = (width, _integers(x), ids, _integers(out), tensor, tables.integers, tables.floats, tables.terms)
            start(kernels._rows, programs, WARPS, arguments, (int(terms.stream), KINDS[x.dtype], SPAN))


def spread(out: Tensor, terms: Terms, tensor: int, columns: int = 0) -> None:
    """out[j] ← c_j z(key_j), (terms, n) float32: the terms side by side instead of added up, in one launch."""
    n, stream = out.shape[1], stream_at(terms.stream, columns)
    if stream is Domain.RANK1:
        ((a, b),) = factors(terms, [(tensor, n // columns, columns)], out.device)
        scaled = tables_of(terms, out.device).floats[: len(terms), None] * a
        torch.mul(scaled[:, :, None], b[:, None, :], out=out.view(len(terms), n // columns, columns))
        return
    _spread(out, terms, ((tensor, n),), stream)


def offsets(terms: Terms | TermsBuffer, sizes: Sequence[tuple[int, int]], device: torch.device) -> list[Tensor]:
    """c_j z(key_j) of vectors (ordinal, n), (terms, n) float32 each, parts of one table made in one launch."""
    count, ends = tables_of(terms, device).terms, list(accumulate(n for _, n in sizes))
    out = torch.empty(count, ends[-1] if ends else 0, dtype=torch.float32, device=device)
    _spread(out, terms, tuple(sizes), stream_at(terms.stream, 0))
    return [out[:, end - n : end] for end, (_, n) in zip(ends, sizes, strict=True)]


def _spread(out: Tensor, terms: Terms | TermsBuffer, sizes: tuple[tuple[int, int], ...], stream: Domain) -> None:
    """Of tensors (ordinal, n) that lie side by side in the rows of `out`."""
    tables = tables_of(terms, out.device)
    pieces, owners = row_layout(sizes, 8 * LANES, out.device)
    if programs := tables.terms * len(owners):
        with torch.cuda.device_of(out):
            arguments = (pieces, owners, len(owners), out.shape[1], out, tables.integers, tables.floats)
            start(kernels._spread, programs, _warps(stream), arguments, (int(stream), LANES))


def factors(
    terms: Terms | TermsBuffer, shapes: Sequence[tuple[int, int, int]], device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """a_j (terms, rows) and b_j (terms, columns), ±1, of matrices (ordinal, rows, columns); int8, parts of two
    tables."""
    tables, plan = tables_of(terms, device), plan_of(tuple(shapes), device)
    room = plan.room(tables.terms)
    with torch.cuda.device_of(plan.jobs):
        _make_factors(plan, room, tables)
        a, b = (_spread_signs(words, tables.terms, across) for words, across in zip(room, (1, 8), strict=True))
    return [
        (a[:, 32 * i : 32 * i + height], b[:, 256 * k : 256 * k + width])
        for (_, height, width), (i, k) in zip(shapes, plan.places, strict=True)
    ]


def _spread_signs(words: Tensor, terms: int, across: int) -> Tensor:
    """The signs in a table of words, `across` of a term side by side, as numbers (terms, n)."""
    n = 32 * words.numel() // max(1, terms)
    out = torch.empty(terms, n, dtype=torch.int8, device=words.device)
    if programs := terms * triton.cdiv(n, 8 * LANES):
        start(matrices._spread_signs, programs, WARPS, (out, words, n, terms), (across, 8 * LANES))
    return out


def points(x: Tensor, out: Tensor, program: Program, tensor: int, columns: int = 0) -> None:
    """out[p] ← x + Σ c z over the terms of step p, (steps, n) float32: what `perturb` gives, in one launch where no
    step has several terms."""
    lengths = np.diff(program.ends, prepend=0)
    if lengths.max() > 1:
        for row, terms in zip(out, program.steps(), strict=True):
            perturb(x, row, terms, tensor, columns)
        return
    out.copy_(x)
    moved = torch.empty(len(program.keys), out.shape[1], dtype=torch.float32, device=out.device)
    spread(moved, Terms(program.keys, program.coefficients, program.stream), tensor, columns)
    out[np.flatnonzero(lengths)] += moved


def round_into(x: Tensor, source: Tensor, key: int, tensor: int) -> None:
    """x ← source (float32), rounded stochastically to the 16 bits of x."""
    _launch(kernels._narrow, x.numel(), WARPS, (source, _integers(x), tensor, _signed(key)), (KINDS[x.dtype],))


def checksum(x: Tensor) -> int:
    """Σ mix(index, bits) mod 2⁶⁴ of one flat tensor."""
    bits = x.view(torch.int32) if x.element_size() == 4 else x.view(torch.int16)
    return _total(kernels._checksum, x.numel(), x.device, (bits,), (8 * x.element_size(),)) % (1 << 64)


def checksums(many: Listing) -> dict[int, int]:
    """`checksum` of all tensors of a list, by ordinal, in one launch for each type and one wait."""
    found: dict[int, int] = {}
    for dtype, table, owners in many.lists:
        totals = torch.zeros(len(table), dtype=torch.int64, device=many.device)
        with torch.cuda.device_of(table):
            start(kernels._checksum_list, len(owners), WARPS, (table, owners, totals), (KINDS[dtype], LANES))
        ordinals = [piece.ordinal for piece in many.together if piece.source.dtype == dtype]
        found |= {ordinal: total % (1 << 64) for ordinal, total in zip(ordinals, totals.tolist(), strict=True)}
    return found | {piece.ordinal: checksum(piece.source) for piece in many.apart}


def squares(key: int, tensor: int, n: int, device: torch.device) -> int:
    """Σ ⌊z² · 2²⁴⌋ of a gaussian direction over one tensor of n coordinates."""
    return _total(kernels._squares, n, device, (tensor, _signed(key)), ())
