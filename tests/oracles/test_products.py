"""16-bit products on a CPU without instructions for them: in float32, rounded once; everything else as it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params
from fedzero.oracles import products
from fedzero.oracles.module import ModuleObjective
from fedzero.oracles.products import InFloat32

NARROW = [torch.bfloat16, torch.float16]


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


CASES = {
    "a linear layer": lambda x, w: F.linear(x, w.mT, x[0, 0, 0].expand(5)),
    "an operator": lambda x, w: x @ w,
    "a method": lambda x, w: x.matmul(w),
    "many at once": lambda x, w: torch.bmm(x, w.expand(3, -1, -1)),
    "added to something": lambda x, w: torch.baddbmm(x[..., :5], x, w.expand(3, -1, -1)),
    "attention": lambda x, w: F.scaled_dot_product_attention(x, x, x),
    "masked attention": lambda x, w: F.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT),
    "a convolution": lambda x, w: F.conv1d(x, w.T[:, :4, None].contiguous()),
    "a sum over indices": lambda x, w: torch.einsum("nij,jk->nik", x, w),
}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("product", CASES.values(), ids=CASES)
def test_the_float32_product_rounded(product, dtype):
    x, w = numbers(3, 4, 7, dtype=dtype), numbers(7, 5, dtype=dtype, seed=1)
    with InFloat32(dtype):
        found = product(x, w)
    assert found.dtype == dtype
    if product is CASES["masked attention"]:  # two products, rounded between them
        wanted = F.scaled_dot_product_attention(
            *[x.float()] * 3, attn_mask=(x.float() @ x.float().mT).to(dtype).float()
        )
    else:
        wanted = product(x.float(), w.float())
    assert torch.equal(found, wanted.to(dtype))


def test_other_types_and_other_functions_are_left_alone():
    x, w = numbers(4, 7), numbers(7, 5, seed=1)
    product, total = x.double() @ w.double(), x + x
    with InFloat32(torch.bfloat16):
        assert torch.equal(x.double() @ w.double(), product)
        assert torch.equal(x + x, total)
        with pytest.raises(RuntimeError, match="dtype"):
            F.linear(x, w.mT.float())
        out = torch.empty(4, 5, dtype=torch.bfloat16)
        assert torch.mm(x, w, out=out) is out


def test_gradients_pass():
    x, w = numbers(4, 7), numbers(7, 5, seed=1).requires_grad_()
    with InFloat32(torch.bfloat16):
        (x @ w).sum().backward()
    assert w.grad is not None
    assert torch.equal(w.grad, x.float().sum(0)[:, None].expand(7, 5).to(torch.bfloat16))


@pytest.mark.parametrize("lacking", [True, False])
def test_a_module_is_evaluated_so_where_the_cpu_lacks_them(monkeypatch, lacking):
    monkeypatch.setattr(products, "WITHOUT_INSTRUCTIONS", frozenset(NARROW if lacking else ()))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).bfloat16()
    seen = []
    multiply = InFloat32.__torch_function__
    monkeypatch.setattr(InFloat32, "__torch_function__", lambda *a: seen.append(a[1]) or multiply(*a))
    batch = numbers(8, 6, seed=3), torch.arange(8) % 3
    objective, params = ModuleObjective(module, [batch]), Params.of_module(module)
    for stream in (Domain.GAUSSIAN, Domain.RANK1):
        found = objective.losses(params, [Terms.of([], [], stream), Terms.of([7], [0.1], stream)], [batch])
        wide = {name: tensor.float() for name, tensor in params.tensors.items()}
        right = torch.func.functional_call(module.float(), wide, (batch[0].float(),))
        module.bfloat16()
        assert found[0, 0] == pytest.approx(float(F.cross_entropy(right, batch[1])), rel=1e-2)
    objective.evaluate(params)
    objective.gradient(params, batch)
    assert (F.linear in seen) == lacking


def test_a_gpu_setting_is_put_back():
    before = torch.backends.cuda.matmul.allow_tf32
    with products.products(SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32), tf32=not before):
        assert torch.backends.cuda.matmul.allow_tf32 is not before
    assert torch.backends.cuda.matmul.allow_tf32 is before
    with products.products(torch.ones(1), tf32=not before):
        assert torch.backends.cuda.matmul.allow_tf32 is before
