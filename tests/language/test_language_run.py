"""Whole runs with small models: learn, replay, and travel as a patch to plain `transformers`."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from small_language import KINDS, transformers, words

from fedzero.directions import Keys
from fedzero.model.checkpoint import load_model
from fedzero.oracles.responses import ChoiceObjective
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.runs import recorded, session
from fedzero.tasks import BuildContext, Language
from fedzero.tasks.language.texts import Text
from sampling import mostly_slow

RECIPE = """
name = "reviews"
rounds = 6
seed = 2
evaluate_every = 3

[algorithm]
kind = "decomfl"
rate = 1e-3
directions = 3

[task]
kind = "language"
model = "{model}"
batch = 4

[task.text]
prompt = "{{review}} It was"
answers = {{ bad = "terrible", good = "great" }}
label = "verdict"
passage = "review"
train = "train.jsonl"
test = "test.jsonl"

[engine]
device = "cpu"

[federation]
clients = 3
cohort = 2
"""


@pytest.fixture(scope="session")
def reviews(tmp_path_factory) -> Path:
    """Rows that say what is meant: every second one is good."""
    folder = tmp_path_factory.mktemp("reviews")
    for name, count in (("train", 40), ("test", 20)):
        rows = [
            {"review": f"{'great' if i % 2 else 'no'} plot {i}", "verdict": ("bad", "good")[i % 2]}
            for i in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def written(small_model, tmp_path):
    """written(kind): the recipe for that model, as a file."""

    def write(kind: str) -> Path:
        path = tmp_path / f"{kind}.toml"
        path.write_text(RECIPE.format(model=small_model(kind)))
        return path

    return write


@pytest.mark.parametrize("kind", mostly_slow(KINDS, lambda kind: kind in ("gpt2", "llama")))
def test_run_replay_patch_and_load_with_transformers(fedzero, written, reviews, small_model, tmp_path, kind):
    run, patch, tuned = tmp_path / "run", tmp_path / "p.patch", tmp_path / "tuned"
    found = fedzero("run", written(kind), "--out", run, "--data", reviews, "--json").json
    assert found["complete"]
    assert fedzero("verify", run, "--data", reviews).code == 0
    assert fedzero("patch", "export", run, "--out", patch, "--data", reviews).code == 0
    assert patch.stat().st_size < 4000
    done = fedzero("patch", "apply", patch, "--base", small_model(kind), "--out", tuned)
    assert found["model_digest"] in done.out
    model = transformers.AutoModelForCausalLM.from_pretrained(tuned)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned)
    saved = load_model(run / "model.safetensors")
    plain = dict(model.named_parameters())
    assert saved.keys() <= plain.keys()
    for name, tensor in saved.items():
        assert torch.equal(plain[name], tensor)
    assert not list(tmp_path.glob("*.new"))
    # The same answers: accuracy by plain transformers is that of the run's last evaluation.
    rows = [json.loads(line) for line in (reviews / "test.jsonl").read_text().splitlines()]
    words = [tokenizer(f" {word}")["input_ids"][0] for word in ("terrible", "great")]
    right = 0
    for row in rows:
        ids = tokenizer(f"{row['review']} It was", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            said = int(model(input_ids=ids).logits[0, -1, words].argmax())
        right += ("bad", "good")[said] == row["verdict"]
    assert found["final_accuracy"] == pytest.approx(right / len(rows))


def test_adapters_travel_as_adapters_or_merged(fedzero, written, reviews, small_model, tmp_path):
    run, patch = tmp_path / "run", tmp_path / "p.patch"
    lora = ["--set", "task.train.kind=lora", "--set", "task.train.rank=2"]
    assert fedzero("run", written("llama"), "--out", run, "--data", reviews, *lora).code == 0
    fedzero("patch", "export", run, "--out", patch, "--data", reviews)
    for name, options in (("adapters", ()), ("merged", ("--merge",))):
        assert (
            fedzero("patch", "apply", patch, "--base", small_model("llama"), "--out", tmp_path / name, *options).code
            == 0
        )
        assert len({path.stat().st_mode for path in (tmp_path / name).iterdir()}) == 1, "readable, all or none of it"
    peft = pytest.importorskip("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(small_model("llama"))
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    ids = torch.tensor([[5, 9, 30]])
    with torch.no_grad():
        one, other = adapted(input_ids=ids).logits, merged(input_ids=ids).logits
        untouched = transformers.AutoModelForCausalLM.from_pretrained(small_model("llama"))(input_ids=ids).logits
    assert torch.allclose(one, other, atol=1e-5)
    assert not torch.allclose(one, untouched, atol=1e-4)


def test_learns_what_the_rows_say(fedzero, written, reviews, tmp_path):
    """A model of two layers, twenty rounds: the loss goes down."""
    options = ["rounds=20", "algorithm.directions=10", "algorithm.rate=5e-3", "task.batch=20", "federation.cohort=3"]
    sets = [part for option in options for part in ("--set", option)]
    common = ("run", written("smollm"), "--data", reviews, "--json", "--out")
    found = fedzero(*common, tmp_path / "run", *sets).json
    start = fedzero(*common, tmp_path / "start", "--rounds", 1).json
    assert found["final_loss"] < 0.7 * start["final_loss"]


@pytest.mark.covered
@pytest.mark.parametrize(
    "algorithm",
    [
        {"kind": "mezo", "rate": 1e-3},
        {"kind": "fedzo", "rate": 1e-3, "directions": 2},
        {"kind": "fedavg", "rate": 1e-2},
        {"kind": "zofedht", "rate": 1e-3},
        {"kind": "zo-adafl", "rate": 1e-3},
    ],
    ids=lambda table: table["kind"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_methods_and_types(written, reviews, quiet, tmp_path, algorithm, dtype):
    table = tomllib.loads(written("smollm").read_text()) | {"algorithm": algorithm, "rounds": 2}
    table["task"]["dtype"] = dtype
    if algorithm["kind"] == "mezo":
        table["federation"] = {"clients": 1, "cohort": 1}

    recipe = recipes.decode(table)
    summary = session.start(recipe, tmp_path / "run", Environment(data=reviews), quiet)
    assert summary.complete
    recorded.verified(tmp_path / "run", Environment(data=reviews))


def test_labels_count_what_they_shall_whoever_has_them(reviews, small_model):
    """Clients have a label or two by Dirichlet's leave; a batch is as large as what some of them have."""
    rows = {"prompt": "{review} It was", "label": "verdict", "train": "train.jsonl", "test": "test.jsonl"}
    text = Text(answers={"bad": "terrible", "good": "great"}, **rows)
    place = BuildContext(Keys.of_seed(2), torch.device("cpu"), reviews)
    for balanced, good in ((True, 0.5), ({"good": 3.0, "bad": 1.0}, 0.75)):
        task = Language(model=str(small_model("llama")), text=text, batch=12, balanced=balanced)
        shards, short = task.build(4, place).shards, 0
        for client in range(4):
            batch = shards.batch(place.keys, 0, 0, client)
            weights = np.full(len(batch), 1 / len(batch)) if batch.weights is None else batch.weights
            short += batch.weights is not None
            if len(set(batch.labels)) == 2:
                assert weights @ np.array(batch.labels) == pytest.approx(good)
        assert short, "what the test is about"


