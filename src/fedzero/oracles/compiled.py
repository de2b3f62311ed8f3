"""Layers compiled one by one with `torch.compile`, which fuses their small operations.

What happens between layers (weights written to a scratch buffer, the module pointed at them) stays as it is, and layers
of one kind share their code.
"""

from __future__ import annotations

import torch
from torch import nn

from fedzero.errors import FedzeroError
from fedzero.oracles.piecewise import blocks


def compile_layers(module: nn.Module, backend: str = "inductor") -> None:
    """Compile every layer of a module when it first runs, for the shapes it gets; from the second shape on, for all.

    Sums are then taken in another order.
    """
    _check_compiler(next(module.parameters()).device, backend)
    for block, is_layer in blocks(module):
        if is_layer:
            block.forward = torch.compile(block.forward, backend=backend)


def _check_compiler(device: torch.device, backend: str) -> None:
    """Before long work: can anything be compiled here?"""
    try:
        torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2, device=device))
    except Exception as error:  # of dynamo, inductor, triton, the C++ compiler
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FedzeroError(f"task.compile = true, but torch.compile fails here: {reason}") from error
