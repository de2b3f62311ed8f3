"""A convolution whose input may have been cut into patches before: at many points the patches are the same."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PatchConv(nn.Conv2d):
    """Reads images (n, channels, height, width), or their patches (n, places, numbers of a patch): then the result is
    (n, places, outputs)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.flatten(1), self.bias) if x.dim() == 3 else super().forward(x)
