"""The text of a language task: a prompt with gaps, an answer for each label or a completion, and its rows.

    Text(prompt="{sentence} It was", answers={"0": "terrible", "1": "great"}, train="train.jsonl", test="dev.jsonl")
    Text(prompt="Question: {question}\nAnswer:", completion="{answer}", train="train.jsonl", test="dev.jsonl")

The prompts of the first seven are those of MeZO, which DeComFL uses as well; the last two are of rows that are made
(made.py), and their answers are generated. A recipe can have a text of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from fedzero.errors import FedzeroError
from fedzero.model.value import Checked

Row = Mapping[str, Any]
FIELD = re.compile(r"(?!\d{10})[^.!:{}\[\]]+(\[(?!\d{10})[^{}\[\]]+\])*")
"""A field of a row, perhaps one inside it; `sentence.__class__` would be what Python knows of it, not what it says."""


class Text(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The question about a row, and its possible answers."""

    prompt: str = ""
    """with fields of a row in braces: `{sentence} It was`; `{target[span1_text]}` reaches into one"""
    answers: dict[str, str] = field(default_factory=dict)
    """label, as text (`true` for a boolean) → its answer; none where the label is the answer, for a reward"""
    label: str = "label"
    """the field with the label, or with the right answer"""
    passage: str = ""
    """the field that is cut where a prompt is longer than the model can read"""
    train: str
    """rows to train on: a file, as below"""
    test: str
    """files, JSON lines or CSV, perhaps gzipped; in the data folder unless the path is absolute"""
    unfold: tuple[str, ...] = ()
    """fields that are lists, outermost first: every element makes a row, with the element under the list's last name"""
    completion: str | UnsetType = UNSET
    """in the place of answers, what the model shall say after the prompt, with fields of a row in braces: `{answer}`. A
    blank stands between, unless the prompt ends or the completion begins with white space"""
    messages: str | UnsetType = UNSET
    """in the place of prompt and completion, the field with a conversation, a list of {role, content}: its last turn,
    the assistant's, is the response. The tokenizer's chat template writes it"""
    overlong: Literal["drop", "cut"] | UnsetType = UNSET
    """what becomes of rows that are longer than the model reads, prompt and response together: `drop` leaves them out,
    and the facts of the run say how many; `cut` takes tokens off the left of the prompt; default: they are refused. A
    response is never cut"""
    where: dict[str, str] | UnsetType = UNSET
    """only the rows whose fields have these values, as text: { "answers[label]" = "1" }"""

    @property
    def responds(self) -> bool:
        """Whether a response is trained, not a choice or a reward."""
        return not (isinstance(self.completion, UnsetType) and isinstance(self.messages, UnsetType))

    def check(self, generated: bool = False) -> None:
        """generated: the model is not asked to choose from the answers."""
        if self.responds:
            self._check_response(generated)
        elif len(self.answers) < 2 and not generated:
            raise FedzeroError(
                f"task.text.answers has {len(self.answers)} answers: give at least two, task.text.completion, or set "
                'task.measure = "reward"'
            )
        gaps, fields = self.gaps, self.fields
        for name in fields:
            if not FIELD.fullmatch(name):
                raise FedzeroError(f"task.text has the field {name!r}: write a name, or name[inner] to reach into it")
        if not gaps and isinstance(self.messages, UnsetType):
            raise FedzeroError(f"task.text.prompt = {self.prompt!r} has no field: write one in braces")
        if self.passage and self.passage not in gaps:
            raise FedzeroError(
                f"task.text.passage = {self.passage!r} is not a field of the prompt, which has {list(gaps)}"
            )
        for name in fields:
            if "." in name:  # of a Python object one could reach anything from there
                raise FedzeroError(f"task.text names the field {name!r}: reach into a field with brackets, as a[b]")

    def _check_response(self, generated: bool) -> None:
        if generated:
            raise FedzeroError('task.text has a response to train, and measure = "reward" has none: leave one out')
        if self.answers:
            raise FedzeroError("task.text has answers to choose from and a response to train: leave one out")
        if isinstance(self.completion, UnsetType):
            if self.prompt or self.passage:
                raise FedzeroError("task.text.messages writes the whole prompt: leave out prompt and passage")
        elif not isinstance(self.messages, UnsetType):
            raise FedzeroError("task.text has a completion and messages: leave one out")

    @property
    def gaps(self) -> tuple[str, ...]:
        """Fields of a row in the prompt."""
        return _gaps(self.prompt, "prompt")

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields of a row that are read."""
        filtered = () if isinstance(self.where, UnsetType) else tuple(self.where)
        said = () if isinstance(self.completion, UnsetType) else _gaps(self.completion, "completion")
        turns = () if isinstance(self.messages, UnsetType) else (self.messages,)
        return (*self.gaps, *said, *turns, *filtered, self.label, *self.unfold)

    @property
    def tail(self) -> str:
        """The text behind the last gap."""
        *_, (text, name, _, _) = Formatter().parse(self.prompt)
        return text if name is None else ""

    def render(self, row: Row, passage: str | None = None) -> str:
        """The prompt of a row; with another passage, if one is given."""
        return _Renderer(self.passage if passage is not None else None, passage).vformat(self.prompt, (), row)

    def response(self, row: Row) -> str:
        """What the model shall say after the prompt of a row."""
        assert not isinstance(self.completion, UnsetType)
        return _Renderer(None, None).vformat(self.completion, (), row)

    def wants(self, row: Row) -> bool:
        """Whether the row is among those `where` leaves."""
        wanted = {} if isinstance(self.where, UnsetType) else self.where
        return all(_as_text(self.field(name, row)) == value for name, value in wanted.items())

    def field(self, name: str, row: Row) -> Any:
        return Formatter().get_field(name, (), row)[0]

    def answer(self, row: Row) -> int:
        """Which of the answers is right; 0 where there are none to choose from."""
        if not self.answers:
            return 0
        text, labels = self._label(row), list(self.answers)
        if text not in labels:
            raise FedzeroError(f"a row has the label {text!r}, for which task.text.answers has no word: {labels}")
        return labels.index(text)

    def expected(self, row: Row) -> str:
        """The right answer as text: the word of the row's label, or the label itself where there are no words."""
        return list(self.answers.values())[self.answer(row)] if self.answers else self._label(row)

    def _label(self, row: Row) -> str:
        return _as_text(self.field(self.label, row))


