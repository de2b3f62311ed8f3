"""Layers at many points: the kernels give what float64 gives, rounded once.

On a CUDA device, or in Triton's interpreter by `test_gpu.test_interpreter`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params
from fedzero.oracles.side_by_side import SideBySide, arithmetic
from fedzero.oracles.side_by_side import layers as beside

pytest.importorskip("triton", reason="triton is not installed")
gpu: Any = importlib.import_module("fedzero.directions.gpu")
layers: Any = importlib.import_module("fedzero.directions.gpu.layers")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available() and not INTERPRETED
DEVICE = torch.device("cuda" if CUDA else "cpu")
pytestmark = pytest.mark.skipif(
    not INTERPRETED and not CUDA, reason="no CUDA device; test_gpu.test_interpreter runs this one"
)
TYPES = [torch.float32, torch.bfloat16]


def covered(test: Any) -> Any:
    """A few cases, see tests/sampling.py, where the interpreter does not run all."""
    return pytest.mark.covered(test) if INTERPRETED and os.environ.get("TEST_ALL_KERNELS") != "1" else test


def made(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def signs(terms: int, points: int, n: int, seed: int) -> torch.Tensor:
    """A part of a wider table, as factors are."""
    return made(terms * points, n + 40, seed=seed).sign().view(terms, points, 1, -1)[..., 16 : 16 + n]


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Rounded once, to the nearest number of its type (in the interpreter: one of the two nearest), but for what sums
    in float32 lose."""
    share = (2.0**-7 if INTERPRETED else 2.0**-8) if found.dtype == torch.bfloat16 else 0.0
    error = (found.double() - wanted).abs()
    assert bool((error <= share * wanted.abs() + 2e-5 * float(wanted.abs().max())).all())


@covered
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shifted", [False, True], ids=["", "shifted"])
@pytest.mark.parametrize(
    ("points", "n", "out", "width", "terms"),
    [(3, 1, 40, 5000, 1), (2, 4, 1500, 70, 1), (2, 13, 33, 600, 3), (1, 9, 1, 1, 2)],
)
def test_what_points_add_to_a_product(points, n, out, width, terms, shifted, dtype):
    y, x = made(points, n, out, dtype=dtype, seed=1), made(points, n, width, dtype=dtype, seed=2)
    c = made(terms, points, 1, 1, seed=3)
    a, b = signs(terms, points, out, 4), signs(terms, points, width, 5)
    shift = made(points, out, seed=6) if shifted else None
    inner = torch.einsum("pni,tpi->tpn", x.double(), b[:, :, 0].double())
    wanted = y.double() + torch.einsum("tpn,tp,tpo->pno", inner, c[..., 0, 0].double(), a[:, :, 0].double())
    wanted = wanted if shift is None else wanted + shift[:, None].double()
    assert layers.add_terms(y, x, c, a, b, shift) is y
    close(y, wanted)


def test_what_is_given_may_have_gaps():
    x = made(2, 3, 2, 50, seed=2)[:, :, 1]
    c, a, b = made(1, 2, 1, 1, seed=3), signs(1, 2, 20, 4), signs(1, 2, 100, 5)[..., ::2]
    y = torch.zeros(2, 3, 20, device=DEVICE)
    wanted = torch.einsum("pni,pi,p,po->pno", x, b[0, :, 0], c[0, :, 0, 0], a[0, :, 0])
    close(layers.add_terms(y, x, c, a, b), wanted.double())


