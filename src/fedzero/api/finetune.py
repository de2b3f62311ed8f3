"""Fine-tuning language models of `transformers` by what clients evaluate: rows, a prompt, and answers to choose from.

run = fedzero.finetune(model, tokenizer, clients=[rows_a, rows_b], test=rows, prompt="{sentence} It was",
                       answers={"0": "terrible", "1": "great"}, rounds=500, out="runs/reviews")
run.model.save_pretrained("reviews")

With a completion the loss is that of the response, with the end of the text:

run = fedzero.finetune(model, tokenizer, clients=[rows_a, rows_b], prompt="Question: {question}\nAnswer:",
                       completion="{answer}", rounds=500, out="runs/answers")
run.generate([{"question": "Why?"}])

With a reward the model generates, and a function of the row and the text says how good that is:

run = fedzero.finetune(model, tokenizer, clients=[rows_a, rows_b], prompt="{a} + {b} =",
                       reward=lambda row, text: text.strip() == str(row["a"] + row["b"]), rounds=500, out="runs/sums")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedzero.api import given, persons
from fedzero.api.options import RunOptions, chosen
from fedzero.api.runs import Run
from fedzero.api.tables import partitioned
from fedzero.api.train import DEFAULT, partition_of, recipe_of, trained
from fedzero.api.validation import held_out, share_of
from fedzero.directions import Keys
from fedzero.errors import Invalid
from fedzero.methods.contract import Method
from fedzero.model.numbers import PositiveInt
from fedzero.model.value import Checked, quoted
from fedzero.recipe.environment import Environment
from fedzero.tasks.language.given import GIVEN, InMemoryModel
from fedzero.tasks.language.rewards import Function, Reward
from fedzero.tasks.language.texts import Row
from fedzero.tasks.partition import Iid, Partition, split
from fedzero.tasks.persons import split_persons

TRAIN: Mapping[str, Any] = {"all": {"kind": "full"}, "layers": {"kind": "layers"}, "lora": {"kind": "lora"}}


def finetune(
    model: Any,
    tokenizer: Any = None,
    *,
    clients: Sequence[Any],
    prompt: str = "",
    answers: Mapping[Any, str] | None = None,
    completion: str | None = None,
    messages: str | None = None,
    reward: Callable[[Row, str], float] | Reward | Mapping[str, Any] | None = None,
    test: Sequence[Row] | None = None,
    label: str = "label",
    passage: str = "",
    train: str | Mapping[str, Any] = "all",
    count: int | None = None,
    method: Method | Mapping[str, Any] | str | None = None,
    cohort: int | None = None,
    batch: int = 32,
    dtype: str = "float32",
    options: Mapping[str, Any] | None = None,
    device: str = "auto",
    partition: str | Partition | None = None,
    validation: float | Sequence[Row] | None = None,
    chunk: int | None = None,
    **run: Unpack[RunOptions],
) -> Run:
    """Fine-tune a causal language model on rows with labels; `run.model` can be saved with `save_pretrained`.

    model: a model of `transformers`, trained in place, with its tokenizer; or the name of one (hub, folder, GGUF file),
        which is loaded as `dtype`.
    clients: a list with the rows (dictionaries, a frame, a dataset of Hugging Face) of each client; or, with `count`,
        rows dealt out to so many, by `partition` as of `fedzero.train` (default: "iid"), or by a partitioner of Flower
        Datasets, which counts clients itself.
    prompt: with fields of a row in braces. answers: by label, what should follow the prompt, to choose from.
    completion: in their place, what the model shall say after the prompt, with fields of a row in braces.
    messages: in the place of prompt and completion, the field with a list of {role, content}, as TRL has it: the last
        turn, the assistant's, is the response.
    reward: in their place, a function of a row and the text that the model generates for it, which returns a number and
        always the same; or a table as `[task.reward]` of a recipe: {"kind": "exact"}. 1 − its mean is minimised.
    test: rows of evaluations; default: the clients' own. validation: as of `fedzero.train`: a share of rows, or rows.
    train: "all", "layers", "lora", or a table as `[task.train]` of a recipe: {"kind": "lora", "rank": 4}.
    options: further keys of `[task]`: {"balanced": True, "generate": {"max_tokens": 8}, "text": {"overlong": "drop"}}.
    method, cohort, batch, chunk: as of `fedzero.train`. run: out, rounds (default: 100), …: see `fedzero.RunOptions`.
    """
    own = chosen(finetune, run, folder=True).of_the_run().on_public(test, validation)
    module = None if isinstance(model, str) else given.module(model, "model (unless it is the name of one)")
    (batch,) = given.each(PositiveInt, batch=batch)
    cohort, count, chunk = given.each(PositiveInt | None, cohort=cohort, count=count, chunk=chunk)
    text, more = _text(prompt, answers, label, passage, completion, messages, options)
    dealt = _dealt(clients, count, partition, label, own.seed or 0, persons.read(own.privacy))
    dealt, tested, reported = _measured(validation, dealt, test, own.seed or 0)
    rewarded, functions = _rewarded(reward)
    task = {"kind": "language", "model": model if module is None else GIVEN + type(model).__name__, "text": text}
    task |= {"train": _trained(train), "batch": batch, "dtype": dtype, **rewarded, **given.told(chunk=chunk), **more}
    engine = {"kind": "local", "device": device if module is None else _place(module)}
    table = {"algorithm": given.method(method, DEFAULT), "task": task, "engine": engine}
    recipe = recipe_of("finetune", table, own, len(dealt), cohort)
    rows = InMemoryModel(module, tokenizer, dealt, tested, reported=reported)
    made = trained(module, recipe, Environment(functions={GIVEN: rows, **functions}), own)
    return replace(made, trained=rows.trained)


def _text(
    prompt: Any, answers: Any, label: Any, passage: Any, completion: Any, messages: Any, options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`[task.text]`, and the further keys of `[task]`."""
    prompt, label, passage = given.each(str, prompt=prompt, label=label, passage=passage)
    completion, messages = given.each(str | None, completion=completion, messages=messages)
    text = {"prompt": prompt, "answers": _words(answers), "label": label, "passage": passage}
    text |= given.told(completion=completion, messages=messages)
    more = {} if options is None else given.table(options, "options", Checked, "{'balanced': True}")
    text |= given.table(more.pop("text", {}), "options['text']", Checked, "{'overlong': 'drop'}")
    return text | {"train": GIVEN + "train", "test": GIVEN + "test"}, more


