"""Losses of single rows: those of plain torch in float64 on every path, and refusals where a row has none."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles import Oracle, Poisson, RowLosses, module
from fedzero.oracles.chunked import Chunked
from fedzero.oracles.contract import F64
from fedzero.oracles.criteria import Stepwise, Supervised
from fedzero.oracles.module import ModuleObjective
from fedzero.oracles.poisson import by_person
from fedzero.oracles.reported import Reported
from fedzero.oracles.rows import NOT_A_MEAN, OfPersons, why_no_rows
from fedzero.tasks import Quadratic
from fedzero.tasks.contract import BuildContext
from fedzero.tasks.models import SmallCnn, initialise
from fedzero.tasks.partition import DrawnShards

REGRESSION = Supervised(lambda output, y: F.mse_loss(output, y, reduction="none"))


def digits(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 1, 28, 28, generator=generator)
    return x, torch.randint(0, 10, (rows,), generator=generator)


def numbers(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 3, generator=generator)


def network(kind: str) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(3)
    if kind == "classes":
        net = SmallCnn(channels_last=False)
        initialise(Params.of_module(net), b"r" * 32)
        return net, Supervised(), digits
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), REGRESSION, numbers


def around(stream: Domain, count: int = 4) -> tuple[Terms, ...]:
    return tuple(Terms.of([k] * (k > 0), [0.05] * (k > 0), stream) for k in range(count))


def reference(net: nn.Module, params: Params, points: Any, batch: Any, loss: Any) -> F64:
    """Every row by itself through a moved copy of the module in float64."""
    found = np.empty((len(points), len(batch[1])))
    for p, terms in enumerate(points):
        moved = copy.deepcopy(net)
        state = dict(moved.named_parameters())
        for name, tensor in params.view(terms).tensors().items():
            state[name].data = tensor.clone()
        moved.double()
        with torch.no_grad():
            for i, (x, y) in enumerate(zip(*batch, strict=True)):
                target = y[None].double() if y.is_floating_point() else y[None]
                found[p, i] = loss(moved(x[None].double()), target).item()
    return found


@pytest.mark.parametrize("way", ["views", "together", "scratch", "side by side", "in chunks"])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_rows_are_those_of_plain_torch_and_their_mean_is_the_loss(monkeypatch, kind, way) -> None:
    net, criterion, rows = network(kind)
    params, loss = Params.of_module(net), F.cross_entropy if kind == "classes" else F.mse_loss
    points = around(Domain.RANK1 if way == "side by side" else Domain.GAUSSIAN)
    if way == "scratch":
        monkeypatch.setattr(module, "KEPT_NUMBERS", 0)
    objective: Any = ModuleObjective(net, (), criterion, together=way == "together")
    objective = Chunked(objective, 4) if way == "in chunks" else objective
    for size in (1, 2, 11):
        batch = rows(size)
        found = objective.row_losses(params, points, batch)
        wanted = reference(net, params, points, batch, loss)
        assert found.shape == wanted.shape == (len(points), size) and found.dtype == np.float64
        assert np.abs(found - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())
        assert np.allclose(found.mean(1), objective.losses(params, points, [batch])[0], rtol=1e-12, atol=0)
    assert len(np.unique(wanted)) == wanted.size
    assert objective.row_losses(params, points, rows(0)).shape == (len(points), 0)
    if way == "side by side":
        assert objective.beside.way == "same"


@pytest.mark.parametrize("stream", [Domain.GAUSSIAN, Domain.RANK1])
def test_threads_do_not_change_a_row(stream) -> None:
    net, criterion, rows = network("classes")
    params, points, batch = Params.of_module(net), around(stream, 6), rows(24)
    many = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(ModuleObjective(net, (), criterion).row_losses(params, points, batch))
    finally:
        torch.set_num_threads(many)
    assert np.array_equal(*found)


class Centred(nn.Module):
    """Rows that see the mean of their batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x - x.mean(0))
        return out


def weighted(model: nn.Module, batch: Any) -> torch.Tensor:
    """Weights that sum to the number of rows."""
    losses = F.mse_loss(model(batch[0]), batch[1], reduction="none").mean(1)
    out: torch.Tensor = losses * batch[1][:, 0].exp() / batch[1][:, 0].exp().mean()
    return out


STATIC = {
    "batch statistics": (
        nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False)), REGRESSION, "'1' (BatchNorm)",
    ),
}  # fmt: skip
SEEN = {
    "centred": (Centred(), REGRESSION, "other rows beside it"),
    "weighted": (nn.Linear(6, 3), Stepwise(weighted), "other rows beside it"),
    "one number": (nn.Linear(6, 3), Supervised(F.mse_loss), "one number for a whole batch"),
}


