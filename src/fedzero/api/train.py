"""Anybody's module, data and loss, trained by what clients evaluate.

    run = fedzero.train(model, clients=[(x_a, y_a), (x_b, y_b), …], loss=torch.nn.functional.cross_entropy,
                        test=(x, y), metrics={"accuracy": fedzero.accuracy}, rounds=300, out="runs/mine")
    run.history["accuracy"], run.bytes_per_client, run.model

Nothing is computed but forward passes, unless the method is a first-order one. What clients would send is counted, and
kept in a ledger: after a crash the same call resumes the run, and every model of it can be had again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn

from fedzero.api import given, in_place, persons, tables
from fedzero.api.options import Chosen, RunOptions, chosen
from fedzero.api.runs import Run, carry_out
from fedzero.api.validation import share_of
from fedzero.api.validation import split as split_off
from fedzero.directions import Keys
from fedzero.errors import Invalid
from fedzero.methods.contract import Method
from fedzero.model.numbers import PositiveInt
from fedzero.oracles.criteria import Batch, Criterion, Stepwise, Supervised, per_sample
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.tasks.own import LocalTask
from fedzero.tasks.partition import Dirichlet, Iid, Partition, Shards, split
from fedzero.tasks.persons import split_persons
from fedzero.tasks.samples import Dealt, Indices, Samples, labels_of, samples

PARTITIONS: Mapping[str, Partition] = {"iid": Iid(), "dirichlet": Dirichlet(), "shards": Shards()}
MOST_IN_A_COHORT = 10
ROUNDS = 100
DEFAULT = {"kind": "decomfl", "rate": "auto", "directions": 20}
"""The method that is used unless another one is named."""

Objective = Callable[[nn.Module, Batch], torch.Tensor]


def train(
    model: nn.Module,
    clients: Any,
    *,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    objective: Objective | None = None,
    test: Any = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    method: Method | Mapping[str, Any] | str | None = None,
    cohort: int | None = None,
    batch: int = 32,
    partition: str | Partition | None = None,
    count: int = 10,
    collate: Callable[[list[Any]], Batch] | None = None,
    filters: Sequence[Any] = (),
    merge: bool = True,
    exact: bool = False,
    features: Sequence[str] | None = None,
    label: str | None = None,
    validation: Any = None,
    chunk: int | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Train a module in place, by clients that only evaluate it.

    clients: one entry for each client: a pair of arrays (x, y), a dictionary of arrays, a map-style dataset, a folder
        of images (see `fedzero.images`), or, with `label`, a frame or a dataset of Hugging Face. With `partition`
        ("iid", "dirichlet", "shards" or a value of these) it is one of them, dealt out to `count` clients; or by a
        partitioner of Flower Datasets, which counts them itself.
    loss: of pairs, as in loss(model(x), y). objective: of anything else, objective(model, batch); both give one number,
        or one for each sample.
    test: data of evaluations, one dataset or a list of them; default: the clients' own.
    metrics: by name. With `loss`: of all outputs and targets, metric(outputs, y); with `objective`: metric(model,
        batch), averaged. "accuracy" is shown where runs are compared.
    method: fedzero.DeComFL(rate=0.05), its name, or a table as in a recipe; default: DeComFL, which finds its own rate.
    cohort (clients in a round, at most all of them), batch (samples of an evaluation), filters: as in a recipe.
    merge: batches of a cohort share a pass (faster; the last bits depend on the number of threads).
    exact: points of rank-one directions at weights of their own, as of other directions (slower).
    collate: makes a batch of a list of items, as in torch's DataLoader.
    features, label: of frames and datasets with columns: those of x (default: all others), and that of y.
    chunk: samples of a batch that are evaluated at a time, where memory is short; the result differs by rounding.
    validation: a share of every client's samples that is kept from training (0.1), or data as `test`. What is chosen
        (`run.best`, stop, a patch) is chosen by their metrics; those of `test` are reported beside them ("test loss").
    options: see `fedzero.RunOptions`. rounds: default: 100. out: if it holds this run, that is resumed or extended.
    """
    own, model = chosen(train, options, folder=True).of_the_run().on_public(test, validation), given.module(model)
    batch, count = given.each(PositiveInt, batch=batch, count=count)
    cohort, chunk = given.each(PositiveInt | None, cohort=cohort, chunk=chunk)
    merge, exact = given.each(bool, merge=merge, exact=exact)
    collate = given.function(collate, "collate", "a function of a list of items")
    criterion = criterion_of(loss, objective, metrics)
    clients, apart, partition, whose = _columns(clients, _apart(test, validation), partition, features, label, own)
    dealt = deal(clients, partition, count, collate, own.seed or 0, whose)
    local = _local_task(model, criterion, dealt, apart, validation, collate, own.seed or 0, whose)
    task = {"kind": "own", "name": type(model).__name__, "batch": batch, "exact": exact}
    task |= given.told(chunk=chunk)
    table = {"algorithm": given.method(method, DEFAULT), "task": task, "filters": given.filters(filters)}
    table |= {"engine": {"kind": "local", "merge": merge, "device": "auto"}}
    recipe = recipe_of("train", table, own, len(dealt), cohort)
    return trained(model, recipe, Environment(functions={type(model).__name__: local}), own)


