"""Losses of a module at many points: every way of evaluating them gives the same values."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.device import threads
from fedzero.model.params import Params
from fedzero.oracles import Gradient, GradientOracle, Losses, Oracle, answer_together, module
from fedzero.oracles.criteria import Supervised
from fedzero.oracles.module import ModuleObjective
from fedzero.tasks.models import SmallCnn, initialise


@pytest.fixture
def setting():
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(n, 1, 28, 28, generator=generator), torch.randint(0, 10, (n,), generator=generator))
        for n in (3, 8, 5)
    ]
    net = SmallCnn(channels_last=False)
    params = Params.of_module(net)
    initialise(params, b"r" * 32)
    points = tuple(Terms.of([k] * (k > 0), [0.05] * (k > 0), Domain.GAUSSIAN) for k in range(4))
    return net, params, points, batches


def by_hand(net, params, points, batches):
    before = {n: t.clone() for n, t in params.tensors.items()}
    table = np.empty((len(batches), len(points)))
    for p, point in enumerate(points):
        params.load(params.view(point).tensors())
        with torch.no_grad():
            table[:, p] = [F.cross_entropy(net(x), y).item() for x, y in batches]
        params.load(before)
    return table


def test_all_ways_agree_with_a_model_that_is_really_moved(setting, monkeypatch) -> None:
    net, params, points, batches = setting
    digest = params.digest()
    expected = by_hand(net, params, points, batches)
    assert params.digest() == digest
    loop = ModuleObjective(net, batches[:1]).losses(params, points, batches)
    together = ModuleObjective(net, batches[:1], together=True).losses(params, points, batches)
    monkeypatch.setattr(module, "KEPT_NUMBERS", 0)
    scratch = ModuleObjective(net, batches[:1]).losses(params, points, batches)
    for values in (loop, together, scratch):
        assert values.shape == (3, 4)
        assert np.abs(values - expected).max() < 1e-5
    assert np.array_equal(loop, scratch), "kept offsets and scratch give the same weights, hence the same bits"
    assert params.digest() == digest, "evaluating changes nothing"
    assert len(np.unique(expected)) == expected.size


def test_kept_offsets_follow_the_points(setting) -> None:
    net, params, points, batches = setting
    objective = ModuleObjective(net, batches[:1])
    first = objective.losses(params, points, batches)
    for shift in range(1, 40):  # new tuples all the time: an id that is used again must not bring old offsets back
        other = tuple(Terms.of([100 * shift + k], [0.05], Domain.RADEMACHER) for k in range(2))
        assert not np.array_equal(objective.losses(params, other, batches)[:, :2], first[:, :2])
    assert np.array_equal(objective.losses(params, points, batches), first)


def test_gradient_is_that_of_the_module(setting) -> None:
    net, params, _, batches = setting
    loss, gradient = ModuleObjective(net, batches[:1]).gradient(params, batches[1])
    expected = F.cross_entropy(net(batches[1][0]), batches[1][1])
    expected.backward()
    assert loss == pytest.approx(expected.item())
    assert torch.allclose(gradient, torch.cat([p.grad.reshape(-1) for p in net.parameters()]), atol=1e-6)


class Stub:
    clients = 2

    def batch(self, keys, round, step, client):
        return client + 1

    def losses(self, base, points, batches, basis=None):
        return np.outer(batches, np.arange(1, len(points) + 1)).astype(float)

    def gradient(self, base, batch):
        return 1.0, torch.zeros(1)


def test_oracles_count_and_give_values_only() -> None:
    stub, params = Stub(), Params.of_vector(torch.zeros(3))
    points = tuple(Terms.of([k], [1.0], Domain.GAUSSIAN) for k in range(5))
    one, two = (Oracle(stub, stub, Keys.of_seed(1), c) for c in (0, 1))
    ask = Losses(params, points, 0)
    together = answer_together(0, [(one, ask), (two, Losses(params, points, 0))])
    assert np.array_equal(together[1], 2 * together[0])
    assert one.queries == two.queries == 5
    assert np.array_equal(one.answer(0, ask), together[0])
    assert one.queries == 10
    with pytest.raises(FedzeroError, match="value-only"):
        one.answer(0, Gradient(params, 0))
    first_order = GradientOracle(stub, stub, Keys.of_seed(1), 0)
    assert first_order.answer(0, Gradient(params, 0))[0] == 1.0
    assert first_order.queries == 1


def test_different_points_are_not_merged() -> None:
    stub, params = Stub(), Params.of_vector(torch.zeros(3))
    oracles = [Oracle(stub, stub, Keys.of_seed(1), c) for c in (0, 1)]
    mine, theirs = (tuple(Terms.of([k], [1.0], Domain.GAUSSIAN) for k in range(n)) for n in (2, 3))
    answers = answer_together(0, [(oracles[0], Losses(params, mine, 0)), (oracles[1], Losses(params, theirs, 0))])
    assert [len(a) for a in answers] == [2, 3]
    assert [o.queries for o in oracles] == [2, 3]


def test_points_of_several_terms_are_views_too(setting) -> None:
    net, params, points, batches = setting
    several = (*points, Terms.of([1, 2], [0.05, -0.02], Domain.GAUSSIAN))
    values = ModuleObjective(net, batches[:1]).losses(params, several, batches)
    assert np.abs(values - by_hand(net, params, several, batches)).max() < 1e-5
    with pytest.raises(ValueError, match="one term"):
        params.offsets(several)


def test_offsets_added_to_the_base_are_the_views(setting) -> None:
    _, params, points, _ = setting
    for row, point in zip(params.offsets(points), points, strict=True):
        assert torch.equal(params.vector() + row, params.view(point).vector())


@pytest.mark.parametrize("count", [2, 3])
def test_values_do_not_depend_on_the_number_of_threads(setting, monkeypatch, count: int) -> None:
    net, params, points, batches = setting
    objective = ModuleObjective(net, batches[:1])
    with threads(1):
        alone = objective.losses(params, points, batches)
    monkeypatch.setattr(module, "WORTH_A_THREAD", 0)
    used = set()
    real = objective.losses_of
    monkeypatch.setattr(objective, "losses_of", lambda *args: (used.add(threading.get_ident()), real(*args))[1])
    with threads(count):
        shared = objective.losses(params, points, batches)
        assert torch.get_num_threads() == count, "as it was before"
    assert np.array_equal(alone, shared)
    assert threading.get_ident() not in used


def test_a_pass_that_fails_in_a_thread_fails_in_the_open(setting, monkeypatch) -> None:
    net, params, points, batches = setting
    monkeypatch.setattr(module, "WORTH_A_THREAD", 0)

    def broken(*args):
        raise FedzeroError("no such loss")

    objective = ModuleObjective(net, batches[:1], Supervised(broken))
    with threads(2), pytest.raises(FedzeroError, match="no such loss"):
        objective.losses(params, points, batches)
