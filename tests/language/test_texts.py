"""Prompts word for word, rows from files, answers as single tokens, passages cut and questions kept."""

from __future__ import annotations

import gzip
import json

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from small_language import words

from fedzero.errors import FedzeroError
from fedzero.oracles.language import measured
from fedzero.tasks.language import TEXTS, Text
from fedzero.tasks.language import rows as loader
from fedzero.tasks.language.encoding import Encoder

ROWS = {
    "sst2": ({"sentence": "a fine film", "label": 1}, "a fine film It was", "great"),
    "rte": (
        {"premise": "P.", "hypothesis": "H.", "label": "not_entailment"},
        'P.\nDoes this mean that "H." is true? Yes or No?\n',
        "No",
    ),
    "cb": (
        {"premise": "P.", "hypothesis": "h", "label": "neutral"},
        'Suppose P. Can we infer that "h"? Yes, No, or Maybe?\n',
        "Maybe",
    ),
    "boolq": ({"passage": "P.", "question": "is it so", "label": True}, "P. is it so?\n", "Yes"),
    "wsc": (
        {"text": "T.", "target": {"span1_text": "Mark", "span2_text": "He"}, "label": False},
        'T.\nIn the previous sentence, does the pronoun "He" refer to Mark? Yes or No?\n',
        "No",
    ),
    "wic": (
        {"word": "place", "sentence1": "A.", "sentence2": "B.", "label": True},
        'Does the word "place" have the same meaning in these two sentences? Yes, No?\nA.\nB.\n',
        "Yes",
    ),
    "multirc": (
        {"passage": {"text": "P."}, "questions": {"question": "Q?"}, "answers": {"text": "a", "label": 0}},
        'P.\nQuestion: Q?\nI found this answer "a". Is that correct? Yes or No?\n',
        "No",
    ),
    "larger": (
        {"a": 5, "b": 61, "larger": "61", "sum": "66"},
        "Which is larger, 12 or 57? 57\nWhich is larger, 83 or 9? 83\nWhich is larger, 40 or 46? 46\n"
        "Which is larger, 5 or 61?",
        "61",
    ),
    "addition": ({"a": 5, "b": 61, "sum": "66"}, "12 + 57 = 69\n83 + 9 = 92\n40 + 46 = 86\n5 + 61 =", "66"),
}
REVIEW = Text(
    prompt="{review} It was", answers={"-": "bad", "+": "good"}, label="stars", passage="review", train="a", test="b"
)


@pytest.mark.parametrize("name", TEXTS)
def test_prompts_are_those_of_the_papers(name):
    row, prompt, answer = ROWS[name]
    text = TEXTS[name]
    text.check(generated=not text.answers)
    assert text.render(row) == prompt
    assert text.expected(row) == answer
    if text.answers:
        assert list(text.answers.values())[text.answer(row)] == answer


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if text.answers])
def test_real_rows_can_be_read(name, full_data):
    text = TEXTS[name]
    folder = full_data(text.test.split("/")[0])
    counts = {"sst2": 872, "rte": 277, "cb": 56, "boolq": 3270, "wsc": 104, "wic": 638, "multirc": 4848}
    found = loader.load(text.test, folder, text.unfold)
    assert len(found) == counts[name]
    assert {text.answer(row) for row in found} == set(range(len(text.answers)))
    assert all(text.render(row) for row in found)


def test_braces_in_rows_are_only_text():
    assert REVIEW.render({"review": "{stars} {0}"}) == "{stars} {0} It was"


def test_a_recipe_can_have_a_text_of_its_own():
    written = msgspec.json.decode(msgspec.json.encode(REVIEW), type=Text)
    assert written == REVIEW
    assert written.tail == " It was"


@pytest.mark.parametrize(
    ("change", "words_"),
    [
        ({"answers": {"a": "b"}}, "at least two"),
        ({"prompt": "Is it so?"}, "has no field"),
        ({"prompt": "{open"}, "write {{"),
        ({"passage": "other"}, "is not a field of the prompt"),
    ],
)
def test_texts_that_cannot_work(change, words_):
    with pytest.raises(FedzeroError, match=words_):
        msgspec.structs.replace(REVIEW, **change).check()


# ---- rows


def test_files_of_several_kinds_have_the_same_rows(tmp_path):
    lines = "".join(json.dumps(row) + "\n" for row in ({"a": "1", "b": "x"}, {"a": "2", "b": "y"}))
    (tmp_path / "r.jsonl").write_text(lines + "\n")
    with gzip.open(tmp_path / "r.jsonl.gz", "wt") as file:
        file.write(lines)
    (tmp_path / "r.csv").write_text("a,b\n1,x\n2,y\n")
    found = [loader.load(name, tmp_path) for name in ("r.jsonl", "r.jsonl.gz", "r.csv")]
    assert found[0] == found[1] == found[2] == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]
    assert loader.load(str(tmp_path / "r.csv"), None) == found[0]


def test_lists_are_unfolded():
    row = {"passage": {"text": "P", "questions": [{"q": 1, "answers": ["a", "b"]}, {"q": 2, "answers": ["c"]}]}}
    some = loader._unfolded(loader._unfolded(iter([row]), "passage[questions]"), "questions[answers]")
    assert [(r["passage"]["text"], r["questions"]["q"], r["answers"]) for r in some] == [
        ("P", 1, "a"),
        ("P", 1, "b"),
        ("P", 2, "c"),
    ]


