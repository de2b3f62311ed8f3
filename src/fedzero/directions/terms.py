"""Terms: an update as coefficients and keys of directions, `Σ_j c_j z(key_j)`; and steps made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedzero.directions.spec import Domain

Distribution = Literal["gaussian", "rademacher", "rank1", "sphere", "unit-sphere"]
"""rank1: a bᵀ of signs for every matrix; sphere: of radius √d, so that directions are as long as the others';
unit-sphere: of radius 1, with the factor d"""
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

HYPERS = 6
"""Numbers a rule may need in each step; unused ones are zero."""


@dataclass(frozen=True)
class LowRank:
    """Directions of rank r: z(key) = (1/√r) Σ_k z₁(key + k), k = 0 … r − 1, z₁ of rank one. A term is then r terms."""

    rank: int

    def expanded(self, keys: U64, coefficients: F32) -> tuple[U64, F32]:
        offsets = np.arange(self.rank, dtype=np.uint64)
        share = np.float32(1 / math.sqrt(self.rank))
        return (keys[:, None] + offsets).reshape(-1), np.repeat(coefficients * share, self.rank)


Stream = Domain | LowRank

_STREAMS: dict[Distribution, Domain] = {
    "gaussian": Domain.GAUSSIAN,
    "rademacher": Domain.RADEMACHER,
    "rank1": Domain.RANK1,
    # a gaussian direction whose scalar carries √d/‖z‖
    "sphere": Domain.GAUSSIAN,
    "unit-sphere": Domain.GAUSSIAN,
}


def stream_of(distribution: Distribution, rank: int = 1) -> Stream:
    return _STREAMS[distribution] if rank == 1 else LowRank(rank)


@dataclass(frozen=True, eq=False)
class Terms:
    """`Σ_j coefficients[j] · z(keys[j])`; the order matters to the last bit. Hashed by identity, as key of caches."""

    keys: U64
    coefficients: F32
    stream: Domain

    @staticmethod
    def of(keys: Iterable[int], coefficients: Iterable[float], stream: Stream) -> Terms:
        keys, coefficients = np.fromiter(keys, np.uint64), np.fromiter(coefficients, np.float32)
        if len(keys) != len(coefficients):
            raise ValueError(f"{len(keys)} keys with {len(coefficients)} coefficients")
        if isinstance(stream, LowRank):
            return Terms(*stream.expanded(keys, coefficients), Domain.RANK1)
        return Terms(keys, coefficients, stream)

    def __len__(self) -> int:
        return len(self.keys)


class Rule(IntEnum):
    """What a step does with G = Σ c z. Hyper-parameters are float32, `h` below; every operation is rounded by itself.

    SGD       x ← x + c_1 z_1 + c_2 z_2 + …                  (slots: none)
    MOMENTUM  M ← β M + (1−β) G;  x ← x − η M                (slots: M;     h = η, β, 1−β)
    ADAM      m ← β1 m + (1−β1) G;  v ← β2 v + (1−β2) G²
              x ← x − η̂ m / (√v + ε̂)                         (slots: m, v;  h = η̂, β1, 1−β1, β2, 1−β2, ε̂)
    SIGN      x ← x − η sign(G)                              (slots: none;  h = η)
    """

    SGD = 0
    MOMENTUM = 1
    ADAM = 2
    SIGN = 3

    @property
    def slots(self) -> int:
        return {Rule.MOMENTUM: 1, Rule.ADAM: 2}.get(self, 0)


@dataclass(frozen=True, eq=False)
class Program:
    """Consecutive steps, run over memory in one pass: step s takes terms `ends[s-1] … ends[s]`.

    Parameters of 16 bits are rounded once at the end of each step, with the step's `rounding` key.
    """

    keys: U64
    coefficients: F32
    ends: NDArray[np.int64]
    rounding: U64
    hypers: F32  # (steps, HYPERS)
    stream: Domain
    rule: Rule

    @staticmethod
    def of(
        steps: Sequence[Terms],
        rounding: Sequence[int],
        rule: Rule = Rule.SGD,
        hypers: Sequence[Sequence[float]] | None = None,
    ) -> Program:
        table = np.zeros((len(steps), HYPERS), np.float32)
        if hypers is not None:
            for row, values in zip(table, hypers, strict=True):
                row[: len(values)] = values
        one = steps[0] if len(steps) == 1 else None  # a view has one step, and models are viewed often
        return Program(
            np.concatenate([t.keys for t in steps]) if one is None else one.keys,
            np.concatenate([t.coefficients for t in steps]) if one is None else one.coefficients,
            np.array(list(accumulate(map(len, steps))), np.int64),
            np.array(rounding, np.uint64),
            table,
            steps[0].stream,
            rule,
        )

    def __len__(self) -> int:
        return len(self.ends)

    def steps(self) -> Iterator[Terms]:
        """The terms of each step."""
        for first, end in pairwise([0, *self.ends]):
            yield Terms(self.keys[first:end], self.coefficients[first:end], self.stream)

    def parts(self, most: int, within_steps: bool) -> Sequence[Program]:
        """The program in parts that run one after the other, of `most` terms each where that can be.

        Cut between steps; `within_steps` says that steps may be cut as well: plain ones on float32, which are rounded
        after every term anyway.
        """
        total = len(self.keys)
        if total <= most:
            return (self,)
        if within_steps:
            cuts = [*range(0, total, most), total]
            pieces = (Terms(self.keys[a:b], self.coefficients[a:b], self.stream) for a, b in pairwise(cuts))
            return [Program.of([piece], [0]) for piece in pieces]
        parts, first, begin = [], 0, 0
        for step in range(1, len(self) + 1):
            if step == len(self) or self.ends[step] - begin > most:
                end, part = int(self.ends[step - 1]), slice(first, step)
                parts.append(
                    replace(
                        self,
                        keys=self.keys[begin:end],
                        coefficients=self.coefficients[begin:end],
                        ends=self.ends[part] - begin,
                        rounding=self.rounding[part],
                        hypers=self.hypers[part],
                    )
                )
                first, begin = step, end
        return parts


def stream_at(stream: Domain, columns: int) -> Domain:
    """Of a tensor with so many columns: a vector (0) has no rank, so its directions of rank one are signs."""
    return Domain.RADEMACHER if stream is Domain.RANK1 and not columns else stream


class Piece(NamedTuple):
    """One flat tensor of a model: where it is read, where the result goes, the slots of the rule, its ordinal, and its
    columns if it is a matrix (first axis × rest), else 0."""

    source: Tensor
    out: Tensor
    slots: tuple[Tensor, ...]
    ordinal: int
    columns: int = 0