def _place(model: nn.Module) -> str:
    """The kind of device that a model is on."""
    first = next(model.parameters(), None)
    if first is None:
        raise Invalid(f"model: {type(model).__name__} has no parameters to train")
    return first.device.type


def _trained(train: Any) -> dict[str, Any]:
    """`[task.train]`, from one of the words for it, a value, or a table."""
    if not isinstance(train, str):
        return given.table(train, "train", Checked, "'lora'")
    return dict(given.one_of(train, TRAIN, "train", "give one of"))


def _words(answers: Any) -> dict[str, str]:
    """Answer words by label, as a recipe has them."""
    if answers is None:
        return {}
    if not isinstance(answers, Mapping) or not all(isinstance(word, str) for word in answers.values()):
        raise Invalid(f"answers = {quoted(answers)} is not valid: give a dictionary of labels and words")
    return {_word(key): word for key, word in answers.items()}


def _rewarded(reward: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of `[task]`, and the functions that they name."""
    if reward is None:
        return {}, {}
    if isinstance(reward, Reward | Mapping):
        return {"measure": "reward", "reward": msgspec.to_builtins(reward)}, {}
    if not callable(reward):
        raise Invalid("reward: give a function of a row and a text, or a table such as {'kind': 'exact'}")
    name = getattr(reward, "__name__", type(reward).__name__)
    return {"measure": "reward", "reward": msgspec.to_builtins(Function(name=name))}, {name: reward}


def _dealt(
    clients: Any, count: int | None, partition: Any, label: str, seed: int, person: str | None = None
) -> list[list[Row]]:
    """The rows of every client. person: the column of persons, who are dealt out with all of their rows."""
    clients, partition = partitioned(clients, partition)
    if partition is not None and count is None:
        raise Invalid("partition is given and no count: give the number of clients, count = …")
    if count is not None:
        rows, dealing = given.rows(clients, "clients"), Iid() if partition is None else partition_of(partition)
        place = count, Keys.of_seed(seed)
        labels, whose = _labels(rows, label, dealing), None if person is None else persons.of_rows([rows], person)[0]
        parts = split(dealing, labels, *place) if whose is None else split_persons(dealing, labels, whose, *place)
        return [[rows[i] for i in part] for part in parts]
    if isinstance(clients, str | Mapping) or not isinstance(clients, Sequence) or not len(clients):
        raise Invalid("clients: give a list with the rows of each client, or one list of rows and count = …")
    if isinstance(clients[0], Mapping):
        raise Invalid("clients is one list of rows: give a list with the rows of each client, or count = …")
    return [given.rows(rows, f"client {number}") for number, rows in enumerate(clients)]


def _labels(rows: Sequence[Row], label: str, partition: Partition) -> NDArray[np.int64]:
    if isinstance(partition, Iid):
        return np.zeros(len(rows), np.int64)
    absent = next((row for row in rows if label not in row), None)
    if absent is not None:
        raise Invalid(
            f"clients has the row {quoted(absent)} without {label!r}, by which rows are dealt out: name label"
        )
    return np.unique([_word(row[label]) for row in rows], return_inverse=True)[1].astype(np.int64)


def _measured(
    validation: Any, dealt: list[list[Row]], test: Any, seed: int
) -> tuple[list[list[Row]], list[Row], list[Row]]:
    """The rows that every client trains on, those of evaluations, and those that are reported beside them."""
    tested, share = [] if test is None else given.rows(test, "test"), share_of(validation)
    if share is not None:
        halves = [held_out(len(rows), share, seed, client) for client, rows in enumerate(dealt)]
        own = list(zip(dealt, halves, strict=True))
        held = [rows[i] for rows, (_, held) in own for i in held]
        return [[rows[i] for i in kept] for rows, (kept, _) in own], held, tested
    if validation is not None:
        return dealt, given.rows(validation, "validation"), tested
    return dealt, tested or [row for rows in dealt for row in rows], []


def _word(label: Any) -> str:
    """A label as a recipe has it."""
    return str(label).lower() if isinstance(label, bool) else str(label)