def _as_text(value: Any) -> str:
    """A value of a row as a recipe has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gaps(template: str, key: str) -> tuple[str, ...]:
    """Fields of a row, and nothing that makes more of them than they are: `{sentence:>9}` would pad, `!r` quote."""
    try:
        found = [part[1:] for part in Formatter().parse(template) if part[1] is not None]
        for name, spec, conversion in found:
            if spec or conversion:
                raise FedzeroError(
                    f"task.text.{key} has a format ({conversion or spec}) for the field {name}: write {{{name}}}"
                )
        return tuple(str(name) for name, _, _ in found)
    except ValueError as error:
        raise FedzeroError(f"task.text.{key} = {template!r}: {error}; write {{{{ for a brace") from None


class _Renderer(Formatter):
    def __init__(self, name: str | None, text: str | None):
        self.name, self.text = name, text

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        if field_name == self.name:
            return self.text, field_name
        if "." in field_name:
            raise AttributeError(field_name)
        return super().get_field(field_name, args, kwargs)


_YES_NO = "Yes or No?\n"
_TRUTH = {"true": "Yes", "false": "No"}


def _superglue(
    name: str, prompt: str, answers: dict[str, str], passage: str = "", test: str = "val", **more: Any
) -> Text:
    train, test = (f"superglue/{name}/{part}.jsonl.gz" for part in ("train", test))
    return Text(prompt=prompt, answers=answers, passage=passage, train=train, test=test, **more)


def _pairs(prompt: str, label: str) -> Text:
    return Text(prompt=prompt, label=label, train="made:pairs:train", test="made:pairs:test")


TEXTS: dict[str, Text] = {
    "sst2": Text(
        prompt="{sentence} It was",
        answers={"0": "terrible", "1": "great"},
        passage="sentence",
        train="sst2/train.jsonl.gz",
        test="sst2/dev.jsonl.gz",
    ),
    "rte": _superglue(
        "RTE",
        '{premise}\nDoes this mean that "{hypothesis}" is true? ' + _YES_NO,
        {"entailment": "Yes", "not_entailment": "No"},
        "premise",
    ),
    "cb": _superglue(
        "CB",
        'Suppose {premise} Can we infer that "{hypothesis}"? Yes, No, or Maybe?\n',
        {"entailment": "Yes", "contradiction": "No", "neutral": "Maybe"},
        "premise",
    ),
    # the training rows have no titles either
    "boolq": _superglue("BoolQ", "{passage} {question}?\n", _TRUTH, "passage", test="val_notitle"),
    "wsc": _superglue(
        "WSC",
        '{text}\nIn the previous sentence, does the pronoun "{target[span2_text]}" refer to {target[span1_text]}? '
        + _YES_NO,
        _TRUTH,
        "text",
    ),
    "wic": _superglue(
        "WiC",
        'Does the word "{word}" have the same meaning in these two sentences? Yes, No?\n{sentence1}\n{sentence2}\n',
        _TRUTH,
    ),
    "multirc": _superglue(
        "MultiRC",
        '{passage[text]}\nQuestion: {questions[question]}\nI found this answer "{answers[text]}". Is that correct? '
        + _YES_NO,
        {"1": "Yes", "0": "No"},
        "passage[text]",
        label="answers[label]",
        unfold=("passage[questions]", "questions[answers]"),
    ),
    "larger": _pairs(
        "Which is larger, 12 or 57? 57\nWhich is larger, 83 or 9? 83\nWhich is larger, 40 or 46? 46\n"
        "Which is larger, {a} or {b}?",
        "larger",
    ),
    "addition": _pairs("12 + 57 = 69\n83 + 9 = 92\n40 + 46 = 86\n{a} + {b} =", "sum"),
}
