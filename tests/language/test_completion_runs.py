"""Whole runs on responses: they train, replay, and say what plain `transformers` generates."""

from __future__ import annotations

import json

import pytest
import torch
from small_language import transformers

import fedzero
from fedzero.errors import FedzeroError
from fedzero.methods.fedavg import FedAvg
from fedzero.results.history import history

ROWS = [{"plot": f"plot {i}", "says": "great film" if i % 2 else "no plot"} for i in range(16)]
ASK = {"prompt": "{plot}\nIs it good?", "completion": "{says}", "batch": 4, "progress": False}
SAY = {"generate": {"max_tokens": 4}, "generated": 3}


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("train", ["all", "lora"])
def test_a_run_trains_replays_and_generates(small_model, tmp_path, train):
    model, tokenizer = loaded(small_model("smollm"))
    method = fedzero.DeComFL(rate=1e-2, directions=4, distribution="rank1")
    more = {"method": method, "train": train, "out": tmp_path / "run", "rounds": 3, "options": SAY}
    run = fedzero.finetune(model, tokenizer, clients=[ROWS[:8], ROWS[8:]], **ASK, **more)
    run.verify()
    assert {"perplexity", "exact_match", "token_f1"} <= set(run.history)
    facts = history(tmp_path / "run").facts
    assert "response tokens" in facts
    assert len(facts["tokens and masks"]) == 2 * 16 + len(" and ")
    asked = [{"plot": "plot 3"}, {"plot": "a longer plot"}]
    wanted = []
    for row in asked:
        ids = tokenizer(f"{row['plot']}\nIs it good?", return_tensors="pt")
        with torch.no_grad():
            whole = run.model.generate(**ids, max_new_tokens=4, do_sample=False)[0, ids["input_ids"].shape[1] :]
        wanted.append(tokenizer.decode(whole, skip_special_tokens=True).partition("\n")[0].strip())
    assert run.generate(asked) == wanted
    again = fedzero.Run.open(tmp_path / "run", model=lambda: loaded(small_model("smollm"))[0])
    with pytest.raises(FedzeroError, match="tokenizer="):
        again.generate(asked)
    assert again.generate(asked, tokenizer=tokenizer) == wanted


def test_gradients_lower_the_loss_of_responses(small_model, tmp_path):
    model, tokenizer = loaded(small_model("llama"))
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    rows = [
        {"turns": [{"role": "user", "content": r["plot"]}, {"role": "assistant", "content": r["says"]}]} for r in ROWS
    ]
    more = {"method": FedAvg(rate=0.3), "out": tmp_path, "rounds": 4, "options": {"generated": 2}, "progress": False}
    run = fedzero.finetune(model, tokenizer, clients=rows, count=2, messages="turns", **more)
    assert run.history["loss"][-1] < run.history["loss"][0] - 0.3


def test_a_recipe_trains_on_the_rows_it_wants(fedzero, small_model, tmp_path):
    data = [{"q": f"plot {i}", "answers": [{"text": "great film", "label": i % 2}]} for i in range(8)]
    for part in ("train", "test"):
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    (tmp_path / "r.toml").write_text(
        f"""
        name = "right"
        rounds = 1
        algorithm = {{ kind = "decomfl", rate = 1e-3 }}
        federation = {{ clients = 2, cohort = 2 }}
        engine = {{ device = "cpu" }}
        [task]
        kind = "language"
        model = "{small_model("opt")}"
        generated = 2
        [task.text]
        prompt = "{{q}}"
        completion = "{{answers[text]}}"
        where = {{ "answers[label]" = "1" }}
        unfold = ["answers"]
        train = "train.jsonl"
        test = "test.jsonl"
        """
    )
    fedzero("run", tmp_path / "r.toml", "--out", tmp_path / "run", "--data", tmp_path)
    assert history(tmp_path / "run").facts["prompts"] == "4 to train on, 4 to test on"
    again = ("run", tmp_path / "r.toml", "--out", tmp_path / "other", "--data", tmp_path, "--set")
    fedzero(*again, 'task.text.where={"answers[label]"="5"}').refused("none of 8 rows", "task.text.where")
    fedzero(*again, 'task.measure="accuracy"').refused("responses have a loss")


def test_rows_that_are_given_are_wanted(small_model, tmp_path):
    more = {"out": tmp_path, "options": {"text": {"where": {"says": "great film"}}}}
    with pytest.raises(FedzeroError, match="give the rows that are wanted"):
        fedzero.finetune(str(small_model("opt")), clients=[ROWS], **ASK, **more)


def test_the_page_has_what_was_said_before_and_after(small_model, tmp_path):
    model, tokenizer = loaded(small_model("gpt2"))
    more = {"out": tmp_path / "run", "rounds": 1, "options": SAY, "method": fedzero.DeComFL(rate=1e-3)}
    run = fedzero.finetune(model, tokenizer, clients=[ROWS], **ASK | {"completion": "{says}<b>"}, **more)
    rows = history(tmp_path / "run").samples
    assert len(rows) == 3
    assert all(row.prompt.endswith("\nIs it good?") and row.right.endswith("<b>") for row, _ in rows)
    page = run.report(tmp_path / "page.html").read_text()
    assert "What it says" in page
    assert "film&lt;b&gt;" in page or "no plot&lt;b&gt;" in page
