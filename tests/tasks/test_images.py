"""MNIST: the IDX reader, the subset in the package, the CNN and its beginning, and batches."""

from __future__ import annotations

import gzip
import math
import struct

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from fedzero.directions import Domain, Keys, derive, reference
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.tasks import BuildContext, Mnist, images
from fedzero.tasks.models import Perceptron, SmallCnn, initialise

# ---- IDX files


def idx(array: np.ndarray) -> bytes:
    """The format as its authors describe it: 0, 0, type, dimensions; sizes, big-endian; bytes."""
    return struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (5, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize("shape", [(7,), (2, 3), (5, 4, 3), (0, 28, 28)])
def test_reads_plain_and_gzipped_files(tmp_path, shape):
    array = np.random.default_rng(2).integers(0, 256, shape, dtype=np.uint8)
    (tmp_path / "plain-ubyte").write_bytes(idx(array))
    (tmp_path / "packed-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    for name in ("plain-ubyte", "packed-ubyte.gz", "plain-ubyte.gz"):  # the last is not there, but its plain twin is
        found = images.read_idx(tmp_path / name)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("cut", [0, 3, 4, 10, 16, -1])
def test_truncated_file(tmp_path, pixels, cut, packed):
    content = idx(pixels)[:cut]
    path = tmp_path / ("cut-ubyte.gz" if packed else "cut-ubyte")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(FedzeroError, match="cut-ubyte"):
        images.read_idx(path)


def test_overlong_file(tmp_path, pixels):
    (tmp_path / "long-ubyte").write_bytes(idx(pixels) + b"\0")
    with pytest.raises(FedzeroError, match="long-ubyte"):
        images.read_idx(tmp_path / "long-ubyte")


@pytest.mark.parametrize("sizes", [(-5, 4, -3), (2**16, 2**16, 2**16), (2**31 - 1, 2**31 - 1, 4)])
def test_sizes_that_do_not_fit(tmp_path, pixels, sizes):
    (tmp_path / "odd-ubyte").write_bytes(struct.pack(">BBBB3i", 0, 0, 8, 3, *sizes) + pixels.tobytes())
    with pytest.raises(FedzeroError, match="odd-ubyte"):
        images.read_idx(tmp_path / "odd-ubyte")


@pytest.mark.parametrize("magic", [b"\x01\0\x08\x03", b"\0\x01\x08\x03", b"\0\0\x0d\x03", b"PNG!"])
def test_wrong_magic(tmp_path, pixels, magic):
    (tmp_path / "wrong-ubyte").write_bytes(magic + idx(pixels)[4:])
    with pytest.raises(FedzeroError, match="wrong-ubyte is not an IDX file"):
        images.read_idx(tmp_path / "wrong-ubyte")


def test_damaged_gzip(tmp_path, pixels):
    path = tmp_path / "packed-ubyte.gz"
    content = gzip.compress(idx(pixels))
    for spoiled in (content[:-9], b"nonsense", content[:12] + bytes(len(content) - 12), b""):
        path.write_bytes(spoiled)
        with pytest.raises(FedzeroError, match="packed-ubyte"):
            images.read_idx(path)


def test_every_byte_of_a_gzip(tmp_path, pixels):
    """Refused, or read as it was written."""
    path, content = tmp_path / "packed-ubyte.gz", gzip.compress(idx(pixels))
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            np.testing.assert_array_equal(images.read_idx(path), pixels)
        except FedzeroError as error:
            assert "packed-ubyte" in str(error)


def test_missing_file_is_named_with_the_mend(tmp_path):
    with pytest.raises(FedzeroError, match=r"train-images-idx3-ubyte.*--data"):
        images.load_idx(tmp_path)


def test_four_files(tmp_path, pixels):
    parts = {
        "train-images-idx3": pixels,
        "train-labels-idx1": np.arange(5, dtype=np.uint8),
        "t10k-images-idx3": pixels[:2] + 1,
        "t10k-labels-idx1": np.arange(2, dtype=np.uint8) + 7,
    }
    for name, array in parts.items():
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    found = images.load_idx(tmp_path)
    for array, expected in zip((found.train_x, found.train_y, found.test_x, found.test_y), parts.values(), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_as_many_labels_as_images(tmp_path, pixels):
    for name, array in (("images-idx3", pixels), ("labels-idx1", np.zeros(4, np.uint8))):
        for part in ("train", "t10k"):
            (tmp_path / f"{part}-{name}-ubyte").write_bytes(idx(array))
    with pytest.raises(FedzeroError, match="4"):
        images.load_idx(tmp_path)


# ---- the subset in the package


@pytest.fixture(scope="module")
def subset() -> images.Images:
    return images.load_subset()


def test_subset_is_balanced(subset):
    for x, y, each in ((subset.train_x, subset.train_y, 400), (subset.test_x, subset.test_y, 100)):
        assert x.shape == (10 * each, 28, 28)
        assert x.dtype == y.dtype == np.uint8
        assert np.bincount(y).tolist() == [each] * 10
        # Real images: no two alike, ink in the middle and none at the rim.
        assert len({image.tobytes() for image in x}) == len(x)
        assert x[:, 10:18, 10:18].mean() > 50
        assert x[:, :2].mean() < 1


def test_training_and_test_images_are_apart(subset):
    train = {image.tobytes() for image in subset.train_x}
    assert not any(image.tobytes() in train for image in subset.test_x)


def test_subset_comes_from_the_full_files(subset, full_data):
    """Every image, with its label, is one of the full set's; training from training, test from test."""
    full = images.load_idx(full_data("mnist") / "mnist")
    assert (len(full.train_y), len(full.test_y)) == (60_000, 10_000)
    for x, y, whole_x, whole_y in (
        (subset.train_x, subset.train_y, full.train_x, full.train_y),
        (subset.test_x, subset.test_y, full.test_x, full.test_y),
    ):
        labels = {image.tobytes(): int(label) for image, label in zip(whole_x, whole_y, strict=True)}
        assert [labels.get(image.tobytes()) for image in x] == y.tolist()


def test_pixels_become_standard_scores(subset):
    x, y = images.tensors(subset.train_x, subset.train_y, torch.device("cpu"))
    assert (x.shape, x.dtype, y.dtype) == ((4000, 1, 28, 28), torch.float32, torch.int64)
    expected = (subset.train_x[17].astype(np.float64) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(x[17, 0].numpy(), expected, atol=1e-6)
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02
    assert y.tolist() == subset.train_y.tolist()


# ---- the CNN


def layers(**weights: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes by name: of each layer's weights, and of its biases, one for each output."""
    kinds = {"weight": lambda shape: shape, "bias": lambda shape: shape[:1]}
    return {f"{layer}.{kind}": of(shape) for layer, shape in weights.items() for kind, of in kinds.items()}


@pytest.fixture
def cnn() -> SmallCnn:
    torch.manual_seed(3)
    return SmallCnn().eval()


def test_cnn_has_28938_parameters(cnn):
    assert Params.of_module(cnn).size == sum(p.numel() for p in cnn.parameters()) == 28_938
    shapes = {name: tuple(tensor.shape) for name, tensor in Params.of_module(cnn).tensors.items()}
    assert shapes == layers(conv1=(16, 1, 5, 5), conv2=(32, 16, 5, 5), linear=(10, 1568))


def test_cnn_is_conv_relu_pool_twice_and_linear(cnn):
    x = torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(4))
    p = dict(cnn.named_parameters())
    h = F.max_pool2d(F.relu(F.conv2d(x, p["conv1.weight"], p["conv1.bias"], padding=2)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, p["conv2.weight"], p["conv2.bias"], padding=2)), 2)
    expected = h.reshape(6, -1) @ p["linear.weight"].T + p["linear.bias"]
    with torch.no_grad():
        torch.testing.assert_close(cnn(x), expected, rtol=1e-5, atol=1e-5)


def test_initialise_is_a_function_of_the_root(cnn):
    other = SmallCnn()
    a, b = Params.of_module(cnn), Params.of_module(other)
    assert a.digest() != b.digest(), "torch's own beginnings differ"
    initialise(a, Keys.of_seed(5).root)
    initialise(b, Keys.of_seed(5).root)
    assert a.digest() == b.digest()
    initialise(b, Keys.of_seed(6).root)
    assert a.digest() != b.digest()


def test_initial_weights_come_from_the_direction_stream(cnn):
    params, root = Params.of_module(cnn), Keys.of_seed(7).root
    initialise(params, root)
    fans = (25, 25, 400, 400, 1568, 1568)
    for ordinal, (tensor, fan_in) in enumerate(zip(params.tensors.values(), fans, strict=True)):
        z = reference.direction(Domain.GAUSSIAN, derive(root, "init"), ordinal, tensor.numel())
        np.testing.assert_allclose(tensor.numpy().ravel(), z / math.sqrt(3 * fan_in), rtol=1e-6)


def test_initial_weights_are_gaussian_with_the_stated_variance(cnn):
    """N(0, 1/(3·fan_in)) for weights and the biases that follow them; pooled over seeds."""
    scores: dict[str, list[np.ndarray]] = {}
    fans = {"conv1": 25, "conv2": 400, "linear": 1568}
    for seed in range(20):
        params = Params.of_module(cnn)
        initialise(params, Keys.of_seed(seed).root)
        for name, tensor in params.tensors.items():
            scores.setdefault(name, []).append(tensor.numpy().ravel() * math.sqrt(3 * fans[name.split(".")[0]]))
    for name, pieces in scores.items():
        values = np.concatenate(pieces)
        assert stats.kstest(values, "norm").pvalue > 1e-4, name


# ---- batches


@pytest.fixture(scope="module")
def shards(subset) -> images.LabelledShards:
    parts = [np.arange(c, 4000, 8) for c in range(7)] + [np.array([7, 15, 23])]
    x = torch.arange(4000, dtype=torch.float32)[:, None]  # an "image" that says which sample it is
    return images.LabelledShards(x, torch.from_numpy(subset.train_y.astype(np.int64)), parts, 32)


def test_a_batch_is_drawn_without_replacement_from_the_client_s_own(shards, subset):
    for client in range(7):
        x, y = shards.batch(Keys.of_seed(1), 2, 3, client)
        drawn = x[:, 0].long().tolist()
        assert len(set(drawn)) == len(drawn) == 32
        assert set(drawn) <= set(shards.parts[client].tolist())
        assert y.tolist() == subset.train_y[drawn].tolist()


def test_a_client_with_few_samples_uses_all_of_them(shards):
    x, _ = shards.batch(Keys.of_seed(1), 0, 0, 7)
    assert x[:, 0].tolist() == [7, 15, 23]


def test_a_batch_is_a_function_of_keys_and_numbers(shards):
    def drawn(seed: int, round: int, step: int, client: int) -> list[float]:
        return shards.batch(Keys.of_seed(seed), round, step, client)[0][:, 0].tolist()

    first = drawn(1, 2, 3, 4)
    others = [drawn(2, 2, 3, 4), drawn(1, 3, 3, 4), drawn(1, 2, 4, 4), drawn(1, 2, 3, 5)]
    assert drawn(1, 2, 3, 4) == first, "nothing in between has moved it"
    assert all(sorted(other) != sorted(first) for other in others)
    assert len({tuple(other) for other in others}) == 4


def test_batches_cover_the_part_evenly(shards):
    """500 samples, 32 a batch, 400 batches: each is drawn 25.6 times on average."""
    counts = np.zeros(4000)
    for round in range(400):
        counts[shards.batch(Keys.of_seed(9), round, 0, 0)[0][:, 0].long().numpy()] += 1
    mine = counts[shards.parts[0]]
    assert counts.sum() == mine.sum() == 400 * 32
    # Each count is binomial(400, 0.064); the dispersion of draws without replacement is that times 499/500.
    dispersion = ((mine - 25.6) ** 2).sum() / (25.6 * (1 - 0.064))
    assert stats.chi2.ppf(1e-4, 499) < dispersion < stats.chi2.ppf(1 - 1e-4, 499)


def test_the_task_puts_it_together():
    place = BuildContext(Keys.of_seed(2), torch.device("cpu"), None)
    problem, again = (Mnist(batch=16).build(20, place) for _ in range(2))
    assert problem.params.digest() == again.params.digest()
    assert (problem.params.size, problem.shards.clients) == (28_938, 20)
    x, y = problem.shards.batch(place.keys, 0, 0, 11)
    assert (x.shape, y.shape) == ((16, 1, 28, 28), (16,))
    metrics = problem.objective.evaluate(problem.params)
    assert metrics.loss == pytest.approx(math.log(10), abs=0.3), "an untrained classifier of ten digits"
    assert 0 <= metrics.accuracy <= 0.35


def test_full_files_are_wanted_but_no_folder_is_given():
    with pytest.raises(FedzeroError, match=r"task\.full"):
        Mnist(full=True).build(4, BuildContext(Keys.of_seed(0), torch.device("cpu"), None))


def test_patches_give_the_same_logits():
    net = SmallCnn()
    x = torch.randn(7, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(net(net.prepare(x)), net(x), atol=1e-5)


# ---- the perceptron


def test_the_perceptron_by_hand():
    model, x = Perceptron(), torch.randn(3, 1, 28, 28)
    params = Params.of_module(model)
    assert params.size == 784 * 200 + 200 + 200 * 10 + 10 == 159_010
    w1, b1, w2, b2 = model.parameters()
    torch.testing.assert_close(model(x), torch.relu(x.view(3, 784) @ w1.T + b1) @ w2.T + b2)


def test_the_model_is_an_option_of_the_task():
    context = BuildContext(Keys.of_seed(1), torch.device("cpu"), None)
    for model, size, label in (("cnn", 28_938, "CNN"), ("mlp", 159_010, "perceptron")):
        task = Mnist(model=model)
        assert task.build(2, context).params.size == size
        assert task.label.endswith(label)
