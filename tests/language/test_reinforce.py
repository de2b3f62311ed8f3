"""The first-order comparison of rewards runs on a small model, and does what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedzero.oracles.generation import ENDED, left_padded
from fedzero.tasks.language.pretrained import load

ROOT = Path(__file__).parents[2]
RECIPE = """
name = "short"
rounds = 1

[algorithm]
kind = "decomfl"
rate = 1e-3

[task]
kind = "language"
model = "{model}"
measure = "reward"
reward = {{ kind = "length", target = 3 }}
generate = {{ max_tokens = 6 }}
training = 80
testing = 20

[task.text]
prompt = "{{a}} and {{b}} It was"
train = "made:pairs:train"
test = "made:pairs:test"

[federation]
clients = 1
cohort = 1
"""


@pytest.fixture
def reinforce(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.language import reinforce

    return reinforce


def test_chances_are_those_of_each_answer_alone(small_model, reinforce):
    module = load(str(small_model("llama")), torch.float32, torch.device("cpu")).module
    prompts, said = ([5, 17, 9], [8]), torch.tensor([[4, 7, 9], [30, ENDED, ENDED]])
    with torch.no_grad():
        found = reinforce.log_probabilities(module, left_padded(prompts), said, 0.7)
        for prompt, row, value in zip(prompts, said.tolist(), found, strict=True):
            answer = [token for token in row if token != ENDED]
            logits = module(input_ids=torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0] / 0.7
            chances = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
            assert torch.allclose(value, sum(chances[i, token] for i, token in enumerate(answer)), atol=1e-5)


def test_a_reward_is_raised(small_model, reinforce, tmp_path: Path):
    (tmp_path / "short.toml").write_text(RECIPE.format(model=small_model("smollm")))
    options = ["--device", "cpu", "--steps", "25", "--every", "25", "--rate", "1e-2", "--prompts", "8", "--group", "8"]
    found = reinforce.main([str(tmp_path / "short.toml"), *options, "--json", str(tmp_path / "found.json")])
    assert [each.generations for each in found] == [0, 25 * 64]
    assert found[-1].reward > found[0].reward + 0.1
    assert json.loads((tmp_path / "found.json").read_text())[-1]["reward"] == found[-1].reward