def recipe_of(verb: str, table: Mapping[str, Any], options: Chosen, clients: int, cohort: int | None) -> Recipe:
    """The recipe of a run that trains a module: what the verb says of it, and what all verbs do."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", options.folder.name).lstrip("-._") if options.folder is not None else ""
    rounds = options.rounds or ROUNDS
    federation = {"clients": clients, "cohort": min(MOST_IN_A_COHORT, clients) if cohort is None else cohort}
    common = {"name": name or "run", "federation": federation} | options.table(rounds, max(1, rounds // 25))
    return recipes.decode(common | dict(table), f"fedzero.{verb}")


def trained(model: nn.Module | None, recipe: Recipe, environment: Environment, options: Chosen) -> Run:
    """Run a recipe, or resume it, on a module of this process (None: the task loads one)."""
    folder = options.folder
    assert folder is not None
    try:
        with in_place.training(model, folder):
            carry_out(recipe, folder, environment, options)
    except KeyboardInterrupt:
        print(f"stopped; the same call resumes {folder} from the last completed round", file=sys.stderr)
        raise
    return Run(folder, environment, model)


Persons = list[Indices] | None
"""The persons of the rows of every part of the clients' data, where units are persons."""


def _columns(
    clients: Any, apart: dict[str, Any], partition: Any, features: Any, label: Any, own: Chosen
) -> tuple[Any, dict[str, Any], Any, Persons]:
    """What `tables.opened` makes of the data, and whose the rows are."""
    person, whose = persons.read(own.privacy), None
    if person is not None:
        clients, apart, partition, whose = persons.taken_out(clients, apart, partition, person, features, label)
    return *tables.opened(clients, apart, partition, features, label), whose


def deal(
    clients: Any, partition: str | Partition | None, count: int, collate: Any, seed: int, whose: Persons = None
) -> Sequence[Samples]:
    """The samples of every client. whose: if units are persons; a partition deals out persons then."""
    if partition is None:
        if not isinstance(clients, list | tuple) or not clients:
            raise Invalid(
                "clients: give a list with the data of each client, or one dataset and partition = 'iid' or 'dirichlet'"
            )
        return [samples(data, collate, f"client {number}") for number, data in enumerate(clients)]
    partition = partition_of(partition)
    whole = samples(clients, collate, "the dataset of all clients")
    labels, keys = (
        np.zeros(len(whole), np.int64) if isinstance(partition, Iid) else labels_of(whole),
        Keys.of_seed(seed),
    )
    if whose is None:
        return Dealt(whole, split(partition, labels, count, keys))
    persons.of_clients(whose, [whole])
    return Dealt(whole, split_persons(partition, labels, whose[0], count, keys))


