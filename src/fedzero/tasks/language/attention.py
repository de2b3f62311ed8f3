"""Attention of very many short rows, as where points decode side by side.

Several heads of queries share one of keys and values, and `transformers` gives them copies of it, which cost more there
than the attention itself. Here the queries of such a group are further queries of one head: (rows, heads, T, d) as
(rows, heads / group, group · T, d). Numbers are the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

NAME = "fedzero_grouped"
"""Of this attention in a model's configuration."""


@contextmanager
def many_rows(module: nn.Module) -> Iterator[None]:
    """While it lasts, heads of a group are queries of one; a model with another attention is left as it is."""
    inner: Any = module.get_base_model() if hasattr(module, "get_base_model") else module  # type: ignore[operator]
    config = getattr(inner, "config", None)
    grouped = getattr(config, "_attn_implementation", None) == "sdpa" and _register()
    if not grouped:
        yield
        return
    inner.set_attn_implementation(NAME)
    try:
        yield
    finally:
        inner.set_attn_implementation("sdpa")


def _register() -> bool:
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.masking_utils import sdpa_mask
    except ImportError:  # another release
        return False
    AttentionInterface.register(NAME, partial(_grouped, sdpa_attention_forward))
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return True


def _grouped(
    plain: Any, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **how: Any
) -> Any:
    """(rows, heads, T, d) of queries and (rows, heads / group, columns, d) of keys and values to (rows, T, heads, d).

    `plain` is what `transformers` has; it stays where there is no mask of ours, or something else is asked for.
    """
    rows, heads, tokens, size = query.shape
    group = heads // key.shape[1]
    if group == 1 or attention_mask is None or attention_mask.shape[:2] != (rows, 1) or how.get("position_bias"):
        return plain(module, query, key, value, attention_mask, **how)
    mask = attention_mask.expand(-1, -1, group, -1) if tokens == 1 else attention_mask.repeat(1, 1, group, 1)
    queries = query.reshape(rows, heads // group, group * tokens, size)
    found = F.scaled_dot_product_attention(queries, key, value, mask, scale=how.get("scaling"))
    return found.reshape(rows, heads, tokens, size).transpose(1, 2).contiguous(), None
