"""Prompts as tokens, and answer words as one token each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedzero.errors import FedzeroError
from fedzero.tasks.language.texts import Row, Text

STAND_IN = "x"
"""In the place of a gap at the end of a prompt, so that an answer gets the blank before it."""


@dataclass(frozen=True)
class Encoded:
    """Tokens of every prompt, the right answers, the rows, and how many passages were cut to fit."""

    tokens: list[list[int]]
    labels: list[int]
    rows: Sequence[Row]
    cut: int


class Encoder:
    """A tokenizer of `transformers`, and how many tokens the model reads."""

    def __init__(self, tokenizer: Any, context: int):
        self.tokenizer, self.context = tokenizer, context
        bare = self._plain(STAND_IN)
        whole = list(tokenizer(STAND_IN)["input_ids"])
        begins = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
        self.prefix = whole[:begins]
        """Tokens every text begins with (not those it might end with: the answer follows)."""

    def _plain(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def answers(self, text: Text) -> list[int]:
        """The token of each answer word, as it follows a prompt."""
        tail = text.tail or STAND_IN
        before = self._plain(tail)
        tokens = []
        for word in text.answers.values():
            both = self._plain(tail + word if tail[-1].isspace() else f"{tail} {word}")
            if both[: len(before)] != before or len(both) != len(before) + 1:
                raise FedzeroError(
                    f"the answer word {word!r} is {len(both) - len(before)} tokens of this tokenizer, not one: "
                    "choose other words with task.text.answers"
                )
            self._expect_known(word, both[-1:])
            tokens.append(both[-1])
        if len(set(tokens)) < len(tokens):
            raise FedzeroError(f"two answers are the same token: {list(text.answers.values())}; choose other words")
        return tokens

    def _expect_known(self, answer: str, tokens: Sequence[int]) -> None:
        """Refuse an answer that the tokenizer reads as its token for everything unknown: that would be trained."""
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        if unknown is not None and unknown in tokens:
            raise FedzeroError(
                f"the answer {answer!r} is not in the vocabulary of this tokenizer, which reads "
                f"{self.tokenizer.unk_token!r} in its place: choose other words with task.text.answers, or other labels"
            )

    def expect_known(self, text: Text, rows: Sequence[Row]) -> None:
        """The same of right answers that are to be generated."""
        answers = list(dict.fromkeys(text.expected(row) for row in rows))
        found = self.tokenizer([f" {answer}" for answer in answers], add_special_tokens=False)["input_ids"]
        for answer, tokens in zip(answers, found, strict=True):
            self._expect_known(answer, tokens)

    def prompts(self, text: Text, rows: Sequence[Row]) -> Encoded:
        """All rows. Where a prompt is too long its passage is cut at the end, and nothing else."""
        try:
            labels, prompts = [text.answer(row) for row in rows], [text.render(row) for row in rows]
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise FedzeroError(f"a row lacks {error}: rows have the fields {sorted(rows[0])}") from None
        found = self.tokenizer(prompts, add_special_tokens=False)["input_ids"]
        tokens = [self.prefix + list(some) for some in found]
        too_long = [i for i, some in enumerate(tokens) if len(some) > self.context]
        for i in too_long:
            tokens[i] = self._shortened(text, rows[i])
        return Encoded(tokens, labels, rows, len(too_long))

    def _shortened(self, text: Text, row: Row) -> list[int]:
        """The prompt with as much of its passage as fits."""
        least = self.prefix + self._plain(text.render(row, "") if text.passage else text.render(row))
        if not text.passage or len(least) > self.context:
            raise FedzeroError(
                f"a prompt has {len(least)} tokens{' without its passage' if text.passage else ''} and the model's "
                f"context is {self.context}: set task.text.passage to the field that may be cut, or shorten the prompt"
            )
        passage = str(text.field(text.passage, row))
        kept = self._plain(passage)[: self.context - len(least)]
        while kept:
            whole = self.prefix + self._plain(text.render(row, self.tokenizer.decode(kept)))
            if len(whole) <= self.context:
                return whole
            kept = kept[: -max(1, len(whole) - self.context)]  # tokens may merge differently at the cut
        return least
