"""Small operations of a layer fused by `torch.compile`: a layer of Llama has forty kernels, eight of which do the work.

Layers are compiled one by one, from the inside: what happens between them (weights made in a scratch buffer, the module
pointed at them) stays as it is, and layers of one kind share their code.
"""

from __future__ import annotations

import torch
from torch import nn

from fedzero.errors import FedzeroError
from fedzero.oracles.piecewise import blocks


def fuse(module: nn.Module, backend: str = "inductor") -> None:
    """Compile every layer of a module when it first runs, for the shapes it gets.

    A second shape makes code for all shapes, so it is compiled a few times and no more. Nothing else changes, but that
    sums are taken in another order.
    """
    _expect_compiler(next(module.parameters()).device, backend)
    for block, whole in blocks(module):
        if whole:
            block.forward = torch.compile(block.forward, backend=backend)


def _expect_compiler(device: torch.device, backend: str) -> None:
    """Before long work: can anything be compiled here?"""
    try:
        torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2, device=device))
    except Exception as error:  # of dynamo, inductor, triton, the C++ compiler
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FedzeroError(f"task.compile = true, but torch.compile fails here: {said}") from error