@pytest.mark.parametrize("case", [*STATIC, *SEEN])
def test_rows_that_are_not_alone_are_refused(case) -> None:
    net, criterion, why = (STATIC | SEEN)[case]
    objective = ModuleObjective(net, (), criterion)
    shards = DrawnShards([np.arange(9)], 4, lambda rows: tuple(t[rows] for t in numbers(9)))
    assert (why in why_no_rows(objective, shards)) == (case in STATIC)
    oracle = Oracle(objective, shards, Keys.of_seed(1), 0)
    with pytest.raises(FedzeroError) as refused:
        oracle.answer(0, RowLosses(Params.of_module(net), around(Domain.GAUSSIAN, 2), Poisson(1.0)))
    assert why in str(refused.value)


def test_frozen_statistics_of_batchnorm_are_no_reason() -> None:
    net = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    params, points, batch = Params.of_module(net), around(Domain.GAUSSIAN), numbers(5)
    found = ModuleObjective(net, (), REGRESSION).row_losses(params, points, batch)
    assert np.allclose(found, reference(net.eval(), params, points, batch, F.mse_loss), atol=1e-5)


def test_what_has_no_rows_says_why() -> None:
    context = BuildContext(Keys.of_seed(1), torch.device("cpu"), None)
    problem = Quadratic(dimension=4).build(2, context)
    assert why_no_rows(problem.objective, problem.shards) == NOT_A_MEAN
    mean = ModuleObjective(nn.Linear(6, 3), (), REGRESSION)
    for objective in (mean, Chunked(mean, 3), Reported(mean, {})):
        assert "row by row" in why_no_rows(objective, problem.shards)
    scalar = ModuleObjective(nn.Linear(6, 3), (), REGRESSION, share=False)
    for objective in (scalar, Chunked(scalar, 3), Reported(scalar, {})):
        assert "for a whole batch" in why_no_rows(objective, DrawnShards([], 1, list))
    assert "whose each row is" in why_no_rows(mean, DrawnShards([], 1, list), persons=True)


def test_an_oracle_draws_in_private_counts_points_and_adds_up_persons() -> None:
    net = nn.Linear(6, 3)
    data, part = numbers(40), np.arange(5, 40)
    objective, params = ModuleObjective(net, (), REGRESSION), Params.of_module(net)
    ids = np.array([f"p{i % 4}" for i in range(len(part))])
    shards = OfPersons(DrawnShards([part], 8, lambda rows: tuple(t[rows] for t in data)), [ids])
    assert why_no_rows(objective, shards, persons=True) == ""
    points = around(Domain.GAUSSIAN, 3)
    whole = objective.row_losses(params, points, tuple(t[part] for t in data))
    public = Oracle(objective, shards, Keys.of_seed(1), 0)
    with pytest.raises(FedzeroError, match="sampling = 'private'"):
        public.answer(0, RowLosses(params, points, Poisson(0.5)))
    sizes = set()
    for round in range(12):
        oracle = Oracle(objective, shards, Keys.of_seed(1), 0, lambda r, c: Keys(bytes([r] * 32), bytes(32)))
        rows = oracle.answer(round, RowLosses(params, points, Poisson(0.04)))
        assert oracle.queries == 3, "of points, however many rows"
        places = [int(np.abs(whole - column[:, None]).sum(0).argmin()) for column in rows.T]
        assert places == sorted(set(places)) and np.allclose(rows, whole[:, places], rtol=1e-5)
        sizes.add(rows.shape[1])
        people = oracle.answer(round, RowLosses(params, points, Poisson(0.5, persons=True)))
        every = np.stack([whole[:, ids == name].sum(1) for name in np.unique(ids)], 1)
        who = [int(np.abs(every - column[:, None]).sum(0).argmin()) for column in people.T]
        assert who == sorted(set(who)) and np.allclose(people, every[:, who], rtol=1e-5)
    assert 0 in sizes and len(sizes) > 2
    assert np.allclose(public.answer(0, RowLosses(params, points, Poisson(1.0))), whole, rtol=1e-5)


def test_rows_of_a_person_are_added_up_before_anything_else() -> None:
    slopes = np.array([[1, 2], [10, 20], [100, 200]], np.float32)
    found = by_person(slopes, np.array(["b", "a", "b"]))
    assert found.tolist() == [[10, 20], [101, 202]] and found.dtype == np.float32
    assert by_person(slopes[:0], np.array([], str)).shape == (0, 2)
    with pytest.raises(FedzeroError, match="2 rows, but 3"):
        by_person(slopes, np.array([1, 2]))
