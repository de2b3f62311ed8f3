"""Views, folds and digests of vectors and modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedzero.directions import Domain, Program, Rule, Terms, reference
from fedzero.errors import FedzeroError
from fedzero.model.params import Params, from_bytes, to_bytes


class Tied(nn.Module):
    """An embedding tied to the output layer, a frozen layer, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight


def terms(count: int, stream: Domain = Domain.GAUSSIAN) -> Terms:
    return Terms.of(range(11, 11 + count), np.linspace(-0.3, 0.4, count), stream)


def test_module_parameters_tied_once_frozen_never_buffers_out() -> None:
    module = Tied()
    params = Params.of_module(module)
    assert params.names == ("embed.weight", "norm.weight", "norm.bias")
    assert params.size == 35 + 10
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    params.fold(terms(3))
    after = module.state_dict()
    assert not torch.equal(after["embed.weight"], before["embed.weight"])
    assert torch.equal(after["head.weight"], after["embed.weight"]), "tied weights stay tied"
    for name in ("frozen.weight", "frozen.bias", "norm.running_mean", "norm.running_var"):
        assert torch.equal(after[name], before[name]), f"{name} must not move"


def test_each_tensor_has_its_own_stream() -> None:
    params = Params({"a": torch.zeros(3, 4), "b": torch.zeros(12)})
    params.fold(Terms.of([5], [1.0], Domain.GAUSSIAN))
    assert np.array_equal(params.tensors["a"].view(-1).numpy(), reference.gaussian(5, 0, 12))
    assert np.array_equal(params.tensors["b"].numpy(), reference.gaussian(5, 1, 12))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 9000), st.integers(1, 12), st.sampled_from([Domain.GAUSSIAN, Domain.RADEMACHER]))
def test_one_pass_equals_single_folds_and_the_view(size: int, count: int, stream: Domain) -> None:
    start = torch.linspace(-1, 1, size)
    together, apart = Params.of_vector(start.clone()), Params.of_vector(start.clone())
    many = terms(count, stream)
    viewed = together.view(many).vector()
    assert torch.equal(together.vector(), start), "a view leaves x alone"
    together.fold(many)
    for key, coefficient in zip(many.keys, many.coefficients, strict=True):
        apart.fold(Terms.of([int(key)], [coefficient], stream))
    assert torch.equal(together.vector(), apart.vector())
    assert torch.equal(together.vector(), viewed)
    assert together.digest() == apart.digest()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    size=st.integers(1, 9000),
    stream=st.sampled_from([Domain.GAUSSIAN, Domain.RADEMACHER]),
)
def test_many_points_at_once_are_the_views(lengths: list[int], size: int, stream: Domain) -> None:
    """A point that goes nowhere may carry any stream."""
    points = [
        Terms.of(range(10 * p, 10 * p + n), [0.1 * (p + 1)] * n, stream if n else Domain.GAUSSIAN)
        for p, n in enumerate(lengths)
    ]
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(size + 7, generator=torch.Generator().manual_seed(size)).to(dtype)
        params = Params({"a": x[:size].clone(), "b": x[size:].clone()})
        expected = torch.stack([params.view(terms).vector() for terms in points])
        assert torch.equal(params.at(points), expected)
        assert torch.equal(params.vector(), x.float()), "x itself stays"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_steps_together_equal_steps_apart_and_tiny_steps_are_not_lost(dtype: torch.dtype) -> None:
    start = torch.ones(20_000, dtype=dtype)
    steps = [Terms.of([k], [1e-4], Domain.RADEMACHER) for k in range(40)]
    together, apart = Params.of_vector(start.clone()), Params.of_vector(start.clone())
    together.advance(Program.of(steps, range(40)))
    for key, step in enumerate(steps):
        apart.fold(step, rounding=key)
    assert together.digest() == apart.digest()
    # Each step is below half a unit in the last place of 1.0 (bfloat16): rounded to nearest, nothing would move.
    exact = 1 + 1e-4 * sum(reference.rademacher(k, 0, 20_000).astype(np.float64) for k in range(40))
    error = together.vector().double().numpy() - exact
    assert (together.vector() != 1).float().mean() > 0.02
    assert abs(error.mean()) < 5 * error.std() / np.sqrt(error.size)


def test_add_rounds_sixteen_bits_stochastically() -> None:
    params = Params.of_vector(torch.ones(50_000, dtype=torch.bfloat16))
    params.add(torch.full((50_000,), 1e-3), rounding=3)
    moved = params.vector()
    assert set(moved.unique().tolist()) == {1.0, 1.0078125}
    share = (moved > 1).double().mean().item()
    assert share == pytest.approx(1e-3 / 0.0078125, abs=5 * np.sqrt(0.128 * 0.872 / 50_000))


