"""The core in C, where it is: folds, checksums, batches, and the losses of a perceptron at many points.

It has the same bits as the NumPy beside it, but for the last ones of losses. NumPy stands in where there is no compiled
core (`core is None`), and does what the core does not have; tests hold each against the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
STREAMS = (2, 4)
"""Rademacher and rank one."""
LINEAR, RELU = 0, 2
ROWS_AT_ONCE = 32
Term = tuple[int, np.float32]


class Core:
    """module: with `ffi` and `lib`, as cffi makes it."""

    def __init__(self, module: Any):
        self.ffi, self.lib = module.ffi, module.lib

    def _tensors(self, shapes: Sequence[tuple[int, ...]], x: Sequence[F32], M: Sequence[F32] = ()) -> tuple[Any, Any]:
        """An array of fz_tensor, and what must live as long."""
        array, kept = self.ffi.new("fz_tensor[]", len(x)), list[Any]()
        for i, (shape, values) in enumerate(zip(shapes, x, strict=True)):
            sizes = self.ffi.new("uint32_t[]", shape)
            kept.append(sizes)
            array[i].shape, array[i].axes, array[i].values = sizes, len(shape), self._floats(values)
            array[i].momentum = self._floats(M[i]) if M else self.ffi.NULL
        return array, kept

    def _floats(self, values: F32) -> Any:
        assert values.dtype == np.float32 and values.flags.c_contiguous
        return self.ffi.cast("float *", values.ctypes.data)

    def _terms(self, terms: Sequence[Term]) -> Any:
        found = self.ffi.new("fz_term[]", max(1, len(terms)))
        for i, (key, c) in enumerate(terms):
            found[i].key, found[i].coefficient = key, float(c)
        return found

    def advance(
        self,
        shapes: Sequence[tuple[int, ...]],
        x: Sequence[F32],
        M: Sequence[F32],
        stream: int,
        terms: Sequence[Term],
        hypers: tuple[float, float, float] | None = None,
    ) -> bool:
        """x ← x + Σ c z in place; with (η, β, β′) a step of momentum. False, and nothing is changed, where a number is
        NaN or infinite."""
        tensors, _kept = self._tensors(shapes, x, M)
        step, table = self.ffi.new("fz_step *"), self._terms(terms)
        step.terms, step.count = table, len(terms)
        step.rate, step.beta, step.rest = hypers or (0.0, 0.0, 0.0)
        rule = 0 if hypers is None else 1
        return not self.lib.fz_advance(tensors, len(x), stream, rule, step, 1)

    def views(
        self, shapes: Sequence[tuple[int, ...]], x: Sequence[F32], stream: int
    ) -> Callable[[int, int, float, F32], None]:
        """Writes out ← x + c z of a tensor, by its ordinal; x must not change meanwhile."""
        tensors, kept = self._tensors(shapes, x)
        view, term, cast = self.lib.fz_view, self.ffi.new("fz_term *"), self.ffi.cast

        def write(ordinal: int, key: int, c: float, out: F32, _kept: Any = kept) -> None:
            term.key, term.coefficient = key, c
            view(tensors + ordinal, ordinal, stream, term[0], cast("float *", out.ctypes.data))

        return write

    def signs(self, key: int, ordinal: int, out: F32, columns: bool) -> None:
        """A factor of rank one: of rows, or of columns."""
        made = self.lib.fz_column_signs if columns else self.lib.fz_row_signs
        made(key, ordinal, out.size, self._floats(out))

    def checksum(self, x: F32) -> int:
        return int(self.lib.fz_checksum(self._floats(x), x.size))

    def sample(self, key: int, count: int, size: int) -> NDArray[np.int64]:
        out = np.zeros(size, np.uint32)
        self.lib.fz_sample(key, count, size, self.ffi.cast("uint32_t *", out.ctypes.data))
        return out.astype(np.int64)

    def losses(
        self,
        shapes: Sequence[tuple[int, ...]],
        x: Sequence[F32],
        stream: int,
        points: Sequence[Sequence[Term]],
        rows: F32,
        labels: NDArray[np.int64],
    ) -> NDArray[np.float64] | None:
        """The mean loss of a perceptron at points of at most one term; None if the core cannot."""
        network, _layers = self._network(shapes, rows.shape[1])
        tensors, _kept = self._tensors(shapes, x)
        size = self.lib.fz_network_size(network, tensors, len(x), stream, len(points))
        if not size or shapes[-1][0] > 256:
            return None
        inputs, classes = np.ascontiguousarray(rows, np.float32), labels.astype(np.uint8)
        batch, at = self.ffi.new("fz_batch *"), self.ffi.new("fz_points *")
        batch.inputs, batch.rows = self._floats(inputs), len(labels)
        batch.labels = self.ffi.cast("uint8_t *", classes.ctypes.data)
        terms = self._terms([point[0] if point else (0, np.float32(0)) for point in points])
        at.tensors, at.tensor_count, at.stream, at.terms, at.count = tensors, len(x), stream, terms, len(points)
        memory, out = np.zeros(size + 16, np.uint8), np.zeros(len(points))
        start = memory.ctypes.data + -memory.ctypes.data % 16
        failed = self.lib.fz_network_values(
            network, batch, at, self.ffi.cast("void *", start), size, self.ffi.cast("double *", out.ctypes.data)
        )
        return None if failed else out

    def _network(self, shapes: Sequence[tuple[int, ...]], inputs: int) -> tuple[Any, Any]:
        kinds = [(LINEAR, shape[0]) for shape in shapes[::2]]
        table = [each for kind in kinds for each in (kind, (RELU, 0))][:-1]
        layers = self.ffi.new("fz_layer[]", [(kind, outputs, 0, 0) for kind, outputs in table])
        network = self.ffi.new("fz_network *", (1, 1, inputs, layers, len(table), ROWS_AT_ONCE))
        return network, layers


def _found() -> Core | None:
    try:
        from fedzero_client import _core
    except ImportError:
        return None
    return Core(_core)


core = _found()
"""None: there is no compiled core, and NumPy does its work."""
