"""Prompts and responses as tokens: one text, a checked boundary, nothing cut that should not be."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_language import words

from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.tasks.language.completing import Completer, completed_facts
from fedzero.tasks.language.encoding import Encoder
from fedzero.tasks.language.saying import exact_match, normalised, token_f1
from fedzero.tasks.language.texts import Text

TOKENIZER = words()
END = TOKENIZER.eos_token_id
ASK = Text(prompt="{plot}\nIs it good?", completion="{answer}", passage="plot", train="a", test="b")
CHAT = """{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def completer(text=ASK, context=64, most=60, tokenizer=TOKENIZER):
    return Completer(text, Encoder(tokenizer, context), frozenset([END]), most)


def ids(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@settings(deadline=None, max_examples=60)
@given(st.text("abc dé\n", max_size=80), st.text("abc dé", min_size=1, max_size=20).map(str.strip).filter(bool))
def test_tokens_are_those_of_one_text_and_an_end(plot, answer):
    done = completer(context=300, most=200).rows([{"plot": plot, "answer": answer}])
    (tokens,), (scored,) = done.tokens, done.scored
    assert tokens == [*ids(f"{plot}\nIs it good? {answer}"), END]
    assert tokens[:-scored] == ids(f"{plot}\nIs it good?")


def test_what_does_not_fit_is_refused_cut_where_it_may_be_or_dropped_and_counted():
    long, row = {"plot": "great " * 80, "answer": "great"}, {"plot": "great", "answer": "Yes"}
    spoken = {"plot": "great", "answer": "bad good " * 40}
    found = completer().rows([row, long])
    assert (found.cut, found.left, found.dropped) == (1, 0, 0)
    assert len(found.tokens[1]) <= 64
    assert TOKENIZER.decode(found.tokens[1]).endswith("\nIs it good? great</s>")
    bare = msgspec.structs.replace(ASK, passage="")
    with pytest.raises(FedzeroError, match=r"1 of 2 rows are longer than the 64 tokens .* a response is not cut"):
        completer(bare).rows([row, long])
    left = completer(msgspec.structs.replace(bare, overlong="cut")).rows([row, long])
    assert (left.left, len(left.tokens[1])) == (1, 62)  # the prompt's 60, the response and its end
    assert TOKENIZER.decode(left.tokens[1]).endswith("great great \nIs it good? great</s>")
    with pytest.raises(FedzeroError, match="1 of 2 rows"):  # a response is never cut
        completer(msgspec.structs.replace(bare, overlong="cut")).rows([row, spoken])
    dropped = completer(msgspec.structs.replace(bare, overlong="drop")).rows([long, row, spoken])
    assert (dropped.dropped, dropped.kept) == (2, [1])
    assert [part.tolist() for part in dropped.parts([[0, 1], [2]])] == [[0], []]
    assert dropped.digest() == completer(bare).rows([row]).digest() != left.digest()


def test_digests_of_a_sites_rows_stay_there():
    rows = completer().rows([{"plot": "great", "answer": "Yes"}])
    said = completed_facts(rows, rows, trusted=True)
    assert said == {"response tokens": "2 and 2", "tokens and masks": f"{rows.digest()} and {rows.digest()}"}
    assert completed_facts(rows, rows, trusted=False) == {"response tokens": "2 and 2"}


def test_a_token_over_the_boundary_is_refused():
    text = Text(prompt="{a} ", completion="{b}", train="a", test="b")
    with pytest.raises(FedzeroError, match=r"in 1 of 2 rows the tokenizer reads the end .* as the token ' great'"):
        completer(text).rows([{"a": "it is", "b": "great"}, {"a": "it is", "b": ""}])


def test_conversations_are_those_of_the_template():
    tokenizer = words()
    tokenizer.chat_template = CHAT
    text = Text(messages="turns", train="a", test="b")
    text.check()
    turns = [{"role": "user", "content": "is it great"}, {"role": "assistant", "content": "Yes"}]
    done = completer(text, tokenizer=tokenizer).rows([{"turns": turns}])
    whole = ids("<user>is it great</s>\n<assistant>Yes</s>")
    assert done.tokens == [whole]
    assert TOKENIZER.decode(whole[-done.scored[0] :]) == "Yes</s>"
    asked = completer(text, tokenizer=tokenizer)
    assert asked.prompts([{"turns": turns}, {"turns": turns[:1]}]) == [whole[: -done.scored[0]]] * 2
    for odd in ([], turns[:1], [turns[1]], "words", [{"role": "user"}]):
        with pytest.raises(FedzeroError, match="a row's 'turns'"):
            asked.rows([{"turns": odd}])
    with pytest.raises(FedzeroError, match="no chat template"):
        completer(text).rows([{"turns": turns}])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answers": {"a": "b", "c": "d"}}, "answers to choose from and a response"),
        ({"messages": "turns", "completion": msgspec.UNSET}, "writes the whole prompt"),
        ({"messages": "turns"}, "a completion and messages"),
        ({"completion": "{answer!r}"}, "task.text.completion has a format"),
        ({"completion": "{answer.x}"}, "write a name"),
        ({"prompt": "Why?", "passage": ""}, "prompt = 'Why\\?' has no field"),
    ],
)
def test_texts_that_cannot_work(change, said):
    with pytest.raises(FedzeroError, match=said):
        msgspec.structs.replace(ASK, **change).check()


def test_new_keys_are_in_no_recipe_that_does_not_use_them():
    table = {"kind": "language", "text": msgspec.to_builtins(Text(prompt="{a}", train="a", test="b"))}
    written = msgspec.json.encode(recipes.task(table)).decode()
    assert not [key for key in ("completion", "messages", "overlong", "where", "generated") if f'"{key}"' in written]


def test_squads_words():
    assert normalised("The  cat's, a Hat!") == "cats hat"
    assert exact_match("an Apple.", "apple") == 1
    assert token_f1("the red red car", "a red car") == pytest.approx(2 * (2 / 3) / (2 / 3 + 1))
    assert (token_f1("", "the"), token_f1("", "cat")) == (1, 0)


@settings(deadline=None)
@given(*[st.lists(st.sampled_from("bcdx"), min_size=1, max_size=8)] * 2)
def test_f1_is_the_mean_of_precision_and_recall(said, right):
    both = (Counter(said) & Counter(right)).total()
    precision, recall = both / len(said), both / len(right)
    wanted = 2 * precision * recall / (precision + recall) if both else 0.0
    assert token_f1(" ".join(said), " ".join(right)) == pytest.approx(wanted)
