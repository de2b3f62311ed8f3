"""Points of rank-one directions side by side have the losses of views, and where they cannot, views are used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from fedzero.directions import Domain, LowRank, Terms
from fedzero.errors import FedzeroError
from fedzero.model.device import threads
from fedzero.model.params import Params
from fedzero.oracles.criteria import Stepwise, Supervised
from fedzero.oracles.low_rank import MOST_TERMS
from fedzero.oracles.module import ModuleObjective
from fedzero.oracles.side_by_side import SideBySide, grouped
from fedzero.tasks.models import LargeCnn, SmallCnn, initialise

RANK1 = Domain.RANK1


def points(count: int = 11, radius: float = 0.05, rank: int = 1) -> tuple[Terms, ...]:
    stream = RANK1 if rank == 1 else LowRank(rank)
    around = tuple(Terms.of([100 * k], [radius * (-1) ** k], stream) for k in range(1, count))
    return (Terms.of([], [], RANK1), *around)


def images(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, 1, 28, 28, generator=generator), torch.randint(0, 10, (n,), generator=generator)) for n in sizes
    ]


class Residual(nn.Module):
    """A path around the first trained layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.out = nn.Linear(784, 784), nn.LayerNorm(784), nn.Linear(784, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.out(self.norm(x + torch.tanh(self.inner(x))))


class Scale(nn.Module):
    """A module of somebody's own, with parameters of its own: a vector, a matrix and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.by, self.mix = nn.Parameter(torch.rand(20) + 0.5), nn.Parameter(torch.randn(20, 20))
        self.sharp = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.by) @ torch.tanh(self.mix * self.sharp)


class Mixing(nn.Module):
    """Rows depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(784, 20), nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x.flatten(1))
        return self.b(torch.relu(h - h.mean(0)))


class ReadElsewhere(nn.Module):
    """A weight is used by the parent, not by the layer that has it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(784, 20), nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(self.a(x.flatten(1))), self.b.weight)


class Owning(nn.Module):
    """Parameters of its own around those of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.a = nn.Parameter(torch.ones(784)), nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x.flatten(1) * self.scale)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 30), nn.ReLU(), nn.Linear(30, 10, bias=False))


def normed() -> nn.Module:
    norms = nn.LayerNorm(20), nn.RMSNorm(20), nn.BatchNorm1d(20), nn.GroupNorm(4, 20)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 20), *norms, Scale(), nn.Linear(20, 10))


def convolutions() -> nn.Module:
    parts = nn.Conv2d(1, 4, 5, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1, groups=2)
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(6 * 12 * 12, 10))


def frozen_first() -> nn.Module:
    module = perceptron()
    module[1].weight.requires_grad_(False)
    return module


WORK = {
    "perceptron": (perceptron, "same"),
    "small cnn": (lambda: SmallCnn(channels_last=True), "same"),
    "large cnn": (LargeCnn, "same"),
    "norms and others": (normed, "same"),
    "convolutions": (convolutions, "same"),
    "bias alone, then all": (frozen_first, "same"),
    "residual": (Residual, "apart"),
}
CANNOT = {"mixing": Mixing, "read elsewhere": ReadElsewhere, "owning": Owning}


def made(model) -> tuple[nn.Module, Params]:
    torch.manual_seed(3)
    module = model()
    params = Params.of_module(module)
    initialise(params, b"r" * 32)
    for name, tensor in params.tensors.items():
        tensor.add_(0.5 * ("norm" in name or tensor.dim() < 2))  # weights of norms near nought would hide what follows
    return module, params


def views(module, params, some, batches, criterion=None):
    objective = ModuleObjective(module, (), **({} if criterion is None else {"criterion": criterion}), exact=True)
    return objective.losses(params, some, batches)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("name", WORK)
def test_losses_of_several_clients_are_those_of_views(name, rank):
    model, way = WORK[name]
    module, params = made(model)
    before, places = params.digest(), {n: p.data_ptr() for n, p in module.named_parameters()}
    kinds = [type(part) for part in module.modules()]
    objective, batches = ModuleObjective(module, ()), images(3, 8, 5)
    found = objective.losses(params, points(rank=rank), batches)
    assert objective.beside.way == way
    wanted = views(module, params, points(rank=rank), batches)
    assert found.shape == (3, 11)
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted - wanted[:, :1]).max()
    assert len(np.unique(wanted)) == wanted.size
    params.changed()
    assert params.digest() == before
    assert places == {n: p.data_ptr() for n, p in module.named_parameters()}
    assert kinds == [type(part) for part in module.modules()]


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_done_is_done_by_views(name):
    module, params = made(CANNOT[name])
    objective, batches = ModuleObjective(module, ()), images(4, 6)
    found = objective.losses(params, points(), batches)
    assert objective.beside.way is None
    assert np.array_equal(found, views(module, params, points(), batches))


def test_a_weight_that_is_read_elsewhere_only_later_does_not_pass_unnoticed():
    module, params = made(perceptron)
    objective, batches = ModuleObjective(module, ()), images(4)
    objective.losses(params, points(), batches)
    assert objective.beside.way == "same"
    plain = module.forward
    module.forward = lambda x: plain(x) + module[3].weight.sum()
    assert np.array_equal(objective.losses(params, points(), batches), views(module, params, points(), batches))


