"""Which graphs a device takes: the bytes of an ONNX file, read without onnx, before onnxruntime sees them.

What is allowed is listed (docs/device-protocol.md, Graphs); everything else is refused by name: fields of the format,
operators, sizes that are not fixed, weights in another file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedzero_client.errors import ClientError

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
MOST_NUMBERS = 1 << 28
"""Of an input or the output."""
FLOAT32, INT64 = 1, 7

ALLOWED = {
    "model": {1, 2, 3, 4, 5, 6, 7, 8, 14},
    "graph": {1, 2, 5, 10, 11, 12},
    "node": {1, 2, 3, 4, 5, 6, 7},
    "attribute": {1, 2, 3, 4, 5, 7, 8, 9, 13, 20},
    "tensor": {1, 2, 4, 5, 7, 8, 9, 10, 11, 12},
    "value": {1, 2, 3},
    "type": {1, 6},
    "tensor type": {1, 2},
    "shape": {1},
    "size": {1},
    "domain": {1, 2},
}
"""Fields of the messages of onnx.proto that may be there."""
REPEATED = {("model", 8), ("model", 14), ("graph", 1), ("graph", 5), ("graph", 11), ("graph", 12), ("node", 1)}
REPEATED |= {("node", 2), ("node", 5), ("tensor", 1), ("shape", 1), ("attribute", 7), ("attribute", 8)}
REPEATED |= {("attribute", 9), ("tensor", 4), ("tensor", 5), ("tensor", 7), ("tensor", 10), ("tensor", 11)}
KNOWN = {
    ("model", 20): "instructions for training",
    ("model", 25): "functions of its own",
    ("graph", 15): "sparse weights",
    ("attribute", 6): "a graph within an operator",
    ("attribute", 11): "a graph within an operator",
    ("tensor", 13): "weights in another file",
    ("tensor", 14): "weights in another file",
    ("size", 2): "a shape that is not fixed",
}
Shape = tuple[int, ...]
Field = tuple[int, int, memoryview]
"""Number, value of an integer, bytes of anything else."""


@dataclass(frozen=True)
class Slot:
    """A trained tensor among the inputs: at every point, or itself with factors."""

    shape: Shape
    factored: bool

    @property
    def columns(self) -> int:
        return _product(self.shape[1:])


@dataclass(frozen=True)
class Form:
    """The sizes of a graph; type: of its rows."""

    points: int
    rows: int
    inputs: int
    classes: int
    type: int
    slots: tuple[Slot, ...]

    def table(self) -> list[tuple[str, Shape]]:
        """Names and shapes of all inputs, in order."""
        found: list[tuple[str, Shape]] = [("x", (self.rows, self.inputs))]
        if any(slot.factored for slot in self.slots):
            found.append(("c", (self.points,)))
        for t, slot in enumerate(self.slots):
            if slot.factored:
                found += [(f"w{t}", slot.shape), (f"a{t}", (self.points, slot.shape[0]))]
                found.append((f"b{t}", (self.points, slot.columns)))
            else:
                found.append((f"p{t}", (self.points, *slot.shape)))
        return found


def form_of(content: bytes) -> Form:
    """The form of a graph; raises `ClientError` with what is wrong with it."""
    data = memoryview(content)
    model = _read("model", data)
    for each in model.get(8, []):
        _expect_own(_text(_read("domain", each[2]).get(1)))
    if 7 not in model:
        raise _refused("no graph")
    graph = _read("graph", model[7][0][2])
    if not 1 <= len(graph.get(1, [])) <= MOST_NODES:
        raise _refused(f"{len(graph.get(1, []))} operators, where 1 to {MOST_NODES:,} are allowed")
    for each in graph[1]:
        _node(each[2])
    constants = {_tensor(each[2]) for each in graph.get(5, [])}
    inputs, outputs = ([_value(each[2]) for each in graph.get(number, [])] for number in (11, 12))
    if constants & {name for name, _, _ in inputs}:
        raise _refused("an input with a value of its own")
    return _form(inputs, outputs)


def _form(inputs: list[tuple[str, int, Shape]], outputs: list[tuple[str, int, Shape]]) -> Form:
    shapes = {name: shape for name, _, shape in inputs}
    if len(outputs) != 1 or outputs[0][:2] != ("logits", FLOAT32) or len(outputs[0][2]) != 3:
        raise _refused("another output than logits (points, rows, labels)")
    if not inputs or inputs[0][1] not in (FLOAT32, INT64) or len(shapes.get("x", ())) != 2:
        raise _refused("no input x of rows")
    slots = list[Slot]()
    while name := next((f"{kind}{len(slots)}" for kind in "pw" if f"{kind}{len(slots)}" in shapes), ""):
        slots.append(Slot(shapes[name][1:] if name[0] == "p" else shapes[name], name[0] == "w"))
    points, rows, classes = outputs[0][2]
    if rows != shapes["x"][0]:
        raise _refused("an output of another number of rows than x")
    form = Form(points, rows, shapes["x"][1], classes, inputs[0][1], tuple(slots))
    types = all(kind == FLOAT32 for _, kind, _ in inputs[1:])
    if not slots or not types or [(name, shape) for name, _, shape in inputs] != form.table():
        raise _refused("other inputs than those of the protocol")
    return form


def _node(data: memoryview) -> None:
    node = _read("node", data)
    _expect_own(_text(node.get(7)))
    if (operator := _text(node.get(4))) not in OPERATORS:
        raise _refused(f"the operator {operator[:40]!r}")
    for _, _, attribute in node.get(5, []):
        for _, _, tensor in _read("attribute", attribute).get(5, []):
            _tensor(tensor)


def _tensor(data: memoryview) -> str:
    """The name of weights, which are all in the file."""
    return _text(_read("tensor", data).get(8))


def _value(data: memoryview) -> tuple[str, int, Shape]:
    """Name, type and shape of an input or an output."""
    value = _read("value", data)
    if 2 not in value:
        raise _refused("an input without a type")
    kind = _read("type", value[2][0][2])
    if 1 not in kind:
        raise _refused("an input that is no tensor")
    tensor = _read("tensor type", kind[1][0][2])
    sizes = _read("shape", tensor[2][0][2]).get(1, []) if 2 in tensor else []
    found = tuple(_read("size", each[2]).get(1, [(0, 0, data[:0])])[0][1] for each in sizes)
    if not found or min(found) < 1 or max(found) > MOST_NUMBERS or _product(found) > MOST_NUMBERS:
        raise _refused(f"a shape that is not fixed or too large: {found}")
    return _text(value.get(1)), tensor[1][0][1] if 1 in tensor else 0, found


def _expect_own(domain: str) -> None:
    if domain not in ("", "ai.onnx"):
        raise _refused(f"operators of the domain {domain[:40]!r}")


def _text(fields: list[Field] | None) -> str:
    return bytes(fields[0][2]).decode("utf-8", "replace") if fields else ""


def _read(message: str, data: memoryview) -> dict[int, list[Field]]:
    """The fields of a message by number; of allowed ones alone, and one of each that is not repeated."""
    found = dict[int, list[Field]]()
    for field in _fields(data):
        number = field[0]
        if number not in ALLOWED[message]:
            raise _refused(KNOWN.get((message, number), f"the field {number} of a {message}"))
        if number in found and (message, number) not in REPEATED:
            raise _refused(f"the field {number} of a {message} twice")
        found.setdefault(number, []).append(field)
    return found


def _fields(data: memoryview) -> Iterator[Field]:
    at, nothing = 0, data[:0]
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind, length = tag >> 3, tag & 7, 0
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value, nothing
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise _refused("bytes that are no ONNX file")
        if not number or length > len(data) - at:
            raise _refused("bytes that are no ONNX file")
        yield number, 0, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise _refused("bytes that are no ONNX file")


def _refused(what: str) -> ClientError:
    return ClientError(f"the graph of the run is refused: it has {what}")


def _product(sizes: Shape) -> int:
    found = 1
    for size in sizes:
        found *= size
    return found
