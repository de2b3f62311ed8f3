"""Small causal models of several kinds, with a tokenizer, as folders that `transformers` made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_language import KINDS, configuration, transformers, words


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """small_model(kind): a folder with a random model of that kind and its tokenizer."""
    folder, made = tmp_path_factory.mktemp("models"), {}

    def make(kind: str) -> Path:
        if kind not in made:
            tokenizer = words()
            torch.manual_seed(KINDS.index(kind))
            config = configuration(kind, len(tokenizer))
            config.pad_token_id = config.bos_token_id = config.eos_token_id = tokenizer.eos_token_id
            model = transformers.AutoModelForCausalLM.from_config(config)
            with torch.no_grad():
                for parameter in model.parameters():  # nothing nought, nothing one: every weight shall matter
                    parameter.add_(0.1 * torch.randn_like(parameter))
            model.save_pretrained(folder / kind)
            tokenizer.save_pretrained(folder / kind)
            made[kind] = folder / kind
        return made[kind]

    return make
