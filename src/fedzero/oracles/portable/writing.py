"""A module becomes a graph of G points and B rows, by PyTorch's own exporter, and is compared with the module."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedzero.errors import FedzeroError
from fedzero.model.files import write
from fedzero.oracles.portable.checking import NAMES, expect_portable
from fedzero.oracles.portable.factored import Factored, RankOne
from fedzero.oracles.portable.format import INT64, Form, Oracle, Slot, pays

OPSET = 18
NEAR, FAR = 1e-3, 1e-4
"""The radius of the points of the comparison, and how far logits may be apart, as a share of the largest."""


@dataclass(frozen=True)
class Written:
    """form: of the graph; names: of the trained tensors; difference: the largest from PyTorch, by a share of the
    largest logit; size: bytes."""

    form: Form
    names: tuple[str, ...]
    difference: float
    size: int


class _AtPoints(nn.Module):
    """The inputs of a graph to logits (G, B, classes): vmap over points, or one point."""

    def __init__(self, module: nn.Module, names: Sequence[str], form: Form):
        super().__init__()
        self.module, self.names, self.form = module, tuple(names), form

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        given = dict(zip([name for name, _ in self.form.table()[1:]], others, strict=True))
        shared = {name: tensor for name, tensor in given.items() if name[0] == "w"}
        own = {name: tensor for name, tensor in given.items() if name[0] != "w"}
        if self.form.points == 1:
            return self._at(x, shared, {name: tensor.squeeze(0) for name, tensor in own.items()})[None]
        return torch.vmap(lambda each: self._at(x, shared, each))(own)

    def _at(self, x: Tensor, shared: dict[str, Tensor], own: dict[str, Tensor]) -> Tensor:
        tensors, table = dict[str, Tensor](), dict[int, RankOne]()
        for t, (name, slot) in enumerate(zip(self.names, self.form.slots, strict=True)):
            tensors[name] = shared[f"w{t}"] if slot.factored else own[f"p{t}"]
            if slot.factored:
                table[id(tensors[name])] = RankOne(own["c"], own[f"a{t}"], own[f"b{t}"])
        with Factored(table) if table else contextlib.nullcontext():
            logits: Tensor = functional_call(self.module, tensors, (x,))
        return logits


def export(oracle: Oracle, path: Path, rows: int, points: int, rank_one: bool) -> Written:
    """Write a graph. rank_one: directions are of rank one, so large matrices are given as factors where there are
    several points."""
    module = oracle.module.eval()
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    if any(tensor.dtype != torch.float32 for tensor in trained.values()):
        raise FedzeroError("devices have float32 parameters: export the model with dtype = 'float32'")
    slots = tuple(Slot(tuple(w.shape), rank_one and points > 1 and pays(w.shape)) for w in trained.values())
    form = Form(points, rows, oracle.inputs, oracle.classes, oracle.type, slots)
    wrapped, given = _AtPoints(module, list(trained), form), _example(oracle, form, list(trained.values()))
    with torch.no_grad(), _quietly():
        program: Any = _exported(wrapped, given, [name for name, _ in form.table()])
    content = _content(program, list(trained))
    expect_portable(content, str(path))
    write(path, content)
    found = _difference(path, wrapped, given)
    if not found <= FAR:
        path.unlink()
        raise FedzeroError(f"the graph and PyTorch differ by {found:.1e} of the largest logit: it is not written")
    return Written(form, tuple(trained), found, len(content))


def _exported(module: nn.Module, given: Sequence[Tensor], names: Sequence[str]) -> Any:
    try:
        return torch.onnx.export(
            module, tuple(given), input_names=list(names), output_names=["logits"], opset_version=OPSET, dynamo=True
        )
    except ImportError as error:
        raise FedzeroError(f"exporting needs onnx and onnxscript (pip install 'fedzero[onnx]'): {error}") from error
    except Exception as error:  # of the exporter, or of the module's own code
        line = next((each for each in str(error).splitlines()[::-1] if each.strip()), type(error).__name__)
        raise FedzeroError(f"PyTorch cannot export this model: {line.strip()[:300]}") from error


def _content(program: Any, names: Sequence[str]) -> bytes:
    """The bytes of one file, without shapes of intermediate values, notes of the exporter and paths of source files."""
    proto = program.model_proto
    del proto.graph.value_info[:], proto.graph.metadata_props[:]
    for each in (*proto.graph.node, *proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        each.doc_string = ""
        del each.metadata_props[:]
    del proto.metadata_props[:], proto.functions[:]
    proto.graph.name, proto.producer_version = "oracle", ""
    entry = proto.metadata_props.add()
    entry.key, entry.value = NAMES, "\n".join(names)
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


def _example(oracle: Oracle, form: Form, trained: Sequence[Tensor]) -> list[Tensor]:
    """Points near the module's own weights."""
    draw = torch.Generator().manual_seed(1)
    if form.type == INT64:
        x = torch.randint(0, 100, (form.rows, form.inputs), generator=draw)
    else:
        x = torch.randn(form.rows, form.inputs, generator=draw)
    found = [x]
    for name, shape in form.table()[1:]:
        tensor = trained[int(name[1:])] if name[0] in "pw" else None
        if tensor is None:
            found.append(torch.full(shape, NEAR) if name == "c" else torch.randn(shape, generator=draw).sign())
        else:
            moved = NEAR * torch.randn(shape, generator=draw) if name[0] == "p" else torch.zeros(())
            found.append(tensor.cpu() + moved)
    return found


def _difference(path: Path, module: nn.Module, given: Sequence[Tensor]) -> float:
    from fedzero.oracles.portable.running import Graph

    with torch.no_grad():
        wanted = module(*given)
    graph = Graph(path)
    arrays = [tensor.numpy() for tensor in given]
    found = torch.from_numpy(graph.logits(dict(zip([name for name, _ in graph.form.table()], arrays, strict=True))))
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """The exporter says much."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
