"""The graphs of tests: of a small convolution over rows of six numbers, and files that nobody may evaluate.

python tests/devices/graphs/make.py        needs fedzero[onnx]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch import nn

from fedzero.oracles.portable import Oracle, writing

FOLDER = Path(__file__).parent
INPUTS, LABELS, ROWS = 6, 3, 16


class Small(nn.Module):
    """Rows as pictures of 2×3 numbers; a linear layer that is frozen stands in front."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Linear(INPUTS, INPUTS).requires_grad_(False)
        self.conv = nn.Conv2d(1, 4, 2, padding=1)
        self.linear = nn.Linear(48, LABELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(self.before(x).view(-1, 1, 2, 3)).relu()
        logits: torch.Tensor = self.linear(h.flatten(1))
        return logits


def _small(name: str, points: int, factored: bool) -> None:
    before, writing.pays = writing.pays, (lambda shape: len(shape) > 1) if factored else (lambda shape: False)
    try:
        writing.export(Oracle(Small(), INPUTS, LABELS), FOLDER / name, ROWS, points, factored)
    finally:
        writing.pays = before


def _constant(name: str, values: Any) -> Any:
    return helper.make_tensor(name, TensorProto.FLOAT, [len(values)], values)


def _plain(*nodes: Any, constants: Any = (), shape: tuple[int, ...] = (1, ROWS, LABELS)) -> Any:
    """A graph with the inputs of the small one, whose output such nodes make of `h` (1, B, C)."""
    table = [
        ("x", (ROWS, INPUTS)),
        ("p0", (1, 4, 1, 2, 2)),
        ("p1", (1, 4)),
        ("p2", (1, LABELS, 48)),
        ("p3", (1, LABELS)),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in table]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
    shapes = [
        helper.make_tensor("from", TensorProto.INT64, [1], [0]),
        helper.make_tensor("to", TensorProto.INT64, [1], [LABELS]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
    ]
    first = [
        helper.make_node("Slice", ["x", "from", "to", "axis"], ["some"]),
        helper.make_node("Unsqueeze", ["some", "from"], ["each"]),
        helper.make_node("Add", ["each", "p3"], ["h"]),
    ]
    graph = helper.make_graph([*first, *nodes], "oracle", inputs, [output], [*shapes, *constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _other_domain() -> Any:
    model = _plain(helper.make_node("Identity", ["h"], ["logits"], domain="com.example"))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    return model


def _loop() -> Any:
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["flag"]), helper.make_node("Identity", ["before"], ["after"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, (1, ROWS, LABELS)),
        ],
        [flag, helper.make_tensor_value_info("after", TensorProto.FLOAT, (1, ROWS, LABELS))],
    )
    return _plain(
        helper.make_node("Loop", ["times", "", "h"], ["logits"], body=body),
        constants=[helper.make_tensor("times", TensorProto.INT64, [], [1 << 62])],
    )


def _branch() -> Any:
    """An allowed operator with a graph in an attribute."""
    model = _plain(helper.make_node("Identity", ["h"], ["logits"]))
    model.graph.node[-1].attribute.append(helper.make_attribute("body", model.graph))
    return model


def _external() -> Any:
    model = _plain(
        helper.make_node("Add", ["h", "outside"], ["logits"]), constants=[_constant("outside", [0.0] * LABELS)]
    )
    tensor = model.graph.initializer[-1]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../../../etc/hostname"
    return model


def _inside_constant() -> Any:
    """The same in the attribute of a Constant."""
    tensor = _external().graph.initializer[-1]
    constant = helper.make_node("Constant", [], ["outside"], value=tensor)
    return _plain(constant, helper.make_node("Add", ["h", "outside"], ["logits"]))


def _function() -> Any:
    model = _plain(helper.make_node("Identity", ["h"], ["logits"]))
    opset = [helper.make_opsetid("", 18)]
    model.functions.append(
        helper.make_function("", "Identity", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], opset)
    )
    return model


def _free() -> Any:
    """A size that is not fixed."""
    model = _plain(helper.make_node("Identity", ["h"], ["logits"]))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return model


def _own_value() -> Any:
    """An input that has a value of its own."""
    model = _plain(helper.make_node("Identity", ["h"], ["logits"]))
    model.graph.initializer.append(helper.make_tensor("p3", TensorProto.FLOAT, [1, LABELS], [0.0] * LABELS))
    return model


def _huge(claimed: tuple[int, ...]) -> Any:
    """1 TiB of intermediate values; the output is claimed to be small."""
    to = helper.make_tensor("large", TensorProto.INT64, [3], [1 << 19, ROWS, LABELS * (1 << 14)])
    one = helper.make_node("Expand", ["each_one", "large"], ["wide"])
    cut = helper.make_node("ReduceSum", ["h", "all"], ["each_one"], keepdims=1)
    last = helper.make_node("ReduceMax", ["wide", "all"], ["top"], keepdims=1)
    add = helper.make_node("Add", ["h", "top"], ["logits"])
    every = helper.make_tensor("all", TensorProto.INT64, [3], [0, 1, 2])
    return _plain(cut, one, last, add, constants=[to, every], shape=claimed)


BAD: dict[str, Callable[[], Any]] = {
    "other-domain": _other_domain,
    "unknown-operator": lambda: _plain(helper.make_node("RandomUniformLike", ["h"], ["logits"])),
    "loop": _loop,
    "branch": _branch,
    "external": _external,
    "external-constant": _inside_constant,
    "function": _function,
    "free-shape": _free,
    "own-value": _own_value,
    "huge-output": lambda: _huge((1 << 19, ROWS, LABELS * (1 << 14))),
}
"""Refused before onnxruntime reads them."""
LATE: dict[str, Callable[[], Any]] = {
    "huge-inside": lambda: _huge((1, ROWS, LABELS)),
    "nan": lambda: _plain(
        helper.make_node("Sub", ["h", "h"], ["zero"]), helper.make_node("Div", ["zero", "zero"], ["logits"])
    ),
    "another-shape": lambda: _plain(helper.make_node("Transpose", ["h"], ["logits"], perm=[0, 2, 1])),
    "no-weights": lambda: _plain(helper.make_node("Add", ["h", "nowhere"], ["logits"])),
}
"""Refused when they are read or evaluated."""


def main() -> None:
    _small("small.onnx", 1, False)
    _small("small-4.onnx", 4, False)
    _small("small-factors.onnx", 5, True)
    (FOLDER / "plain.onnx").write_bytes(_plain(helper.make_node("Identity", ["h"], ["logits"])).SerializeToString())
    for name, make in (BAD | LATE).items():
        model: onnx.ModelProto = make()
        (FOLDER / f"{name}.onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