def partition_of(partition: Any) -> Partition:
    """A partition, given as a value or by its name."""
    if isinstance(partition, Partition):
        return partition
    return given.one_of(partition, PARTITIONS, "partition", "use one of")


def _apart(test: Any, validation: Any) -> dict[str, Any]:
    """Data that are given beside those of the clients, by name."""
    named = {"test": test, "validation": None if share_of(validation) else validation}
    return {name: data for name, data in named.items() if data is not None}


def _local_task(
    model: nn.Module,
    criterion: Criterion,
    dealt: Sequence[Samples],
    apart: Mapping[str, Any],
    validation: Any,
    collate: Any,
    seed: int,
    whose: Persons = None,
    everywhere: bool = False,
) -> LocalTask:
    """With the samples of training, those of evaluations, and those that are reported beside them."""
    found: dict[str, Sequence[Samples]] = {name: several(data, collate, name) for name, data in apart.items()}
    test, kept, share = found.get("test", ()), found.get("validation"), share_of(validation)
    owners = None if whose is None else persons.of_clients(whose, dealt)
    if share is not None:
        dealt, kept = split_off(dealt, share, seed)
    tested, reported = (test or dealt, ()) if kept is None else (kept, test)
    return LocalTask(model, criterion, dealt, tested, everywhere=everywhere, reported=reported, persons=owners)


def several(data: Any, collate: Any, what: str = "test") -> list[Samples]:
    """One dataset, or a list of them."""
    if not isinstance(data, list):
        return [samples(data, collate, what)]
    if not data:
        raise Invalid(f"{what} = [] has no samples: give a dataset, or a list of them")
    return [samples(part, collate, f"{what}[{number}]") for number, part in enumerate(data)]


def criterion_of(
    loss: Callable[[Any, Any], torch.Tensor] | None, objective: Objective | None, metrics: Mapping[str, Any] | None
) -> Criterion:
    if (loss is None) == (objective is None):
        raise Invalid(
            "give either `loss`, of model(x) and y, or `objective`, of the model and a batch of any structure"
        )
    given.function(loss, "loss", "a function of outputs and targets, such as torch.nn.functional.cross_entropy")
    given.function(objective, "objective", "a function of the model and a batch")
    if isinstance(loss, type):
        raise Invalid(f"loss = {loss.__name__} is a class: give a value of it, {loss.__name__}()")
    named = given.functions(metrics, "metrics", "a function that returns a number, such as fedzero.accuracy")
    return Stepwise(objective, named) if loss is None else Supervised(per_sample(loss), named)  # type: ignore[arg-type]


def site_task(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    objective: Objective | None = None,
    test: Any = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    collate: Callable[[list[Any]], Batch] | None = None,
    features: Sequence[str] | None = None,
    label: str | None = None,
    validation: Any = None,
    person: str | None = None,
) -> LocalTask:
    """A model, data and a loss of a site, for `fedzero join KIT --task package.module:name`. Arguments as of `train`.

    data: of the site's client; a list of datasets for several clients. The recipe has `[task] kind = "own"` and the
    name that the site gives it; nothing of what is here leaves the site but what the method sends.
    person: the column that says whose a row is, for recipes with `privacy.unit = "person"`; it is no feature. Recipes
    call it as they like.
    """
    given.module(model)
    given.function(collate, "collate", "a function of a list of items")
    parts = data if isinstance(data, list) else [data]
    (person,) = given.each(str | None, person=person)
    apart, whose = _apart(test, validation), None
    if person is not None:
        if share_of(validation) is not None:
            raise Invalid("person protects the site's data, and validation is a share of them: give other data")
        parts, apart, _, whose = persons.taken_out(parts, apart, None, person, features, label)
    parts, apart, _ = tables.opened(parts, apart, None, features, label)
    data = parts if isinstance(data, list) else parts[0]
    own, criterion = several(data, collate, "data"), criterion_of(loss, objective, metrics)
    return _local_task(model, criterion, own, apart, validation, collate, 0, whose, everywhere=True)
