"""Models of the packaged tasks, and an initialisation that is the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.directions import Domain, derive
from fedzero.model.params import Params
from fedzero.oracles.patches import PatchConv


class SmallCnn(nn.Module):
    """The CNN of experiment E1: conv 16@5×5, conv 32@5×5, linear; padding 2, 2×2 pools; 28,938 parameters.

    Pooling before ReLU gives the same numbers (both are monotone) for a quarter of the work. `channels_last` keeps the
    pools vectorised on a CPU; vmap, which evaluates many models at once on a GPU, does not know that layout.
    """

    def __init__(self, channels_last: bool = True) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.conv1 = PatchConv(1, 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2)
        self.linear = nn.Linear(32 * 7 * 7, 10)

    def prepare(self, x: Tensor) -> Tensor:
        """The 5×5 patches of the images, (n, 784, 25): the first layer reads the same ones at every point."""
        return F.unfold(x, 5, padding=2).transpose(1, 2).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (n, 1, 28, 28), or of their patches from `prepare`."""
        h = self._pooled_patches(x) if x.dim() == 3 else self._pooled_images(x)
        h = F.relu(F.max_pool2d(self.conv2(F.relu(h, inplace=True)), 2), inplace=True)
        result: Tensor = self.linear(h.flatten(1))
        return result

    def _pooled_images(self, x: Tensor) -> Tensor:
        h = self.conv1(x)
        return F.max_pool2d(h.contiguous(memory_format=torch.channels_last) if self.channels_last else h, 2)

    def _pooled_patches(self, patches: Tensor) -> Tensor:
        """The same as one matrix product and a maximum over the four corners, in channels-last order."""
        h = self.conv1(patches).view(-1, 14, 2, 14, 2, 16)
        left, right = h[:, :, :, :, 0], h[:, :, :, :, 1]
        rows = torch.maximum(left, right)
        return torch.maximum(rows[:, :, 0], rows[:, :, 1]).permute(0, 3, 1, 2)


class LargeCnn(nn.Module):
    """The CNN of experiment E2: conv 32@3×3, conv 64@3×3, 2×2 pool, linear 128, linear 62; 1,206,590 parameters.

    The paper gives that count only, which the usual CNN of the FEMNIST benchmark has (Caldas et al. 2018, in the form
    of Reddi et al. 2021), with 62 outputs: on ten classes 52 are never right. `channels_last` as in `SmallCnn`.
    """

    def __init__(self, channels_last: bool = True) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.linear1 = nn.Linear(64 * 12 * 12, 128)
        self.linear2 = nn.Linear(128, 62)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 62) of images (n, 1, 28, 28)."""
        h = self.conv1(x)
        h = F.relu(h.contiguous(memory_format=torch.channels_last) if self.channels_last else h)
        h = F.relu(F.max_pool2d(self.conv2(h), 2))
        result: Tensor = self.linear2(F.relu(self.linear1(h.flatten(1))))
        return result


class Perceptron(nn.Module):
    """784-200-10 with ReLU: 159,010 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(28 * 28, 200)
        self.linear2 = nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (n, 1, 28, 28)."""
        result: Tensor = self.linear2(F.relu(self.linear1(x.flatten(1))))
        return result


def initialise(params: Params, root: bytes, inputs: Mapping[str, int] | None = None) -> None:
    """Weights and biases from N(0, 1/(3·fan_in)), the variance of torch's default, drawn from the direction stream.

    `inputs`: the fan_in of weights that are not stored as (outputs, inputs …).
    """
    key, fan_in = derive(root, "init"), 1
    vector = params.direction(Domain.GAUSSIAN, key)
    values = {}
    for (name, tensor), piece in zip(params.tensors.items(), params.split(vector), strict=True):
        if tensor.dim() > 1:  # a bias follows its weight
            fan_in = (inputs or {}).get(name, tensor[0].numel())
        # A product: torch divides by a scalar differently on CPU and GPU, and both must start from the same bits.
        scale = float(np.float32(1) / np.float32(math.sqrt(3 * fan_in)))
        values[name] = (piece * scale).view(tensor.shape).to(tensor.dtype)
    params.load(values)
