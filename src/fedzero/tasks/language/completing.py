"""Prompts with their responses as tokens.

Both are tokenised together, as one text, and the tokens of the prompt alone must be the first of them: where a token
spans the boundary there is no place at which the response begins, and the row is refused. After the response stands the
token that ends a text; of a chat template's own the first, and what the template writes after it is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import UnsetType

from fedzero.errors import FedzeroError
from fedzero.tasks.language.encoding import Encoder, of_rows
from fedzero.tasks.language.texts import Row, Text
from fedzero.tasks.partition import Indices


@dataclass
class Completed:
    """Tokens of rows, prompt and response; `scored`: how many are the response. `kept`: which of the rows these are,
    of so many in `all`; `cut` and `left`: how many prompts lost tokens of their passage, or from their left."""

    all: int
    tokens: list[list[int]] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    cut: int = 0
    left: int = 0

    @property
    def labels(self) -> list[int]:
        """No row has one."""
        return [0] * len(self.tokens)

    @property
    def prompts(self) -> list[list[int]]:
        return [row[:-size] for row, size in zip(self.tokens, self.scored, strict=True)]

    @property
    def dropped(self) -> int:
        return self.all - len(self.kept)

    def parts(self, parts: Sequence[Indices]) -> list[Indices]:
        """Positions among all rows as positions among those that were kept."""
        places = np.full(self.all, -1)
        places[self.kept] = np.arange(len(self.kept))
        return [places[part][places[part] >= 0] for part in parts]

    def digest(self) -> str:
        """Of tokens and mask: 16 hexadecimal digits."""
        found = hashlib.sha256()
        for row, size in zip(self.tokens, self.scored, strict=True):
            found.update(np.array([len(row), size, *row], "<i8").tobytes())
        return found.hexdigest()[:16]


@dataclass(frozen=True)
class Completer:
    """Of a text, with an encoder and the tokens that `ends` a text; a prompt has `most` tokens at most."""

    text: Text
    encoder: Encoder
    ends: frozenset[int]
    most: int

    def rows(self, rows: Sequence[Row]) -> Completed:
        """All rows with their responses, or those that fit."""
        prompts, responses = self._split(rows)
        found, too_long = Completed(len(rows)), 0
        for i, (row, prompt, response) in enumerate(zip(rows, prompts, responses, strict=True)):
            room = min(self.encoder.context - len(response), self.most)
            fitting = prompt if len(prompt) <= room else self._fitted(row, prompt, room, found)
            if fitting is None:
                too_long += 1
                continue
            found.tokens.append(fitting + response)
            found.scored.append(len(response))
            found.rows.append(row)
            found.kept.append(i)
        if too_long and self.text.overlong != "drop":
            raise FedzeroError(
                f"{too_long:,} of {len(rows):,} rows are longer than the {self.encoder.context:,} tokens for prompt "
                f"and response (of a prompt {self.most:,}), and a response is not cut: set task.text.passage to what "
                'may be, or task.text.overlong = "cut" (prompts lose tokens at their left) or "drop"'
            )
        if not found.kept:
            raise FedzeroError(f"none of {len(rows):,} rows fits into {self.encoder.context:,} tokens")
        return found

    def _fitted(self, row: Row, prompt: list[int], room: int, found: Completed) -> list[int] | None:
        """A prompt that is too long in so many tokens, if that may be."""
        if self.text.passage and (shorter := self.encoder.shortened(self.text, row, room)):
            found.cut += 1
            return shorter
        prefix = len(self.encoder.prefix) if isinstance(self.text.messages, UnsetType) else 0
        if self.text.overlong == "cut" and room > prefix:
            found.left += 1
            return prompt[:prefix] + prompt[len(prompt) - room + prefix :]
        return None

    def prompts(self, rows: Sequence[Row]) -> list[list[int]]:
        """Prompts alone, to be gone on with; those that are too long are cut as if they had a response."""
        if isinstance(self.text.messages, UnsetType):
            whole = self.encoder.rendered(self.text, rows)
        else:
            whole = self.encoder.plain(of_rows(lambda row: self._chat(self._asked(row), True), rows))
        each, counts = zip(rows, whole, strict=True), Completed(len(rows))
        found = [p if len(p) <= self.most else self._fitted(row, p, self.most, counts) for row, p in each]
        if any(prompt is None for prompt in found):
            raise FedzeroError(
                f"a prompt has {max(map(len, whole)):,} tokens and there is room for {self.most:,}: set "
                'task.text.passage, or task.text.overlong = "cut"'
            )
        return [prompt for prompt in found if prompt is not None]

    def right(self, row: Row) -> str:
        """The response of a row as text."""
        if isinstance(self.text.messages, UnsetType):
            return self.text.response(row)
        return str(self._turns(row)[-1]["content"])

    def _split(self, rows: Sequence[Row]) -> tuple[list[list[int]], list[list[int]]]:
        """Tokens of prompts and of responses, end token included, as they are in the text of both."""
        if isinstance(self.text.messages, UnsetType):
            before = of_rows(self.text.render, rows)
            whole = [_joined(p, r) for p, r in zip(before, of_rows(self.text.response, rows), strict=True)]
            prefix = self.encoder.prefix
        else:
            before = [self._chat(self._turns(row)[:-1], True) for row in rows]
            whole = [self._chat(self._turns(row), False) for row in rows]
            prefix = []
            if other := next((w for p, w in zip(before, whole, strict=True) if not w.startswith(p)), None):
                raise FedzeroError(
                    "the chat template writes another text before an answer that is there than where it asks for one: "
                    f"{other[:200]!r}; give task.text.prompt and task.text.completion"
                )
        prompts, both = self.encoder.plain(before), self.encoder.plain(whole)
        joined = [i for i, (p, b) in enumerate(zip(prompts, both, strict=True)) if b[: len(p)] != p]
        if joined:
            self._refuse_joined(prompts[joined[0]], both[joined[0]], len(joined), len(rows))
        responses = [self._ended(b[len(p) :]) for p, b in zip(prompts, both, strict=True)]
        return [prefix + prompt for prompt in prompts], responses

    def _ended(self, response: list[int]) -> list[int]:
        """With the token that ends a text, the template's or the model's."""
        if not isinstance(self.text.messages, UnsetType):
            own = next((i for i, token in enumerate(response) if token in self.ends), None)
            if own is not None:
                return response[: own + 1]
        return [*response, self.end]

    @property
    def end(self) -> int:
        found: int | None = getattr(self.encoder.tokenizer, "eos_token_id", None)
        if found is None and not self.ends:
            raise FedzeroError("neither tokenizer nor model has a token that ends a text, which a response needs")
        return min(self.ends) if found is None else found

    def _refuse_joined(self, prompt: list[int], both: list[int], count: int, rows: int) -> None:
        at = next(i for i, token in enumerate([*prompt, -1]) if both[i : i + 1] != [token])
        piece = self.encoder.tokenizer.decode(both[at : at + 1])
        raise FedzeroError(
            f"in {count:,} of {rows:,} rows the tokenizer reads the end of the prompt together with the beginning of "
            f"the response, as the token {piece!r}: let the prompt end with a word or a line break, and the response "
            "begin with a letter (a blank at the end of task.text.prompt is better left out: one is put between)"
        )

    def _asked(self, row: Row) -> Sequence[Mapping[str, Any]]:
        """A conversation as far as the model is to go on with it."""
        turns = self._turns(row, answered=False)
        return turns[:-1] if turns[-1].get("role") == "assistant" else turns

    def _turns(self, row: Row, answered: bool = True) -> Sequence[Mapping[str, Any]]:
        assert not isinstance(self.text.messages, UnsetType)
        (turns,) = of_rows(lambda each: self.text.field(str(self.text.messages), each), [row])
        if not isinstance(turns, Sequence) or not turns or not all(_is_turn(turn) for turn in turns):
            raise FedzeroError(f"a row's {self.text.messages!r} is no list of turns such as {{role, content}}")
        if answered and (turns[-1]["role"] != "assistant" or len(turns) < 2):
            raise FedzeroError(f"a row's {self.text.messages!r} does not end with an assistant's turn after another")
        return turns

    def _chat(self, turns: Sequence[Mapping[str, Any]], asked: bool) -> str:
        if getattr(self.encoder.tokenizer, "chat_template", None) is None:
            raise FedzeroError("the tokenizer has no chat template: give task.text.prompt and task.text.completion")
        try:
            found: str = self.encoder.tokenizer.apply_chat_template(
                [dict(turn) for turn in turns], tokenize=False, add_generation_prompt=asked
            )
        except Exception as error:  # of the template's own, such as roles that do not alternate
            raise FedzeroError(f"the chat template refuses a conversation: {error}") from error
        return found


def completed_facts(train: Completed, test: Completed, trusted: bool) -> dict[str, str]:
    """What is said of rows that are left out or cut, and the digests; those of a site's own data stay there, where
    they would tell whoever guesses the data that the guess is right."""
    counts = {
        "rows too long, left out": (train.dropped, test.dropped),
        "prompts cut at their left": (train.left, test.left),
        "response tokens": (sum(train.scored), sum(test.scored)),
    }
    facts = {name: f"{first:,} and {second:,}" for name, (first, second) in counts.items() if first or second}
    return facts | ({"tokens and masks": f"{train.digest()} and {test.digest()}"} if trusted else {})


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, Mapping) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)


def _joined(prompt: str, response: str) -> str:
    """With a blank between, unless there is white space already, or nothing follows."""
    gap = "" if not response or not prompt or prompt[-1].isspace() or response[0].isspace() else " "
    return prompt + gap + response
