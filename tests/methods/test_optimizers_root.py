"""√x in float32 is the nearest number, on every device."""

from __future__ import annotations

import numpy as np
import torch

from fedzero.methods.rules.arithmetic import root


def test_the_root_is_correctly_rounded() -> None:
    """NumPy's float32 root is IEEE's; a vector library's need not be."""
    x = np.random.default_rng(3).random(1 << 20, np.float32) * np.float32(1e-3)
    assert np.array_equal(root(torch.from_numpy(x)).numpy(), np.sqrt(x))