@pytest.mark.parametrize(
    ("content", "words_"),
    [("{'a': 1}\n", "line 1: not JSON"), ("[1]\n", "not a JSON object"), ("", "has no rows"), (b"\xff\n", "cannot be")],
)
def test_files_that_are_no_rows(tmp_path, content, words_):
    path = tmp_path / "r.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FedzeroError, match=words_):
        loader.load("r.jsonl", tmp_path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FedzeroError, match="does not exist"):
        loader.load("none.jsonl", tmp_path)
    with pytest.raises(FedzeroError, match="--data"):
        loader.load("none.jsonl", None)


def test_a_dataset_library_reads_a_folder(tmp_path):
    pytest.importorskip("datasets", reason="datasets is not installed")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert [row["a"] for row in loader.load(f"datasets:{tmp_path / 'd'}:train", None)] == [1, 2]


# ---- tokens


@pytest.fixture(scope="module")
def tokenizer():
    return words()


def test_answers_are_the_tokens_that_would_follow(tokenizer):
    encoder = Encoder(tokenizer, 64)
    for text, between in ((TEXTS["sst2"], " "), (TEXTS["cb"], "")):
        for word, (token,) in zip(text.answers.values(), encoder.answers(text), strict=True):
            assert tokenizer.decode([token]) == between + word


def test_answers_of_several_tokens(tokenizer):
    encoder = Encoder(tokenizer, 64)
    dreadful, good = encoder.answers(msgspec.structs.replace(REVIEW, answers={"-": "dreadful", "+": "good"}))
    assert tokenizer.decode(dreadful) == " dreadful"
    assert (len(dreadful) > 1, len(good)) == (True, 1)
    with pytest.raises(FedzeroError, match="the same tokens"):
        encoder.answers(msgspec.structs.replace(REVIEW, answers={"-": "bad", "+": "bad"}))


@pytest.fixture(scope="module")
def few_words():
    """A tokenizer of whole words, which reads all others as one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {word: i for i, word in enumerate(["<unk>", "a", "film", "It", "was", "good", "bad"])}
    plain = Tokenizer(models.WordLevel(known, "<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")


def test_answers_outside_the_vocabulary_are_refused_by_name(few_words):
    encoder = Encoder(few_words, 64)
    good = msgspec.structs.replace(REVIEW, answers={"-": "bad", "+": "good"})
    assert encoder.answers(good) == [[6], [5]]
    for answers, named in (({"-": "bad", "+": "splendid"}, "splendid"), ({"-": "dull", "+": "splendid"}, "dull")):
        with pytest.raises(FedzeroError, match=f"the answer '{named}' is not in the vocabulary .* '<unk>'"):
            encoder.answers(msgspec.structs.replace(REVIEW, answers=answers))
    said = msgspec.structs.replace(REVIEW, answers={})
    encoder.expect_known(said, [{"review": "a film", "stars": "good"}] * 2)
    with pytest.raises(FedzeroError, match="the answer '17' is not in the vocabulary"):
        encoder.expect_known(said, [{"review": "a film", "stars": "good"}, {"review": "a film", "stars": "17"}])


def test_what_a_tokenizer_puts_in_front_stays_and_what_it_puts_behind_goes(tokenizer):
    class Ends:
        def __call__(self, text, add_special_tokens=True):
            many = tokenizer(text, add_special_tokens=False)["input_ids"]
            ends = (lambda ids: [0, *ids, 0]) if add_special_tokens else list
            return {"input_ids": ends(many) if isinstance(text, str) else [ends(ids) for ids in many]}

    encoder = Encoder(Ends(), 64)
    assert encoder.prefix == [0]
    (tokens,) = encoder.prompts(REVIEW, [{"review": "a film", "stars": "+"}]).tokens
    assert tokens == [0, *tokenizer("a film It was")["input_ids"]]


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=200), st.integers(12, 60))
def test_passages_are_cut_and_questions_are_not(passage, context):
    tokenizer = _TOKENIZER
    encoder = Encoder(tokenizer, context)
    row = {"passage": passage, "question": "is it so", "label": True}
    encoded = encoder.prompts(TEXTS["boolq"], [row])
    (tokens,) = encoded.tokens
    assert len(tokens) <= context
    text = tokenizer.decode(tokens)
    assert text.endswith(" is it so?\n")
    whole = tokenizer(TEXTS["boolq"].render(row))["input_ids"]
    assert encoded.cut == (len(whole) > context)
    assert tokens == whole or encoded.cut


_TOKENIZER = words()


def test_a_prompt_that_cannot_be_cut(tokenizer):
    with pytest.raises(FedzeroError, match=r"without its passage.*context is 5"):
        Encoder(tokenizer, 5).prompts(TEXTS["boolq"], [ROWS["boolq"][0]])
    with pytest.raises(FedzeroError, match=r"task\.text\.passage"):
        Encoder(tokenizer, 5).prompts(TEXTS["wic"], [ROWS["wic"][0]])


def test_rows_that_do_not_fit_the_text(tokenizer):
    encoder = Encoder(tokenizer, 64)
    with pytest.raises(FedzeroError, match=r"lacks 'review': rows have the fields \['stars'\]"):
        encoder.prompts(REVIEW, [{"stars": "+"}])
    with pytest.raises(FedzeroError, match="the label '5', for which"):
        encoder.prompts(REVIEW, [{"stars": 5, "review": ""}])


# ---- what is measured


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_metrics_are_those_of_scikit_learn(pairs):
    labels, said = (np.array(column) for column in zip(*pairs, strict=True))
    logits = torch.nn.functional.one_hot(torch.from_numpy(said), 3).float()
    truth = torch.from_numpy(labels)
    assert float(measured("f1", logits, truth)) == pytest.approx(1 - f1_score(labels, said, average="macro"))
    assert float(measured("accuracy", logits, truth)) == pytest.approx(np.mean(labels != said))
