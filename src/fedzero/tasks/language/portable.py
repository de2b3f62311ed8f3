"""A language model that chooses an answer, as a model of rows of numbers: tokens, and -1 behind the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedzero.errors import FedzeroError
from fedzero.oracles.portable import INT64, Oracle
from fedzero.tasks.language.pretrained import Pretrained

NEAR = 1e-4
"""How far logits may be from those of the whole model, as a share of the largest."""


class Answers(nn.Module):
    """Logits (B, A) of answers (A,) at the ends of prompts (B, L), by the rows of the head that they need."""

    def __init__(self, model: Any, head: Any, answers: Sequence[int]):
        super().__init__()
        self.model = model
        self.register_buffer("rows", head.weight.detach()[list(answers)].clone())

    def forward(self, tokens: Tensor) -> Tensor:
        inner = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        hidden = inner.get_decoder()(input_ids=tokens.clamp(min=0), use_cache=False).last_hidden_state
        ends = (tokens >= 0).sum(1) - 1
        last: Tensor = hidden[torch.arange(len(tokens)), ends]
        return last @ self.get_buffer("rows").T


def padded(prompts: Sequence[Sequence[int]], length: int) -> NDArray[np.int64]:
    """Prompts as rows of so many numbers."""
    found = np.full((len(prompts), length), -1, np.int64)
    for row, prompt in zip(found, prompts, strict=True):
        row[: len(prompt)] = prompt
    return found


def oracle_of(model: Pretrained, answers: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]]) -> Oracle:
    """Of the longest prompt's length; refused where the answers need more than one token, or the head is not last."""
    if any(len(answer) != 1 for answer in answers):
        raise FedzeroError("a graph chooses between answers of one token each: choose other words as task.text.answers")
    tokens, length = [answer[0] for answer in answers], max(map(len, prompts))
    module = Answers(model.module.eval(), model.head, tokens)
    some = padded(prompts[:2], length)
    with torch.no_grad():
        found = module(torch.from_numpy(some))
        for row, prompt in zip(found, prompts, strict=False):
            right = model.module(input_ids=torch.tensor([list(prompt)]), use_cache=False).logits[0, -1, tokens]
            if not float((row - right).abs().max()) <= NEAR * float(right.abs().max()):
                raise FedzeroError(f"{model.name} changes its logits after the last layer: it has no graph")
    return Oracle(module, length, len(tokens), INT64, follows_signs=False)
