"""Fashion-MNIST: the subset in the package, its scale, and the large CNN under every way of evaluating it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_images import layers
from torch.func import functional_call

from fedzero.directions import Domain, Keys, Terms, derive, reference
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.module import ModuleObjective
from fedzero.tasks import BuildContext, Fashion, images
from fedzero.tasks.models import LargeCnn, initialise

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def subset() -> images.Images:
    return images.load_subset("fashion")


def test_subset_is_balanced_and_is_not_mnist(subset):
    for x, y, each in ((subset.train_x, subset.train_y, 400), (subset.test_x, subset.test_y, 100)):
        assert x.shape == (10 * each, 28, 28)
        assert x.dtype == y.dtype == np.uint8
        assert np.bincount(y).tolist() == [each] * 10
    digits = {image.tobytes() for image in images.load_subset("mnist").train_x}
    assert not any(image.tobytes() in digits for image in subset.train_x)


def test_subset_comes_from_the_full_files_and_so_does_the_scale(subset, full_data):
    full = images.load("fashion", True, full_data("fashion-mnist"))
    for x, y, whole_x, whole_y in (
        (subset.train_x, subset.train_y, full.train_x, full.train_y),
        (subset.test_x, subset.test_y, full.test_x, full.test_y),
    ):
        labels = {image.tobytes(): int(label) for image, label in zip(whole_x, whole_y, strict=True)}
        assert [labels.get(image.tobytes()) for image in x] == y.tolist()
    pixels = full.train_x / np.float32(255)
    assert images.STATISTICS["fashion"] == (
        pytest.approx(pixels.mean(dtype=np.float64), abs=5e-5),
        pytest.approx(pixels.std(dtype=np.float64), abs=5e-5),
    )


def test_pixels_become_standard_scores(subset):
    x, _ = images.tensors(subset.train_x, subset.train_y, CPU, "fashion")
    np.testing.assert_allclose(x[3, 0].numpy(), (subset.train_x[3] / 255 - 0.2860) / 0.3530, atol=1e-6)
    assert abs(float(x.mean())) < 0.03
    assert abs(float(x.std()) - 1) < 0.03


def test_large_cnn_has_1206590_parameters():
    shapes = {name: tuple(tensor.shape) for name, tensor in Params.of_module(LargeCnn()).tensors.items()}
    assert sum(math.prod(shape) for shape in shapes.values()) == 1_206_590
    assert shapes == layers(conv1=(32, 1, 3, 3), conv2=(64, 32, 3, 3), linear1=(128, 9216), linear2=(62, 128))


@pytest.mark.parametrize("channels_last", [True, False])
def test_large_cnn_is_conv_relu_conv_relu_pool_and_two_linear(channels_last):
    net = LargeCnn(channels_last)
    initialise(Params.of_module(net), b"r" * 32)
    x = torch.randn(5, 1, 28, 28, generator=torch.Generator().manual_seed(4))
    p = {name: tensor.detach().double() for name, tensor in net.named_parameters()}
    h = F.relu(F.conv2d(x.double(), p["conv1.weight"], p["conv1.bias"]))
    h = F.max_pool2d(F.relu(F.conv2d(h, p["conv2.weight"], p["conv2.bias"])), 2).reshape(5, -1)
    expected = F.relu(h @ p["linear1.weight"].T + p["linear1.bias"]) @ p["linear2.weight"].T + p["linear2.bias"]
    with torch.no_grad():
        torch.testing.assert_close(net(x).double(), expected, rtol=1e-4, atol=1e-5)


def test_initial_weights_come_from_the_direction_stream():
    params, root = Params.of_module(LargeCnn()), Keys.of_seed(7).root
    initialise(params, root)
    fans = (9, 9, 288, 288, 9216, 9216, 128, 128)
    for ordinal, (tensor, fan_in) in enumerate(zip(params.tensors.values(), fans, strict=True)):
        z = reference.direction(Domain.GAUSSIAN, derive(root, "init"), ordinal, min(tensor.numel(), 4096))
        np.testing.assert_allclose(tensor.numpy().ravel()[:4096], z / math.sqrt(3 * fan_in), rtol=1e-6)


@pytest.fixture(scope="module")
def many() -> tuple[LargeCnn, Params, tuple[Terms, ...], torch.Tensor, torch.Tensor]:
    net = LargeCnn(channels_last=False)
    params = Params.of_module(net)
    initialise(params, b"s" * 32)
    points = tuple(Terms.of([k] * (k > 0), [0.01] * (k > 0), Domain.GAUSSIAN) for k in range(3))
    x = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(5))
    return net, params, points, x, torch.tensor([0, 9, 4, 4])


def test_vmap_over_models_gives_each_model_s_logits(many):
    net, params, points, x, _ = many
    models = [params.view(point).tensors() for point in points]
    stacked = {name: torch.stack([model[name] for model in models]) for name in params.names}
    with torch.no_grad():
        together = torch.vmap(lambda tensors: functional_call(net, tensors, (x,)))(stacked)
        alone = torch.stack([functional_call(LargeCnn(channels_last=True), model, (x,)) for model in models])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_the_objective_gives_the_same_losses_together_and_one_by_one(many):
    net, params, points, x, y = many
    tables = [
        ModuleObjective(net, [(x, y)], together=together).losses(params, points, [(x, y)]) for together in (False, True)
    ]
    assert tables[0].shape == (1, 3)
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-5)
    expected = [F.cross_entropy(functional_call(net, params.view(p).tensors(), (x,)), y).item() for p in points]
    np.testing.assert_allclose(tables[0][0], expected, rtol=1e-5)


def test_the_task_puts_it_together():
    place = BuildContext(Keys.of_seed(2), CPU, None)
    problem, again = (Fashion(batch=16).build(20, place) for _ in range(2))
    assert problem.params.digest() == again.params.digest()
    assert (problem.params.size, problem.shards.clients) == (1_206_590, 20)
    x, y = problem.shards.batch(place.keys, 0, 0, 11)
    assert (x.shape, y.shape) == ((16, 1, 28, 28), (16,))
    assert Fashion(model="small").build(2, place).params.size == 28_938


def test_full_files_are_wanted_but_no_folder_is_given():
    with pytest.raises(FedzeroError, match=r"task\.full.*fashion.*--data"):
        Fashion(full=True).build(4, BuildContext(Keys.of_seed(0), CPU, None))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_beginning_is_the_same_on_a_gpu():
    devices = (CPU, torch.device("cuda"))
    problems = [Fashion().build(10, BuildContext(Keys.of_seed(3), device, None)) for device in devices]
    assert problems[0].params.digest() == problems[1].params.digest()
    tables = []
    for problem in problems:
        points = tuple(Terms.of([k], [1e-3], Domain.GAUSSIAN) for k in range(4))
        batch = problem.shards.batch(Keys.of_seed(3), 0, 0, 1)
        tables.append(problem.objective.losses(problem.params, points, [batch]))
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-3)