@pytest.mark.parametrize("measure", ["accuracy", "f1"])
def test_metrics_are_objectives_too(fedzero, written, reviews, tmp_path, measure):
    found = fedzero(
        "run",
        written("gpt2"),
        "--out",
        tmp_path / "run",
        "--data",
        reviews,
        "--json",
        "--set",
        f"task.measure={measure}",
    ).json
    assert found["complete"]


# ---- bad input


def without(folder: Path, where: Path, *patterns: str) -> Path:
    shutil.copytree(folder, where)
    for pattern in patterns:
        for path in where.glob(pattern):
            path.unlink()
    return where


def refused(fedzero, written, reviews, tmp_path, *sets):
    options = [part for option in sets for part in ("--set", option)]
    outcome = fedzero("run", written("llama"), "--out", tmp_path / "run", "--data", reviews, *options)
    assert not (tmp_path / "run").exists()
    return outcome


def test_a_model_without_a_tokenizer(fedzero, written, reviews, small_model, tmp_path):
    bare = without(small_model("llama"), tmp_path / "bare", "tokenizer*", "special*")
    refused(fedzero, written, reviews, tmp_path, f"task.model={bare}").refused("has no tokenizer", "task.tokenizer")
    sets = [f"task.model={bare}", f"task.tokenizer={small_model('llama')}", "rounds=1"]
    options = [part for option in sets for part in ("--set", option)]
    assert fedzero("run", written("llama"), "--out", tmp_path / "run", "--data", reviews, *options).code == 0


def test_a_folder_that_is_no_model(fedzero, written, reviews, small_model, tmp_path):
    broken = without(small_model("llama"), tmp_path / "broken", "config.json")
    refused(fedzero, written, reviews, tmp_path, f"task.model={broken}").refused("cannot be loaded as a causal")
    (tmp_path / "cut").mkdir()
    cut = without(small_model("llama"), tmp_path / "cut" / "m")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused(fedzero, written, reviews, tmp_path, f"task.model={cut}").refused("cannot be loaded as a causal")


