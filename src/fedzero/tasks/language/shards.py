"""Which rows of every client are in a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.oracles.contract import F64
from fedzero.oracles.language import Texts
from fedzero.oracles.responses import Choices, Responses
from fedzero.oracles.reward import Prompts
from fedzero.tasks.language.completing import Completed
from fedzero.tasks.language.encoding import Encoded
from fedzero.tasks.language.generating import Generate
from fedzero.tasks.language.texts import Row, Text
from fedzero.tasks.partition import Indices, Mix, drawn
from fedzero.tasks.persons import numbered


class DrawnPrompts:
    """Which prompts of every client are in a batch."""

    def __init__(self, data: Encoded | Completed, parts: Sequence[Indices], batch: int, mix: Mix | None = None):
        self.data, self.parts, self.size, self.mix, self.clients = data, parts, batch, mix, len(parts)
        self.content: Callable[[], bytes] = bytes
        """SHA-256 of the rows, whichever of them a recipe takes and whatever it makes of them"""
        for client, part in enumerate(parts):
            if not len(part):
                raise FedzeroError(f"client {client} has no rows: use fewer clients or a more even task.partition")

    def rows(self, client: int) -> int:
        part = self.parts[client]
        return len(part) if self.mix is None else self.mix.rows(part, self.size)

    @property
    def no_rows(self) -> str:
        balanced = "task.balanced gives rows weights that depend on the other rows of their batch: leave it out"
        return "" if self.mix is None else balanced

    def held(self, client: int) -> int:
        return len(self.parts[client])

    def taken(self, client: int, places: Indices) -> Any:
        return self._made(self.parts[client][places], None)

    def _made(self, chosen: Indices, weights: F64 | None) -> Any:
        """The batch of these prompts."""
        raise NotImplementedError

    def _drawn(self, keys: Keys, round: int, step: int, client: int) -> tuple[Indices, F64 | None]:
        chosen = drawn(self.parts[client], self.size, keys, round, step, client, self.mix)
        return chosen, None if self.mix is None else self.mix.weights(chosen)


class LanguageShards(DrawnPrompts):
    """Prompts of every client."""

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Texts:
        return self._made(*self._drawn(keys, round, step, client))

    def _made(self, chosen: Indices, weights: F64 | None) -> Texts:
        return Texts(tuple(self.data.tokens[i] for i in chosen), tuple(self.data.labels[i] for i in chosen), weights)


class RewardShards(DrawnPrompts):
    """Prompts of every client, with their rows, and with noise where what follows them is sampled."""

    def __init__(self, data: Encoded, parts: Sequence[Indices], batch: int, mix: Mix | None, generate: Generate):
        super().__init__(data, parts, batch, mix)
        self.generate = generate

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Prompts:
        chosen, weights = self._drawn(keys, round, step, client)
        noise = None
        if self.generate.temperature > 0:
            generator = keys.generator("sampling", round, step, client)
            noise = generator.random((len(chosen), self.generate.max_tokens))
        prompts, asked = tuple(self.data.tokens[i] for i in chosen), tuple(self.data.rows[i] for i in chosen)
        return Prompts(prompts, asked, weights, noise)


class ResponseShards(DrawnPrompts):
    """Prompts of every client with their responses."""

    def __init__(self, data: Completed, parts: Sequence[Indices], batch: int):
        super().__init__(data, parts, batch)
        self.scored = data.scored

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Responses:
        return self._made(*self._drawn(keys, round, step, client))

    def _made(self, chosen: Indices, weights: F64 | None) -> Responses:
        return Responses(tuple(self.data.tokens[i] for i in chosen), tuple(self.scored[i] for i in chosen), weights)


class ChoiceShards(DrawnPrompts):
    """Prompts of every client with every answer."""

    def __init__(
        self, data: Encoded, parts: Sequence[Indices], batch: int, mix: Mix | None, answers: Sequence[Sequence[int]]
    ):
        super().__init__(data, parts, batch, mix)
        self.answers = answers

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Choices:
        return self._made(*self._drawn(keys, round, step, client))

    def _made(self, chosen: Indices, weights: F64 | None) -> Choices:
        labels = tuple(self.data.labels[i] for i in chosen)
        return choices([self.data.tokens[i] for i in chosen], labels, self.answers, weights)


def choices(
    prompts: Sequence[Sequence[int]],
    labels: tuple[int, ...],
    answers: Sequence[Sequence[int]],
    weights: F64 | None = None,
) -> Choices:
    """Every prompt with every answer."""
    rows = Responses(tuple([*p, *a] for p in prompts for a in answers), tuple(map(len, answers)) * len(prompts))
    return Choices(rows, labels, weights)


def persons_of(text: Text, rows: Sequence[Row], person: str) -> Indices:
    """Whose each row is, as numbers. person: a field that the text does not show to the model."""
    if person in text.fields:
        raise FedzeroError(
            f"privacy.person = {person!r} is a field of task.text, too: what names a person is no feature"
        )
    return numbered([[row.get(person) for row in rows]], person)[0]


def mix_of(balanced: bool | dict[str, float], text: Text, labels: Sequence[int]) -> Mix | None:
    """The mix of `task.balanced`."""
    if balanced is False:
        return None
    if not text.answers:
        raise FedzeroError("task.balanced is of labels, and task.text.answers has none: leave it out")
    wanted = dict.fromkeys(text.answers, 1.0) if balanced is True else balanced
    if set(wanted) != set(text.answers):
        raise FedzeroError(
            f"task.balanced names the labels {list(wanted)}, but the answers are for {list(text.answers)}: "
            "give each its share, or write true"
        )
    shares = np.array([wanted[label] for label in text.answers])
    return Mix(np.array(labels), shares / shares.sum())
