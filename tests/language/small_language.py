"""Small causal models of several kinds, and a tokenizer that knows the answer words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
WORDS = "terrible great good bad Yes No Maybe"
CORPUS = [
    "it was a great film and the plot is great",
    "a terrible film , no plot , it was terrible",
    "The capital of the country is a city. Yes or No?\nYes\nNo\nMaybe\n",
    " ".join(f" {word}" for word in (WORDS + " ").split() * 20),
    "\n".join(WORDS.split() * 20),
]


def words() -> Any:
    """A byte-level tokenizer that knows the answer words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS * 5, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>")


def configuration(kind: str, vocabulary: int, context: int) -> Any:
    small = {"vocab_size": vocabulary, "max_position_embeddings": context}
    if kind == "opt":
        return transformers.OPTConfig(
            hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=32, **small
        )
    if kind == "gpt2":
        return transformers.GPT2Config(vocab_size=vocabulary, n_positions=context, n_embd=32, n_layer=2, n_head=4)
    llama = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaConfig(
        **llama, **small, num_key_value_heads=2, tie_word_embeddings=kind == "smollm", attention_bias=kind == "llama"
    )


KINDS = ("opt", "gpt2", "llama", "smollm")


def make(kind: str, folder: Path, context: int = 64) -> Path:
    """A folder with a random model of that kind and its tokenizer, as `transformers` saves it."""
    tokenizer = words()
    torch.manual_seed(KINDS.index(kind))
    config = configuration(kind, len(tokenizer), context)
    config.pad_token_id = config.bos_token_id = config.eos_token_id = tokenizer.eos_token_id
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # nothing nought, nothing one: every weight shall matter
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
