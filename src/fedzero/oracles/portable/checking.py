"""Which graphs are refused: whatever is not plain arithmetic on the inputs and the weights in the file.

A graph may come from somebody else. The rule is a list of what is allowed: operators of ONNX's own domain without
control flow, randomness, or sizes that are computed; weights in the file itself; inputs and an output of fixed shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedzero.errors import FedzeroError
from fedzero.lines import printable
from fedzero.oracles.portable.format import FLOAT32, INT64, Form

NAMES = "fedzero.names"
"""The key of the metadata with the names of the trained tensors, a line each."""
PLAIN = """
Abs Add And ArgMax AveragePool BatchNormalization Cast Ceil Clip Concat Constant Conv Cos Div Dropout Einsum Elu Equal
Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Greater GreaterOrEqual
HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log
LogSoftmax MatMul Max MaxPool Min Mul Neg Not Or PRelu Pow RMSNormalization Reciprocal ReduceMax ReduceMean ReduceMin
ReduceSum ReduceSumSquare Relu Reshape Shape Sigmoid Sign Sin Slice Softmax Softplus Split Sqrt Squeeze Sub Sum Tanh
Transpose Trilu Unsqueeze Where
"""
OPERATORS = frozenset(PLAIN.split())
MOST_NODES = 20_000
LARGEST = 1 << 31
"""Bytes of a file, which is what protobuf allows."""
NOT_IN_GRAPH = 1
"""Of TensorProto.data_location: another file has the numbers."""


def expect_portable(content: bytes, name: str) -> tuple[Form, tuple[str, ...]]:
    """The form of a graph and the names of its tensors; a sentence if it is refused."""
    model = _parsed(content, name)
    for holds, why in _odd(model):
        if holds:
            raise FedzeroError(f"{name}: {why}")
    graph = model.graph
    inputs = [(value.name, _shape(value)) for value in graph.input]
    types = [value.type.tensor_type.elem_type for value in graph.input]
    form = Form.read(inputs, types[0] if types else 0, _shape(graph.output[0]))
    right = form is not None and types[0] in (FLOAT32, INT64) and set(types[1:]) == {FLOAT32}
    if form is None or not right or graph.output[0].type.tensor_type.elem_type != FLOAT32:
        raise FedzeroError(f"{name}: inputs and output are not those of docs/device-protocol.md, Graphs")
    names: list[str] = next((entry.value.split("\n") for entry in model.metadata_props if entry.key == NAMES), [])
    if len(names) != len(form.slots) or len(set(names)) != len(names):
        names = [f"tensor{t}" for t in range(len(form.slots))]
    return form, tuple(printable(each, 200) for each in names)


def _parsed(content: bytes, name: str) -> Any:
    try:
        import onnx
    except ImportError as error:
        raise FedzeroError(f"graphs need onnx (pip install 'fedzero[onnx]'): {error}") from error
    if len(content) > LARGEST:
        raise FedzeroError(f"{name}: {len(content):,} bytes, where a graph has {LARGEST:,} at most")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # of protobuf, whose types depend on its version
        raise FedzeroError(f"{name} is no ONNX file") from error
    return model


def _odd(model: Any) -> Sequence[tuple[bool, str]]:
    graph = model.graph
    unknown = sorted({printable(n.op_type, 40) for n in graph.node if n.op_type not in OPERATORS})
    domains = {o.domain for o in model.opset_import} | {n.domain for n in graph.node}
    attributes = [each for node in graph.node for each in node.attribute]
    tensors = [*graph.initializer, *(each.t for each in attributes if each.HasField("t"))]
    odd = [t for t in tensors if t.data_location == NOT_IN_GRAPH or len(t.external_data)]
    owns = {value.name for value in graph.input} & {t.name for t in graph.initializer}
    return (
        (not graph.node, "it has no graph"),
        (bool(domains - {"", "ai.onnx"}), "operators of another domain than ONNX's own"),
        (bool(model.functions), "functions of its own"),
        (bool(model.training_info), "instructions for training"),
        (bool(unknown), f"the operator {unknown[0] if unknown else ''}, which graphs of devices do not have"),
        (any(a.HasField("g") or len(a.graphs) for a in attributes), "a graph within an operator"),
        (bool(odd), "weights in another file"),
        (bool(graph.sparse_initializer) or any(a.HasField("sparse_tensor") for a in attributes), "sparse weights"),
        (bool(owns), "an input with a value of its own"),
        (len(graph.node) > MOST_NODES, f"more than {MOST_NODES:,} operators"),
        (len(graph.output) != 1 or graph.output[0].name != "logits", "another output than logits"),
        (any(min(_shape(v), default=0) < 1 for v in (*graph.input, *graph.output)), "a shape that is not fixed"),
    )


def _shape(value: Any) -> tuple[int, ...]:
    """0 stands for a size that is not given."""
    found = tuple(d.dim_value if d.HasField("dim_value") else 0 for d in value.type.tensor_type.shape.dim)
    return found if math.prod(found) < 1 << 40 else (0,)