def test_a_failure_in_the_module_leaves_it_as_it_was_and_is_told():
    module, params = made(perceptron)
    objective, batches = ModuleObjective(module, ()), images(4)
    objective.losses(params, points(), batches)
    hook = module[2].register_forward_hook(lambda *_: (_ for _ in ()).throw(FedzeroError("no such thing")))
    with pytest.raises(FedzeroError, match="no such thing"):
        objective.losses(params, points(), batches)
    hook.remove()
    assert type(module[1]) is nn.Linear
    assert all(bool(p.isfinite().all()) for p in module.parameters())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_values_do_not_depend_on_the_number_of_threads(monkeypatch, count):
    monkeypatch.setattr(grouped, "GROUP", 3)
    monkeypatch.setattr(grouped, "LARGE", 3)
    module, params = made(SmallCnn)
    objective, batches = ModuleObjective(module, ()), images(3, 8)
    with threads(1):
        alone = objective.losses(params, points(), batches)
    with threads(count):
        assert np.array_equal(objective.losses(params, points(), batches), alone)


def test_points_with_few_products_are_in_large_groups(monkeypatch):
    """Products are counted in the trial: of a perceptron those of its first layer are shared, of a CNN few are."""
    batch = images(4)
    work = {}
    for build in (perceptron, SmallCnn):
        module, params = made(build)
        objective = ModuleObjective(module, ())
        objective.losses(params, points(), batch)
        work[build] = objective.beside.work
    assert work[SmallCnn] > 100 * work[perceptron]
    sides = objective.beside
    monkeypatch.setattr(grouped, "NUMBERS", 1 << 30)
    for work, sizes in ((1 << 30, {1: 1, 8: 8, 11: 6, 101: 8}), (1, {1: 1, 64: 64, 65: 33, 101: 51, 200: 50})):
        sides.work = work
        assert {count: sides._size(count, batch) for count in sizes} == sizes


def test_groups_and_replicas(monkeypatch):
    """What is asked about need not be the module's own weights, and the last group may be a single point."""
    monkeypatch.setattr(grouped, "GROUP", 5)
    monkeypatch.setattr(grouped, "LARGE", 5)
    module, params = made(perceptron)
    other = params.clone()
    other.fold(Terms.of([11], [0.1], Domain.GAUSSIAN))
    objective = ModuleObjective(module, ())
    for base in (params, other):
        found = objective.losses(base, points(), images(4))
        wanted = views(module, base, points(), images(4))
        assert found == pytest.approx(wanted, rel=1e-5)


def test_losses_of_other_kinds():
    module, params = made(perceptron)
    batches = images(4, 6)
    for criterion, share, works in (
        (Supervised(F.cross_entropy), False, True),
        (Stepwise(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none")), True, True),
        (Stepwise(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])), False, False),
    ):
        objective = ModuleObjective(module, (), criterion, share=share)
        wanted = ModuleObjective(module, (), criterion, share=share, exact=True).losses(params, points(), batches)
        assert objective.losses(params, points(), batches) == pytest.approx(wanted, rel=1e-5)
        assert (objective.beside.way is not None) == works


def test_other_streams_many_terms_and_exact_are_views(monkeypatch):
    module, params = made(perceptron)
    many = [Terms.of(range(MOST_TERMS + 1), [1e-3] * (MOST_TERMS + 1), RANK1)] * 2
    gaussian = [Terms.of([k], [0.05], Domain.GAUSSIAN) for k in range(3)]
    monkeypatch.setattr(SideBySide, "at", lambda *_: 1 / 0)
    objective = ModuleObjective(module, ())
    for some in (many, gaussian, points(1)):
        objective.losses(params, some, images(4))
    ModuleObjective(module, (), exact=True).losses(params, points(), images(4))
    assert objective.beside.untried, "nobody asked"


def test_sixteen_bits():
    module, params = made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 30), nn.LayerNorm(30), nn.Linear(30, 10)))
    half = nn.Sequential(nn.Flatten(), nn.Linear(784, 30), nn.LayerNorm(30), nn.Linear(30, 10)).bfloat16()
    half.load_state_dict(module.state_dict())
    ((x, y),) = images(16)
    own = Params.of_module(half)
    wide = ModuleObjective(module, ())
    params.load({name: tensor.float() for name, tensor in own.tensors.items()})
    objective = ModuleObjective(half, (), Supervised(lambda o, y: F.cross_entropy(o.float(), y, reduction="none")))
    found = objective.losses(own, points(), [(x.bfloat16(), y)])
    wanted = wide.losses(params, points(), [(x.bfloat16().float(), y)])
    assert objective.beside.way == "same"
    assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted - wanted[:, :1]).max()


def test_forward_of_points_major_rows():
    """As generation calls it: any number of rows, again and again within one context."""
    module, params = made(normed)
    module.eval()
    some, sides = points(4), SideBySide(module)
    ((x, _),) = images(6)
    with torch.no_grad(), sides.at(params, some):
        found = [module(x[:n].repeat(4, 1, 1, 1)).unflatten(0, (4, n)) for n in (6, 1)]
    for p, terms in enumerate(some):
        wanted = torch.func.functional_call(module, params.view(terms).tensors(), (x,))
        assert torch.allclose(found[0][p], wanted, atol=1e-5)
        assert torch.allclose(found[1][p], wanted[:1], atol=1e-5)


def test_layers_of_one_kind_are_compiled_once():
    """What a pass counts is no part of the compiled code: it would be compiled again for every layer."""
    counter = CompileCounter()
    module = nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)))
    layer = torch.compile(lambda part, x: torch.relu(part(x)), backend=counter)
    near = [Terms.of([p], [0.1], Domain.RANK1) for p in range(3)]
    with torch.no_grad(), SideBySide(module).at(Params.of_module(module), near):
        x = torch.ones(12, 300)
        for part in module:
            x = layer(part, x)
    assert counter.frame_count == 1
