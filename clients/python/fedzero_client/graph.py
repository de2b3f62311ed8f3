"""A graph by onnxruntime, which is imported here alone: the losses of points, on the rows of this device.

Inputs and output: docs/device-protocol.md, Graphs. A call takes G points and B rows; fewer are filled up with the last
ones, which are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero_client import core as cores
from fedzero_client.errors import ClientError
from fedzero_client.graph_file import INT64, Form, form_of
from fedzero_client.plan import Plan
from fedzero_client.stream import COLUMNS, F32, RANK1, direction, factor

Term = tuple[int, np.float32]
"""A key and a coefficient."""
AT_ONCE = 1 << 18
"""Logits that become losses together."""
View = Callable[[int, int, float, F32], None]


class Graph:
    """threads: 0, as many as onnxruntime likes."""

    def __init__(self, content: bytes, plan: Plan, threads: int = 0):
        self.plan, self.form = plan, form_of(content)
        self._shapes = dict(self.form.table())
        _expect_fits(self.form, plan)
        try:
            import onnxruntime
        except ImportError as error:
            raise ClientError(
                f"the run has a graph, and onnxruntime is not here (pip install 'fedzero-client[onnx]'): {error}"
            ) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, threads
        try:
            self._session: Any = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of onnxruntime, whose types are not public
            raise ClientError(f"the graph of the run is refused: {_line(error)}") from error

    @property
    def whole(self) -> bool:
        """Whether rows are whole numbers."""
        return self.form.type == INT64

    def values(
        self, x: Sequence[F32], points: Sequence[Sequence[Term]], rows: NDArray[np.generic], y: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The mean loss of rows (n, inputs) at every point, a list of at most one term."""
        form, view, found = self.form, self._viewing(x), list[NDArray[np.float64]]()
        chunks, kept = [self._filled(rows[at : at + form.rows]) for at in range(0, len(rows), form.rows)], list[F32]()
        for first in range(0, len(points), form.points):
            some = points[first : first + form.points]
            given = self._given(x, view, [*some, *[some[-1]] * (form.points - len(some))])
            logits = np.concatenate([self._logits({"x": chunk, **given}) for chunk in chunks], axis=1)
            kept.append(logits[: len(some), : len(rows)])
            if sum(each.size for each in kept) > AT_ONCE or first + form.points >= len(points):
                found.append(_losses(np.concatenate(kept), y).mean(axis=1))
                kept.clear()
        return np.concatenate(found)

    def _filled(self, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        """As many rows as a call takes."""
        lacking = self.form.rows - len(rows)
        return np.concatenate([rows, np.repeat(rows[-1:], lacking, axis=0)]) if lacking else rows

    def _logits(self, given: dict[str, NDArray[np.generic]]) -> F32:
        form = self.form
        try:
            (found,) = self._session.run(["logits"], given)
        except Exception as error:
            raise ClientError(f"the graph of the run failed: {_line(error)}") from error
        if found.shape != (form.points, form.rows, form.classes) or not np.isfinite(found).all():
            raise ClientError(f"the graph of the run gives logits of shape {found.shape}, or NaN or infinite ones")
        logits: F32 = found
        return logits

    def _viewing(self, x: Sequence[F32]) -> View:
        """Writes out ← x + c z of a tensor."""
        kind, shapes = self.plan.method.distribution, [tensor.shape for tensor in self.plan.tensors]
        if cores.core is not None and kind in cores.STREAMS:
            return cores.core.views(shapes, x, kind)

        def write(t: int, key: int, c: float, out: F32) -> None:
            np.add(x[t], np.float32(c) * direction(kind, key, t, shapes[t]), out=out)

        return write

    def _given(self, x: Sequence[F32], view: View, points: Sequence[Sequence[Term]]) -> dict[str, NDArray[np.generic]]:
        """All inputs but the rows, at so many points."""
        shapes = self._shapes
        given: dict[str, NDArray[np.generic]] = {}
        if "c" in shapes:
            given["c"] = np.array([point[0][1] if point else 0 for point in points], np.float32)
        for t, slot in enumerate(self.form.slots):
            if not slot.factored:
                given[f"p{t}"] = np.empty(shapes[f"p{t}"], np.float32)
                for point, out in zip(points, given[f"p{t}"].reshape(len(points), -1), strict=True):
                    if point:
                        view(t, point[0][0], float(point[0][1]), out)
                    else:
                        out[:] = x[t]
                continue
            given[f"w{t}"] = x[t].reshape(slot.shape)
            for name in (f"a{t}", f"b{t}"):
                given[name] = np.zeros(shapes[name], np.float32)
                for point, out in zip(points, given[name], strict=True):
                    _signs(point, t, name[0] == "b", out)
        return given


def _signs(point: Sequence[Term], ordinal: int, columns: bool, out: F32) -> None:
    """A factor of a point; the base has none, and its coefficient is 0."""
    if point and cores.core is not None:
        cores.core.signs(point[0][0], ordinal, out, columns)
    elif point:
        key = point[0][0]
        out[:] = factor(key & 0xFFFFFFFF if columns else key, COLUMNS if columns else RANK1, ordinal, out.size)


def _losses(logits: F32, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cross-entropy (G, n) of logits (G, n, classes), in float64."""
    exact = logits.astype(np.float64)
    top = exact.max(axis=2)
    right = exact[:, np.arange(len(labels)), labels]
    found: NDArray[np.float64] = top + np.log(np.exp(exact - top[:, :, None]).sum(axis=2)) - right
    return found


def _expect_fits(form: Form, plan: Plan) -> None:
    inputs, *_, classes = plan.task.widths
    shapes = [slot.shape for slot in form.slots]
    if (form.inputs, form.classes) != (inputs, classes) or shapes != [tensor.shape for tensor in plan.tensors]:
        raise ClientError("the graph of the run has other tensors, rows or labels than its plan")
    if any(slot.factored for slot in form.slots) and plan.method.distribution != RANK1:
        raise ClientError("the graph of the run has factors, and its directions have none")
    if form.type == INT64 and (plan.task.mean, plan.task.deviation) != ((0.0,), (1.0,)):
        raise ClientError("the graph of the run has rows of whole numbers, and its plan normalises them")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
