"""Fine-tuning language models of `transformers` by what clients evaluate: rows, a prompt, and words to choose from.

run = fedzero.finetune(model, tokenizer, clients=[rows_a, rows_b], test=rows, prompt="{sentence} It was",
                       answers={"0": "terrible", "1": "great"}, rounds=500, out="runs/reviews")
run.model.save_pretrained("reviews")

With a reward the model generates, and a function of the row and the text says how good that is:

run = fedzero.finetune(model, tokenizer, clients=[rows_a, rows_b], prompt="{a} + {b} =",
                       reward=lambda row, text: text.strip() == str(row["a"] + row["b"]), rounds=500, out="runs/sums")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedzero.algorithms.contract import Method
from fedzero.api.runs import Run
from fedzero.api.train import DEFAULT, cohort_of, name_of, trained
from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.runs import recipe as recipes
from fedzero.runs.engines import Wanted
from fedzero.runs.loop import Watch
from fedzero.runs.session import Environment
from fedzero.tasks.language.given import GIVEN, Given
from fedzero.tasks.language.rewards import Function, Reward
from fedzero.tasks.language.texts import Row
from fedzero.tasks.partition import Iid, split

TRAIN: Mapping[str, Any] = {"all": {"kind": "full"}, "layers": {"kind": "layers"}, "lora": {"kind": "lora"}}


def finetune(
    model: Any,
    tokenizer: Any = None,
    *,
    clients: Sequence[Any],
    prompt: str,
    answers: Mapping[Any, str] | None = None,
    reward: Callable[[Row, str], float] | Reward | Mapping[str, Any] | None = None,
    test: Sequence[Row] | None = None,
    label: str = "label",
    passage: str = "",
    train: str | Mapping[str, Any] = "all",
    count: int | None = None,
    method: Method | Mapping[str, Any] | None = None,
    rounds: int = 100,
    cohort: int | None = None,
    batch: int = 32,
    dtype: str = "float32",
    options: Mapping[str, Any] | None = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    device: str = "auto",
    engine: Wanted = None,
    out: str | Path,
    progress: bool | Watch = True,
) -> Run:
    """Fine-tune a causal language model on rows with labels; `run.model` can be saved with `save_pretrained`.

    model: a model of `transformers`, trained in place, with its tokenizer; or the name of one (hub, folder, GGUF file),
        which is loaded as `dtype`.
    clients: a list with the rows (dictionaries) of each client; or, with `count`, a list of rows dealt out to so many.
    prompt: with fields of a row in braces. answers: by label, the word that should follow the prompt.
    reward: in their place, a function of a row and the text that the model generates for it, which returns a number and
        always the same; or a table as `[task.reward]` of a recipe: {"kind": "exact"}. 1 − its mean is minimised.
    test: rows of evaluations; default: the clients' own.
    train: "all", "layers", "lora", or a table as `[task.train]` of a recipe: {"kind": "lora", "rank": 4}.
    options: further keys of `[task]`, such as {"balanced": True, "measure": "accuracy", "generate": {"max_tokens": 8}}.
    method, rounds, cohort, batch, seed, engine, out, progress: as of `fedzero.train`.
    """
    dealt = _dealt(clients, count, seed)
    named = isinstance(model, str)
    tested = [row for rows in dealt for row in rows] if test is None else list(test)
    given = Given(None if named else model, tokenizer, dealt, tested)
    words = {_word(key): word for key, word in (answers or {}).items()}
    text = {"prompt": prompt, "answers": words, "label": label}
    rewarded, functions = _rewarded(reward)
    task = {
        "kind": "language",
        "model": model if named else GIVEN + type(model).__name__,
        "text": text | {"passage": passage, "train": GIVEN + "train", "test": GIVEN + "test"},
        "train": TRAIN.get(train, train) if isinstance(train, str) else dict(train),
        "batch": batch,
        "dtype": dtype,
        **rewarded,
        **(options or {}),
    }
    recipe = recipes.decode(
        {
            "name": name_of(Path(out)),
            "rounds": rounds,
            "seed": seed,
            "evaluate_every": evaluate_every or max(1, rounds // 25),
            "algorithm": DEFAULT if method is None else msgspec.to_builtins(method),
            "task": task,
            "federation": {"clients": len(dealt), "cohort": cohort_of(cohort, len(dealt))},
            "engine": {"kind": "local", "device": device if named else next(model.parameters()).device.type},
        },
        "fedzero.finetune",
    )
    environment = Environment(functions={GIVEN: given, **functions})
    recipe = recipes.with_engine(recipe, engine)
    trained(None if named else model, recipe, Path(out), environment, progress)
    assert given.opened is not None
    return Run(Path(out), environment, given.opened.module)


def _rewarded(reward: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of `[task]`, and the functions that they name."""
    if reward is None:
        return {}, {}
    if isinstance(reward, Reward | Mapping):
        return {"measure": "reward", "reward": msgspec.to_builtins(reward)}, {}
    if not callable(reward):
        raise FedzeroError("reward: give a function of a row and a text, or a table such as {'kind': 'exact'}")
    name = getattr(reward, "__name__", type(reward).__name__)
    return {"measure": "reward", "reward": msgspec.to_builtins(Function(name=name))}, {name: reward}


def _dealt(clients: Sequence[Any], count: int | None, seed: int) -> list[list[Row]]:
    """The rows of every client."""
    rows = list(clients)
    if count is not None:
        parts = split(Iid(), np.zeros(len(rows), np.int64), count, Keys.of_seed(seed))
        return [[rows[i] for i in part] for part in parts]
    if not rows or isinstance(rows[0], Mapping):
        raise FedzeroError("clients: give a list with the rows of each client, or one list of rows and count = …")
    return [list(each) for each in rows]


def _word(label: Any) -> str:
    """A label as a recipe has it."""
    return str(label).lower() if isinstance(label, bool) else str(label)
