"""A graph by onnxruntime, and the objective of a server that has no other model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedzero.errors import FedzeroError
from fedzero.lines import printable
from fedzero.model.files import read
from fedzero.model.params import Params
from fedzero.oracles.contract import Metrics
from fedzero.oracles.criteria import accuracy
from fedzero.oracles.portable.checking import LARGEST, expect_portable

Array = NDArray[np.generic]


class Graph:
    """form, names: of the graph; sha256, size: of the file. onnxruntime reads it at the first call."""

    def __init__(self, path: Path):
        try:
            content = read(path, LARGEST)
        except OSError as error:
            raise FedzeroError(f"{path} cannot be read: {error.strerror}") from error
        self.path, self.size, self.sha256 = path, len(content), hashlib.sha256(content).digest()
        self.form, self.names = expect_portable(content, str(path))
        self._session: Any = None

    def logits(self, given: Mapping[str, Array]) -> NDArray[np.float32]:
        """(points, rows, classes) of inputs by name."""
        session = self._opened()
        try:
            (found,) = session.run(["logits"], dict(given))
        except Exception as error:  # of onnxruntime, whose types are not public
            raise FedzeroError(f"{self.path}: {_line(error)}") from error
        form = self.form
        if found.shape != (form.points, form.rows, form.classes):
            raise FedzeroError(f"{self.path}: the graph gives logits of shape {found.shape}")
        logits: NDArray[np.float32] = found
        return logits

    def at(self, params: Params, rows: NDArray[np.generic]) -> Tensor:
        """Logits (n, classes) of any number of rows at the parameters themselves."""
        form, found = self.form, list[NDArray[np.float32]]()
        given = dict(_at_base(self, params))
        for first in range(0, len(rows), form.rows):
            some = rows[first : first + form.rows]
            padded = np.concatenate([some, np.repeat(some[-1:], form.rows - len(some), axis=0)])
            found.append(self.logits({"x": padded, **given})[0, : len(some)])
        return torch.from_numpy(np.concatenate(found))

    def _opened(self) -> Any:
        if self._session is None:
            content = read(self.path, LARGEST)
            if hashlib.sha256(content).digest() != self.sha256:
                raise FedzeroError(f"{self.path} has changed")
            try:
                import onnxruntime
            except ImportError as error:
                raise FedzeroError(f"graphs need onnxruntime (pip install 'fedzero[onnx]'): {error}") from error
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 4
            try:
                self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            except Exception as error:
                raise FedzeroError(f"{self.path}: onnxruntime cannot read the graph: {_line(error)}") from error
        return self._session


def _line(error: Exception) -> str:
    return printable(str(error), 300)


def _at_base(graph: Graph, params: Params) -> Mapping[str, Array]:
    """The inputs beside the rows, with the base at all points."""
    given: dict[str, Array] = {}
    tensors = [tensor.cpu().numpy() for tensor in params.tensors.values()]
    for name, shape in graph.form.table()[1:]:
        if name[0] in "pw":
            given[name] = np.ascontiguousarray(np.broadcast_to(tensors[int(name[1:])], shape))
        else:
            given[name] = np.zeros(shape, np.float32)
    return given


class GraphObjective:
    """What a server measures on held-out rows x (n, inputs) with labels y (n,): mean cross-entropy and accuracy."""

    def __init__(self, graph: Graph, x: NDArray[np.generic], y: Tensor):
        self.graph, self.x, self.y = graph, x, y

    def evaluate(self, params: Params) -> Metrics:
        logits = self.graph.at(params, self.x)
        return Metrics(float(F.cross_entropy(logits.double(), self.y)), accuracy(logits, self.y))

    def losses(self, base: Any, points: Sequence[Any], batches: Sequence[Any], basis: Any = None) -> NoReturn:
        raise FedzeroError("the rows of a graph's task are on devices")

    def gradient(self, base: Any, batch: Any) -> NoReturn:
        raise FedzeroError("devices have no gradients: use a method that needs function values alone")
