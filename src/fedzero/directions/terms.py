"""Terms: an update as coefficients and keys of directions, `Σ_j c_j z(key_j)`; and steps made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedzero.directions.spec import Domain

Distribution = Literal["gaussian", "rademacher", "sphere", "unit-sphere"]
"""sphere: of radius √d, so that directions are as long as the others'; unit-sphere: of radius 1, with the factor d"""
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

HYPERS = 6
"""Numbers a rule may need in each step; unused ones are zero."""


def stream_of(distribution: Distribution) -> Domain:
    """A direction on the sphere is a gaussian one whose scalar carries √d/‖z‖: the stream is the gaussian's."""
    return Domain.RADEMACHER if distribution == "rademacher" else Domain.GAUSSIAN


@dataclass(frozen=True, eq=False)
class Terms:
    """`Σ_j coefficients[j] · z(keys[j])`; the order matters to the last bit. Hashed by identity, as key of caches."""

    keys: U64
    coefficients: F32
    stream: Domain

    @staticmethod
    def of(keys: Iterable[int], coefficients: Iterable[float], stream: Domain) -> Terms:
        keys, coefficients = np.fromiter(keys, np.uint64), np.fromiter(coefficients, np.float32)
        if len(keys) != len(coefficients):
            raise ValueError(f"{len(keys)} keys with {len(coefficients)} coefficients")
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


class Piece(NamedTuple):
    """One flat tensor of a model: where it is read, where the result goes, the slots of the rule, and its ordinal."""

    source: Tensor
    out: Tensor
    slots: tuple[Tensor, ...]
    ordinal: int
