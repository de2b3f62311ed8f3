"""How a model's text is generated and read: settings of a recipe, tokens that end a text, and the text itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from msgspec import Meta

from fedzero.model.numbers import NonNegative
from fedzero.model.value import Checked
from fedzero.oracles.generation import Decoding
from fedzero.tasks.language.pretrained import Pretrained, decodes_upto


class Generate(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How text is generated where `measure = "reward"`."""

    max_tokens: Annotated[int, Meta(ge=1, le=1 << 16)] = 16
    """at most so many tokens"""
    stop: str = "\n"
    """a text ends before the first of these, or where the model ends it; empty: only there"""
    temperature: NonNegative = 0.0
    """of sampling, with noise from the run's keys, the same at all points; 0: the likeliest token"""


def decoding_of(model: Pretrained, wanted: Generate, longest: int) -> Decoding:
    """Of prompts that have `longest` tokens at most."""
    weight = model.head.weight
    assert isinstance(weight, torch.Tensor)
    stepwise = longest + wanted.max_tokens <= decodes_upto(model)
    return Decoding(wanted.max_tokens, _ends(model, wanted.stop, weight), wanted.temperature, stepwise)


def _ends(model: Pretrained, stop: str, weight: torch.Tensor) -> torch.Tensor:
    """(V,): tokens that end a text, or contain `stop`. A `stop` of several tokens is found in the text only."""
    ends = torch.zeros(len(weight), dtype=torch.bool)
    ends[sorted(model.ends)] = True
    if stop:
        known = min(len(model.tokenizer), len(weight))
        texts = model.tokenizer.batch_decode([[i] for i in range(known)], clean_up_tokenization_spaces=False)
        ends[:known] |= torch.tensor([stop in text for text in texts])
    return ends.to(weight.device)


def reader_of(model: Pretrained, stop: str) -> Callable[[Sequence[int]], str]:
    """Tokens to text, as far as the first `stop`."""

    ends = model.ends

    def read(tokens: Sequence[int]) -> str:
        kept = [token for token in tokens if token not in ends]
        text: str = model.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.partition(stop)[0] if stop else text

    return read