def test_digest_sees_values_names_types_shapes_and_order() -> None:
    a = torch.arange(12.0)
    digests = {
        Params({"x": a.clone()}).digest(),
        Params({"y": a.clone()}).digest(),
        Params({"x": a.clone().view(3, 4)}).digest(),
        Params({"x": a.flip(0).clone()}).digest(),
        Params({"x": a.to(torch.bfloat16)}).digest(),
        Params({"x": a[:6].clone(), "y": a[6:].clone()}).digest(),
        Params({"y": a[6:].clone(), "x": a[:6].clone()}).digest(),
    }
    assert len(digests) == 7
    assert all(len(d) == 8 for d in digests)
    params = Params({"x": a.clone()})
    before = params.digest()
    params.add(torch.zeros(12))
    assert params.digest() == before
    params.add(torch.nn.functional.one_hot(torch.tensor(4), 12).float() * 1e-6)
    assert params.digest() != before, "one bit is enough"


def test_bytes_round_trip_and_bad_sizes() -> None:
    tensors = [torch.randn(3, 4), torch.randn(5).to(torch.bfloat16), torch.randn(2).half()]
    data = to_bytes(tensors)
    copies = [torch.empty_like(t) for t in tensors]
    from_bytes(data, copies)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
    with pytest.raises(FedzeroError, match="do not fit"):
        from_bytes(data[:-1], copies)


def test_clear_errors() -> None:
    with pytest.raises(FedzeroError, match="no trainable"):
        Params({})
    with pytest.raises(FedzeroError, match="float64"):
        Params.of_vector(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(FedzeroError, match="contiguous"):
        Params.of_vector(torch.zeros(4, 4).t())
    params = Params({"x": torch.zeros(4)})
    with pytest.raises(FedzeroError, match="lacks 'x'"):
        params.load({})
    with pytest.raises(FedzeroError, match=r"shape \(3,\)"):
        params.load({"x": torch.zeros(3)})
    with pytest.raises(FedzeroError, match="does not fit"):
        params.add(torch.zeros(5))


def test_noncontiguous_module_parameters_are_straightened() -> None:
    module = nn.Linear(4, 3)
    module.weight.data = torch.randn(4, 3).t()
    params = Params.of_module(module)
    params.fold(terms(1))
    assert torch.equal(module.weight.data, params.tensors["weight"])


def test_norm_of_a_direction() -> None:
    params = Params({"a": torch.zeros(1000), "b": torch.zeros(777)})
    z = params.direction(Domain.GAUSSIAN, 9).double()
    assert params.norm(9) == pytest.approx(z.norm().item(), rel=1e-6)


def test_rounding_to_nearest_loses_small_steps_and_stochastic_rounding_does_not() -> None:
    """A hundred steps of a tenth of a unit in the last place: ten units on average, or none at all."""
    unit = 2.0**-7  # of bfloat16 in [1, 2)
    ways = {nearest: Params({"x": torch.ones(4096, dtype=torch.bfloat16)}, nearest) for nearest in (False, True)}
    for params in ways.values():
        steps = [Terms.of([7], [0.1 * unit], Domain.RADEMACHER) for _ in range(100)]
        params.advance(Program.of(steps, range(100)))
    z = ways[True].direction(Domain.RADEMACHER, 7)
    assert torch.equal(ways[True].vector(), torch.ones(4096))
    moved = ((ways[False].vector() - 1) * z).mean()
    assert float(moved) == pytest.approx(10 * unit, rel=0.05)


def test_rounding_to_nearest_is_for_plain_steps() -> None:
    params = Params({"x": torch.ones(8, dtype=torch.bfloat16)}, nearest=True)
    assert params.clone().nearest
    program = Program.of([Terms.of([7], [1.0], Domain.GAUSSIAN)], [0], Rule.SIGN, [[0.1]])
    with pytest.raises(FedzeroError, match="rounding to nearest is for plain steps, not for sign"):
        params.advance(program)


def test_adding_a_vector_rounds_the_same_way() -> None:
    params = Params({"x": torch.ones(64, dtype=torch.bfloat16)}, nearest=True)
    params.add(torch.full((64,), 2.0**-9))
    assert torch.equal(params.vector(), torch.ones(64))
    params.add(torch.full((64,), 2.0**-7))
    assert torch.equal(params.vector(), torch.full((64,), 1 + 2.0**-7))