@covered
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("moved", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize(("points", "n", "size"), [(3, 1, 64), (2, 5, 700), (1, 2, 1)])
def test_rows_are_normalised(points, n, size, moved, dtype):
    x = made(points, n, size, dtype=dtype, seed=1) + 3
    weight, bias = (made(size, dtype=dtype, seed=seed) for seed in (2, 3))
    offsets = [made(points, size, seed=4 + i) if each else None for i, each in enumerate(moved)]
    found = layers.layer_norm(x, (weight, offsets[0]), (bias, offsets[1]), 1e-5)
    at = [
        each.double() if more is None else (each.double() + more.double())[:, None]
        for each, more in zip((weight, bias), offsets, strict=True)
    ]
    normal = torch.nn.functional.layer_norm(x.double(), (size,), None, None, 1e-5)
    close(found, normal * at[0] + at[1])
    close(layers.layer_norm(x, None, None, 1e-5), normal)
    assert found.dtype == dtype


@pytest.mark.parametrize("terms", [1, 3])
def test_a_module_at_many_points(monkeypatch, terms):
    """With these kernels as with weights made for every point."""
    monkeypatch.setattr(arithmetic, "fused", lambda x: gpu)
    monkeypatch.setattr(beside, "fused", lambda x: gpu)
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(90, 70), nn.LayerNorm(70), nn.ReLU(), nn.Linear(70, 40, bias=False)).to(DEVICE)
    base, x = Params.of_module(module), made(4, 6, 90, seed=3)
    near = [Terms.of([10 * p + t for t in range(terms)], [0.1, -0.2, 0.3][:terms], Domain.RANK1) for p in range(4)]
    with torch.no_grad(), SideBySide(module).at(base, near):
        found = module(x.flatten(0, 1)).view(4, 6, -1)
    for point, rows, each in zip(near, x, found, strict=True):
        wanted = functional_call(module, base.view(point).tensors(), (rows,))
        assert torch.allclose(each, wanted, atol=1e-4)
    assert not torch.allclose(found[0], module(x[0]), atol=1e-1)


@pytest.mark.parametrize("terms", [1, 3])
def test_an_embedding_at_many_points(monkeypatch, terms):
    """Rows of W + Σ c a bᵀ."""
    monkeypatch.setattr(beside, "fused", lambda x: gpu)
    torch.manual_seed(1)
    module = nn.Embedding(50, 33).to(DEVICE)
    base, ids = Params.of_module(module), torch.randint(0, 50, (4, 6, 5), device=DEVICE)
    near = [Terms.of([10 * p + t for t in range(terms)], [0.1, -0.2, 0.3][:terms], Domain.RANK1) for p in range(4)]
    with torch.no_grad(), SideBySide(module).at(base, near):
        found = module(ids.flatten(0, 1)).view(4, 6, 5, 33)
    for point, rows, each in zip(near, ids, found, strict=True):
        assert torch.allclose(each, base.view(point).tensors()["weight"][rows], atol=1e-6)
    assert not torch.allclose(found[0], module(ids[0]), atol=1e-2)


@pytest.mark.parametrize(("points", "n", "size", "terms"), [(3, 2, 1500, 1), (1, 4, 70, 0), (2, 1, 40, 3)])
def test_log_sum_exp_of_a_part_of_the_vocabulary(points, n, size, terms):
    """The part begins with token 8 of a larger vocabulary; the second row has its target elsewhere."""
    y, scaled, shift = (
        made(points * n, size, seed=1),
        made(terms, points, n, 1, seed=2),
        made(points, size + 20, seed=3),
    )
    left = signs(terms, points, size + 20, 4) if terms else None
    targets = torch.arange(points * n, device=DEVICE) * 7 % size
    targets[1] = size + 3
    added = sum((scaled[t] * left[t] for t in range(terms)), torch.zeros(points, n, size + 20, device=DEVICE))
    wanted = y.double() + (added + shift[:, None])[..., 8 : 8 + size].reshape(points * n, size).double()
    vocabulary: Any = importlib.import_module("fedzero.directions.gpu.vocabulary")
    sums, at = vocabulary.log_sum_exp(y, targets, scaled if terms else None, left, shift, 8, points)
    assert torch.allclose(sums.double(), wanted.logsumexp(1), atol=1e-5)
    assert at[1] == 0
    assert torch.allclose(at.double()[2:], wanted.gather(1, targets.clamp(max=size - 1)[:, None])[2:, 0], atol=1e-5)
