"""Launching a Triton kernel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

_compiled: dict[tuple[Any, ...], Any] = {}


def start(kernel: Any, programs: int, warps: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
    """Launch on the current device. Triton's own look-up of a compiled kernel takes longer than most tensors do, so
    they are kept here by all it specialises on: device, type and alignment of tensors, width of integers, constants."""
    traits: list[Any] = [kernel.__name__, warps, constants]
    for value in arguments:
        if isinstance(value, Tensor):
            traits.append((value.dtype, value.get_device(), value.data_ptr() % 16 == 0))
        else:
            traits.append(value.bit_length() < 32)
    known = _compiled.get(tuple(traits))
    if known is None:
        launched = kernel[(programs,)](*arguments, *constants, num_warps=warps, enable_fp_fusion=False)
        if launched is not None:  # the interpreter compiles nothing
            _compiled[tuple(traits)] = launched
    else:
        known[(programs, 1, 1)](*arguments, *constants)
