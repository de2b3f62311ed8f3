"""Prompts as tokens, and answers as the tokens that would follow them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from fedzero.errors import FedzeroError
from fedzero.tasks.language.texts import Row, Text

T = TypeVar("T")
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

    def answers(self, text: Text) -> list[list[int]]:
        """The tokens of each answer, as they follow a prompt."""
        tail = text.tail or STAND_IN
        before = self._plain(tail)
        tokens: list[list[int]] = []
        for word in text.answers.values():
            both = self._plain(tail + word if tail[-1].isspace() else f"{tail} {word}")
            if both[: len(before)] != before or len(both) == len(before):
                raise FedzeroError(
                    f"the answer {word!r} does not begin with a token of its own after {tail!r}: choose other words "
                    "with task.text.answers, or let the prompt end with white space"
                )
            tokens.append(both[len(before) :])
            self._expect_known(word, tokens[-1])
        if len(set(map(tuple, tokens))) < len(tokens):
            raise FedzeroError(f"two answers are the same tokens: {list(text.answers.values())}; choose other words")
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

    def prompts(self, text: Text, rows: Sequence[Row], least: int = 0) -> Encoded:
        """All rows. Where a prompt is too long its passage is cut at the end, and nothing else. least: so many tokens
        must fit after each."""
        labels = of_rows(text.answer, rows)
        tokens = self.rendered(text, rows)
        most = self.context - least
        too_long = [i for i, some in enumerate(tokens) if len(some) > most]
        for i in too_long:
            tokens[i] = self.shortened(text, rows[i], most) or self._refuse(text, rows[i], most)
        return Encoded(tokens, labels, rows, len(too_long))

    def rendered(self, text: Text, rows: Sequence[Row]) -> list[list[int]]:
        """Whole prompts."""
        return [self.prefix + some for some in self.plain(of_rows(text.render, rows))]

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of texts, and nothing before or after them."""
        return [list(some) for some in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    def shortened(self, text: Text, row: Row, most: int) -> list[int]:
        """The prompt with as much of its passage as fits into so many tokens; none if that is not enough."""
        least = self.prefix + self._plain(text.render(row, "")) if text.passage else []
        if not least or len(least) > most:
            return []
        passage = str(text.field(text.passage, row))
        kept = self._plain(passage)[: most - len(least)]
        while kept:
            whole = self.prefix + self._plain(text.render(row, self.tokenizer.decode(kept)))
            if len(whole) <= most:
                return whole
            kept = kept[: -max(1, len(whole) - most)]  # tokens may merge differently at the cut
        return least

    def _refuse(self, text: Text, row: Row, most: int) -> NoReturn:
        least = self.prefix + self._plain(text.render(row, "") if text.passage else text.render(row))
        raise FedzeroError(
            f"a prompt has {len(least)} tokens{' without its passage' if text.passage else ''} and the model's "
            f"context is {most}: set task.text.passage to the field that may be cut, or shorten the prompt"
        )


def of_rows(f: Callable[[Row], T], rows: Sequence[Row]) -> list[T]:
    """A function of every row; an error names the field that a row lacks."""
    try:
        return [f(row) for row in rows]
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise FedzeroError(f"a row lacks {error}: rows have the fields {sorted(rows[0])}") from None
