"""How matrix products are made while a model is evaluated.

On a GPU: whether float32 numbers may be multiplied with fewer bits (TF32). On a CPU without instructions for 16-bit
products: in float32, rounded once. torch takes 14.4 s there for a bfloat16 layer 576 → 1536 of 2,048 rows, and 0.05 s
this way (two cores, Neoverse N1, bench/cpu/products.py). Both add up in float32, so only the order of the sums differs.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    [
        *(F.linear, F.bilinear, F.conv1d, F.conv2d, F.conv3d, F.scaled_dot_product_attention),
        *(torch.conv1d, torch.conv2d, torch.conv3d, torch.einsum),
        *(torch.matmul, torch.mm, torch.mv, torch.bmm, torch.addmm, torch.baddbmm),
        *(Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.mv, Tensor.bmm, Tensor.addmm, Tensor.baddbmm),
    ]
)


def _without_instructions() -> frozenset[torch.dtype]:
    """The 16-bit types that this CPU has no products for. An Arm CPU's float16 products, where torch finds them, still
    take six times as long as those of float32."""
    onednn, types = torch.ops.mkldnn, {torch.bfloat16, torch.float16}
    try:
        if onednn._is_mkldnn_bf16_supported():
            types.remove(torch.bfloat16)
        if onednn._is_mkldnn_fp16_supported() and platform.machine() not in ("aarch64", "arm64"):
            types.remove(torch.float16)
    except AttributeError:  # torch without oneDNN
        pass
    return frozenset(types)


WITHOUT_INSTRUCTIONS = _without_instructions()


def products(weight: Tensor, tf32: bool | None = None) -> AbstractContextManager[Any]:
    """To be entered around a forward pass of a model with such weights, by the thread that computes it; `tf32` None
    leaves torch's setting as it is."""
    if made_in_float32(weight):
        return InFloat32(weight.dtype)
    return nullcontext() if tf32 is None or weight.device.type == "cpu" else _tf32_allowed(tf32)


def made_in_float32(x: Tensor) -> bool:
    """Whether products of such numbers are."""
    return x.device.type == "cpu" and x.dtype in WITHOUT_INSTRUCTIONS


class InFloat32(TorchFunctionMode):
    """Products of numbers of a 16-bit type are made in float32 and rounded to it."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function not in PRODUCTS or "out" in kwargs or not self._all_short([*args, *kwargs.values()]):
            return function(*args, **kwargs)
        wide = function(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()})
        return wide.to(self.dtype)

    def _all_short(self, values: Sequence[Any]) -> bool:
        """Whether there are floating-point numbers and all are of this type: of several types torch complains."""
        tensors = [each for value in values for each in (value if isinstance(value, tuple | list) else [value])]
        kinds = {each.dtype for each in tensors if isinstance(each, Tensor) and each.is_floating_point()}
        return kinds == {self.dtype}


def _wide(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_wide, value))
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


@contextmanager
def _tf32_allowed(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
