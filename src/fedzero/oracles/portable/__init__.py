"""A model as an ONNX graph that evaluates points: what a client without PyTorch is given (docs/device-protocol.md,
Graphs).

format     what the inputs and outputs of a graph are
factored   layers whose weights are x + c a bᵀ
writing    a module becomes a graph
checking   which graphs are refused
running    a graph becomes the server's objective
"""

from fedzero.oracles.portable.format import FLOAT32, INT64, Form, Oracle

__all__ = ["FLOAT32", "INT64", "Form", "Oracle"]