def test_a_model_that_is_not_there(fedzero, written, reviews, tmp_path):
    refused(fedzero, written, reviews, tmp_path, "task.model=./nowhere").refused("./nowhere does not exist")
    refused(fedzero, written, reviews, tmp_path, "task.model=none.gguf").refused("none.gguf does not exist")


def test_a_model_that_looks_ahead(fedzero, written, reviews, small_model, tmp_path):
    config = transformers.BertConfig(
        vocab_size=400, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    bert = transformers.BertLMHeadModel(config)
    for parameter in bert.parameters():
        parameter.data.mul_(5)
    bert.save_pretrained(tmp_path / "bert")
    for path in small_model("llama").glob("tokenizer*"):
        shutil.copy(path, tmp_path / "bert")
    refused(fedzero, written, reviews, tmp_path, f"task.model={tmp_path / 'bert'}").refused("attends to later tokens")


def test_answers_of_several_tokens(fedzero, written, reviews, tmp_path):
    """The one with the likeliest tokens on average is chosen, as plain `transformers` finds it."""
    run, answers = tmp_path / "run", 'task.text.answers={bad="dreadful", good="great"}'
    found = fedzero("run", written("smollm"), "--out", run, "--data", reviews, "--set", answers, "--json").json
    setup = prepare(recipes.load(written("smollm"), [answers]), Environment(reviews))
    setup.problem.params.load(load_model(run / "model.safetensors"))
    objective = setup.problem.objective
    assert isinstance(objective, ChoiceObjective)
    module, tokenizer = objective.scorer.passes.module, words()
    right = 0
    for row in map(json.loads, (reviews / "test.jsonl").read_text().splitlines()):
        scores = []
        for answer in ("dreadful", "great"):
            ids = tokenizer(f"{row['review']} It was {answer}", return_tensors="pt")["input_ids"]
            before = len(tokenizer(f"{row['review']} It was")["input_ids"])
            with torch.no_grad():
                logs = module(input_ids=ids).logits[0, before - 1 : -1].log_softmax(-1)
            scores.append(float(logs.gather(1, ids[0, before:, None]).mean()))
        right += ("bad", "good")[int(np.argmax(scores))] == row["verdict"]
    assert found["final_accuracy"] == pytest.approx(right / 20)


def test_shares_of_labels_there_are_not(fedzero, written, reviews, tmp_path):
    for shares in ("{good = 0.5}", "{good = 0.5, bad = 0.4, ugly = 0.1}", "{}"):
        outcome = refused(fedzero, written, reviews, tmp_path, f"task.balanced={shares}")
        outcome.refused("task.balanced names the labels", "['bad', 'good']")
    refused(fedzero, written, reviews, tmp_path, "task.balanced={good = 0.0, bad = 1.0}").refused("balanced")


def test_patterns_that_match_nothing(fedzero, written, reviews, tmp_path):
    sets = ["task.train.kind=names", 'task.train.patterns=["nothing*"]']
    refused(fedzero, written, reviews, tmp_path, *sets).refused("match no parameter", "model.embed_tokens.weight")


def test_more_clients_than_rows(fedzero, written, reviews, tmp_path):
    refused(fedzero, written, reviews, tmp_path, "federation.clients=60").refused("exceeds the 40 training samples")


def test_a_patch_for_another_base(fedzero, written, reviews, small_model, tmp_path):
    run, patch = tmp_path / "run", tmp_path / "p.patch"
    fedzero("run", written("smollm"), "--out", run, "--data", reviews, "--rounds", 1)
    fedzero("patch", "export", run, "--out", patch, "--data", reviews)
    for other, why in (("opt", "does not have the parameters"), ("llama", "another base model")):
        fedzero("patch", "apply", patch, "--base", small_model(other), "--out", tmp_path / "t").refused(why)
    changed = transformers.AutoModelForCausalLM.from_pretrained(small_model("smollm"))
    with torch.no_grad():
        changed.model.norm.weight[0] += 1
    changed.save_pretrained(tmp_path / "changed")
    for path in small_model("smollm").glob("tokenizer*"):
        shutil.copy(path, tmp_path / "changed")
    fedzero("patch", "apply", patch, "--base", tmp_path / "changed", "--out", tmp_path / "t").refused(
        "is a patch for", "give the base checkpoint"
    )
    assert not (tmp_path / "t").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    fedzero("patch", "apply", patch, "--base", small_model("smollm"), "--out", tmp_path / "full").refused(
        "not an empty folder"
    )
