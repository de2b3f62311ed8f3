"""The whole model of a run, also in another process than the one that trained it: its module, and its state dict.

A ledger has the parameters that were trained. What the module has beside them is in the folder of the run, where it is
small, or is made again: by the task, where the recipe says how, or by whoever opens the run. A digest on the ledger
decides whether it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedzero.errors import FedzeroError, Invalid
from fedzero.ledger import replay
from fedzero.ledger.folder import MODEL
from fedzero.ledger.records import End, Start
from fedzero.ledger.store import Tampered, ledger_in
from fedzero.model.checkpoint import load_model
from fedzero.model.fixed import FACT, Fixed
from fedzero.model.params import Params
from fedzero.model.value import quoted
from fedzero.recipe import recipe as recipes
from fedzero.recipe import trust
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.secret import keys_of
from fedzero.tasks.contract import FIXED, BuildContext
from fedzero.tasks.language import Language
from fedzero.tasks.own import Own, about_model


@dataclass(frozen=True, eq=False)
class Ended:
    """What a finished run says of its model: the trained parameters, in the order of their file."""

    folder: Path
    start: Start
    end: End
    trained: dict[str, Tensor]

    @staticmethod
    def of(folder: Path) -> Ended:
        with ledger_in(folder) as ledger:
            start, end = ledger.start(), replay.read(ledger).end
        if end is None or not (folder / MODEL).exists():
            raise FedzeroError(f"the run in {folder} is not finished: resume it; run.replay() gives the model so far")
        return Ended(folder, start, end, load_model(folder / MODEL))

    def check(self, names: tuple[str, ...]) -> None:
        """That the file has the model that the ledger ends with, whose parameters have this order."""
        if set(names) != self.trained.keys() or not self.matches(Params({name: self.trained[name] for name in names})):
            raise Tampered(self.end.round, f"{self.folder / MODEL} is not the model of this run")

    def matches(self, params: Params) -> bool:
        return params.matches(self.end.identity)

    def refuse_other(self, fixed: Fixed | None, whose: str) -> None:
        """What is fixed must be what the ledger has; releases before 0.2.1 did not write it."""
        then = self.start.facts.get(FACT)
        if then is not None and (fixed is None or str(fixed) != then):
            raise FedzeroError(
                f"{whose} has other frozen weights or buffers than the run was made with: {fixed} here, {then} there"
            )


def module_of(folder: Path, environment: Environment, given: Any = None) -> nn.Module | None:
    """The trained module of a finished run. given: the module before training, or a function that makes it, where the
    recipe does not say how; None of a run that trains no module."""
    ended = Ended.of(folder)
    start, module = ended.start, made(given)
    recipe, place = _task_of(folder, environment, start)
    module = recipe.task.module(place, module)
    if module is None:
        return None
    params = Params.of_module(module)
    _expect_same(params, ended.trained)
    ended.refuse_other(Fixed.of_module(module, params), "the module")
    if FACT not in start.facts and isinstance(recipe.task, Own):
        now, then = about_model(module, params)["model"], start.facts.get("model")
        if now != then:
            raise FedzeroError(f"the module is not that of this run: {now} here, {then} there")
    params.load(ended.trained)
    if not ended.matches(params):
        raise Tampered(ended.end.round, f"{folder / MODEL} is not the model of this run")
    return module.eval()


def _task_of(folder: Path, environment: Environment, start: Start) -> tuple[Recipe, BuildContext]:
    """The recipe of a run, and what its task is built with."""
    recipe = recipes.from_canonical(start.recipe, start.needs)
    keys = keys_of(recipe, environment.secret, start.secret, start.recipe)
    foreign = trust.is_foreign(start, environment)
    functions = environment.functions
    return recipe, BuildContext(keys, torch.device("cpu"), environment.data, functions, folder, foreign=foreign)


def said_of(
    folder: Path, environment: Environment, module: nn.Module | None, tokenizer: Any, rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What the trained module of a run says after the prompts of rows."""
    with ledger_in(folder) as ledger:
        recipe, place = _task_of(folder, environment, ledger.start())
    if not isinstance(recipe.task, Language) or module is None:
        raise FedzeroError(f"run.generate is of language models, and this run is of {recipe.task.label!r}")
    return recipe.task.said(module, tokenizer, rows, place)


def made(given: nn.Module | Callable[[], Any] | None) -> nn.Module | None:
    """The module that was given, or that a function makes."""
    found = given() if callable(given) and not isinstance(given, nn.Module) else given
    if found is None or isinstance(found, nn.Module):
        return found
    raise Invalid(f"model = {quoted(given)} is not valid: give a torch.nn.Module, or a function that makes it")


def _expect_same(params: Params, trained: dict[str, Tensor]) -> None:
    here = {name: tuple(tensor.shape) for name, tensor in params.tensors.items()}
    there = {name: tuple(tensor.shape) for name, tensor in trained.items()}
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            shapes = [str(of[name]) if name in of else "none" for of in (here, there)]
            raise FedzeroError(
                f"the module is not that of this run: its trained parameter {name!r} is {shapes[0]}, and in the run "
                f"{shapes[1]} (what was frozen then must be frozen now)"
            )


def state_dict_of(folder: Path, module: Callable[[], nn.Module | None], trained_here: bool) -> dict[str, Tensor]:
    """All that the module's own state dict has, with the trained values of a finished run.

    module: the module of the run, where what is fixed is not in its folder. trained_here: it was trained in place, and
    may have been changed since.
    """
    ended = Ended.of(folder)
    if FACT in ended.start.facts and (folder / FIXED).exists():  # else nothing says that the file is of this run
        fixed: Fixed | None = Fixed.load(folder / FIXED)
        assert fixed is not None
        ended.refuse_other(fixed, str(folder / FIXED))
        ended.check(fixed.trained)
        return fixed.state_dict(ended.trained)
    found = module()
    if found is None:
        return ended.trained
    params = Params.of_module(found)
    fixed = Fixed.of_module(found, params)
    if trained_here:
        ended.refuse_other(fixed, "the module, which was changed since,")
    if fixed is None:
        if not ended.matches(params):
            raise FedzeroError("the module was changed since it was trained, and its state dict is not tensors alone")
        return dict(found.state_dict())
    ended.check(params.names)
    return fixed.state_dict(ended.trained)
