"""Models of the experiments, and an initialisation that is the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.directions import Domain, derive
from fedzero.model.params import Params


class SmallCnn(nn.Module):
    """The CNN of experiment E1: conv 16@5×5, conv 32@5×5, linear; padding 2, 2×2 pools; 28,938 parameters.

    Pooling before ReLU gives the same numbers (both are monotone) for a quarter of the work. `channels_last` keeps the
    pools vectorised on a CPU; vmap, which evaluates many models at once on a GPU, does not know that layout.
    """

    def __init__(self, channels_last: bool = True) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
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
        h = F.linear(patches, self.conv1.weight.view(16, 25), self.conv1.bias).view(-1, 14, 2, 14, 2, 16)
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


class Standardise(nn.Module):
    """(x − mean) / deviation for every channel, of pixels in [0, 1]; not trained, and not among a model's weights."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


class AttackedCnn(nn.Module):
    """The victim of experiment E6 on MNIST: conv 16@5×5, conv 32@5×5, linear 64, linear 10; 46,730 parameters.

    2×2 pools. The paper (002, G.2) says two convolutions and two linear layers only. Reads pixels in [0, 1].
    """

    def __init__(self) -> None:
        super().__init__()
        self.standardise = Standardise((0.1307,), (0.3081,))
        self.conv1 = nn.Conv2d(1, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.linear1 = nn.Linear(32 * 4 * 4, 64)
        self.linear2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 1, 28, 28)."""
        h = self.conv1(self.standardise(x)).contiguous(memory_format=torch.channels_last)
        h = F.relu(F.max_pool2d(self.conv2(F.relu(F.max_pool2d(h, 2))), 2))
        result: Tensor = self.linear2(F.relu(self.linear1(h.flatten(1))))
        return result


class ResidualBlock(nn.Module):
    """ReLU(BN(conv 3×3(ReLU(BN(conv 3×3(x))))) + x), with a 1×1 convolution of x where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.beside: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.beside = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.beside(x))


class NarrowResNet(nn.Module):
    """The victim of experiment E6 on CIFAR-10: the 18 layers of ResNet18 (He et al. 2016), an eighth as wide.

    conv 3×3, four stages of two residual blocks with w, 2w, 4w and 8w channels (ResNet18: w = 64, here w = 8: 176,402
    parameters instead of 11 million), mean over the pixels, linear 10; stride 1 and no pool at first, as usual for
    32×32 pixels. Reads pixels in [0, 1]. So narrow because ten of them are trained on two cores in a quarter of an
    hour; one takes three minutes on 10,000 images and classifies 69 % of the test images correctly.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.standardise = Standardise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        widths = [width * 2**stage for stage in range(4)]
        blocks: list[nn.Module] = []
        for before, after in zip((width, *widths), widths, strict=False):
            blocks += [ResidualBlock(before, after, 1 if after == width else 2), ResidualBlock(after, after, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(widths[-1], 10)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 3, 32, 32)."""
        h = self.standardise(x).contiguous(memory_format=torch.channels_last)
        h = self.blocks(F.relu(self.norm(self.conv(h))))
        result: Tensor = self.linear(h.mean(dim=(2, 3)))
        return result


class TunedMlp(nn.Module):
    """The classifier of experiment E7: three layers, 54 → 30 → 14 → 7, ReLU; 2,189 parameters.

    The paper (002, G.3) says a 3-layer MLP; the line of work it follows has 2,189 parameters, which these widths give.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(54, 30)
        self.linear2 = nn.Linear(30, 14)
        self.linear3 = nn.Linear(14, 7)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 7) of rows (n, 54)."""
        result: Tensor = self.linear3(F.relu(self.linear2(F.relu(self.linear1(x)))))
        return result
