"""Two classes: labels, parts, batches, where the models start, and files that are not as they should be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedzero.directions import Domain, Keys, Terms, derive, reference
from fedzero.errors import FedzeroError
from fedzero.oracles import ALL_DATA
from fedzero.recipe import recipe as recipes
from fedzero.tasks import BuildContext, images
from fedzero.tasks.partition import Shards
from fedzero_papers.oracles.rows import DenseRows, SparseRows
from fedzero_papers.tasks import rcv1
from fedzero_papers.tasks.binary import Binary

KEYS = Keys.of_seed(4)
CPU = torch.device("cpu")
HERE = BuildContext(KEYS, CPU, None)


def test_recipes_decode_into_it():
    table = {"kind": "binary", "dataset": "rcv1", "model": "mlp", "partition": {"kind": "shards", "per_client": 1}}
    task = recipes.task(table)
    assert task == Binary(dataset="rcv1", model="mlp", partition=Shards(1))
    assert (task.batch, task.hidden, task.full) == (64, 50, False)
    assert {Binary(dataset=d, model=m).label for d in ("mnist", "rcv1") for m in ("svm", "mlp")} == {
        "MNIST 0–4 against 5–9 (4,000 training rows), linear SVM",
        "MNIST 0–4 against 5–9 (4,000 training rows), MLP",
        "RCV1-v2 sample (19,000 training rows), linear SVM",
        "RCV1-v2 sample (19,000 training rows), MLP",
    }


# ---- images


@pytest.mark.parametrize("dataset", ["mnist", "fashion"])
@pytest.mark.parametrize(("model", "size", "loss"), [("logistic", 784, math.log(2)), ("svm", 784, 1.0)])
def test_linear_models_start_at_zero(dataset, model, size, loss):
    problem = Binary(dataset=dataset, model=model).build(10, HERE)
    assert problem.params.size == size
    assert not problem.params.vector().any()
    metrics = problem.objective.evaluate(problem.params)
    assert metrics.loss == pytest.approx(loss)
    assert metrics.accuracy == 0.5, "a score of zero says −1, which is right for half of the images"


def test_the_perceptron_starts_from_the_direction_stream():
    params = Binary(model="mlp", hidden=7).build(3, HERE).params
    shapes = {name: tuple(tensor.shape) for name, tensor in params.tensors.items()}
    assert shapes == {"hidden.weight": (784, 7), "hidden.bias": (7,), "output.weight": (1, 7), "output.bias": (1,)}
    for ordinal, (tensor, fan_in) in enumerate(zip(params.tensors.values(), (784, 784, 7, 7), strict=True)):
        z = reference.direction(Domain.GAUSSIAN, derive(KEYS.root, "init"), ordinal, tensor.numel())
        np.testing.assert_allclose(tensor.numpy().ravel(), z / math.sqrt(3 * fan_in), rtol=1e-6)
    assert Binary(model="mlp").build(3, HERE).params.size == 784 * 50 + 50 + 50 + 1


def test_rows_are_pixels_and_labels_are_halves():
    objective: Any = Binary(dataset="fashion").build(10, HERE).objective
    rows, labels = objective.train
    subset = images.load_subset("fashion")
    np.testing.assert_allclose(rows.x, subset.train_x.reshape(4000, 784) / 255, atol=1e-7)
    assert set(labels[subset.train_y < 5]) == {-1.0}
    assert set(labels[subset.train_y >= 5]) == {1.0}


def test_pixels_as_torchvision_scales_them():
    objective: Any = Binary(dataset="mnist", scaling="standard").build(10, HERE).objective
    rows, _ = objective.train
    plain = images.load_subset("mnist").train_x.reshape(4000, 784) / 255
    np.testing.assert_allclose(rows.x, (plain - 0.1307) / 0.3081, atol=1e-5)
    assert 700 < float((rows.x**2).sum(1).mean()) < 870


def test_shards_sorted_by_ten_labels():
    problem: Any = Binary(partition=Shards(1), sorted_by="labels").build(100, HERE)
    digits = images.load_subset("mnist").train_y
    assert all(len(set(digits[part])) == 1 for part in problem.shards.parts)


def test_a_batch_is_drawn_by_the_rule_of_all_tasks():
    """The same samples as an image task with the same parts would draw."""
    problem: Any = Binary(batch=20).build(10, HERE)
    shards, samples = problem.shards, problem.objective.train
    numbered = images.LabelledShards(torch.arange(4000), torch.arange(4000), shards.parts, 20)
    for round, step, client in ((0, 0, 0), (3, 1, 4), (3, 2, 4), (5, ALL_DATA, 9)):
        index = numbered.batch(KEYS, round, step, client)[0].numpy()
        rows, labels = shards.batch(KEYS, round, step, client)
        assert isinstance(rows, DenseRows)
        np.testing.assert_array_equal(rows.x, samples[0].x[index])
        np.testing.assert_array_equal(labels, samples[1][index])
        assert len(rows) == (400 if step == ALL_DATA else 20)


def test_sorted_shards_give_a_client_one_of_the_two_labels():
    problem: Any = Binary(partition=Shards(1)).build(100, HERE)
    shards = problem.shards
    labels = [set(problem.objective.train[1][part]) for part in shards.parts]
    assert all(len(kinds) == 1 for kinds in labels)
    assert sum(kinds == {1.0} for kinds in labels) == 50
    digits = images.load_subset("mnist").train_y
    several = [len(set(digits[part])) for part in shards.parts]
    assert min(several) > 1, "sorted by what is classified, not by digit"


def test_gradient_steps_learn_the_digits():
    problem = Binary(model="logistic").build(1, HERE)
    batch = problem.shards.batch(KEYS, 0, ALL_DATA, 0)
    before = problem.objective.evaluate(problem.params).loss
    for _ in range(40):
        problem.params.add(problem.objective.gradient(problem.params, batch)[1] * -0.1)
    metrics = problem.objective.evaluate(problem.params)
    assert metrics.loss < 0.8 * before
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.75


def test_full_images_are_wanted_but_no_folder_is_given():
    with pytest.raises(FedzeroError, match=r"task\.full.*mnist.*--data"):
        Binary(full=True).build(4, HERE)


# ---- RCV1


def test_rcv1_is_not_in_the_package():
    with pytest.raises(FedzeroError, match=r"task\.dataset = 'rcv1'.*--data"):
        Binary(dataset="rcv1").build(4, HERE)


def small_file(folder: Path, **changes: Any) -> None:
    parts = {
        "indptr": np.array([0, 2, 2, 3], np.int32),
        "indices": np.array([0, 4, 65000], np.uint16),
        "data": np.array([0.6, 0.8, 1.0], np.float32),
        "y": np.array([1, -1, 1], np.int8),
        "shape": np.array([3, 65001]),
    } | changes
    (folder / "rcv1").mkdir(exist_ok=True)
    np.savez(folder / rcv1.FILE, **{name: part for name, part in parts.items() if part is not None})


def test_rows_are_read_as_they_are(tmp_path):
    small_file(tmp_path)
    rows, labels = rcv1.load(tmp_path)
    assert (len(rows), rows.width, labels.tolist()) == (3, 65001, [1, -1, 1])
    ones = np.ones((1, 65001), np.float32)
    np.testing.assert_allclose(rows.along(ones)[:, 0], [1.4, 0, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"indptr": np.array([0, 2, 3], np.int32)},
        {"indptr": np.array([0, 3, 2, 3], np.int32)},
        {"indptr": np.array([0, 2, 2, 4], np.int32)},
        {"indptr": np.array([1, 2, 2, 3], np.int32)},
        {"indices": np.array([0, 4, 65001], np.int64)},
        {"indices": np.array([0, -1, 2], np.int64)},
        {"data": np.array([0.6, np.nan, 1.0], np.float32)},
        {"data": np.array([0.6], np.float32)},
        {"y": np.array([1, 0, 1], np.int8)},
        {"y": np.array([1, 1], np.int8)},
        {"y": None},
        {"shape": np.array([3, 2, 1])},
    ],
)
def test_parts_that_do_not_fit(tmp_path, changes):
    small_file(tmp_path, **changes)
    with pytest.raises(FedzeroError, match=r"rcv1-binary-sample\.npz"):
        rcv1.load(tmp_path)


def test_missing_damaged_and_short_files(tmp_path):
    with pytest.raises(FedzeroError, match=r"rcv1-binary-sample\.npz is missing.*--data"):
        rcv1.load(tmp_path)
    small_file(tmp_path)
    with pytest.raises(FedzeroError, match="3 rows"):
        Binary(dataset="rcv1").build(2, BuildContext(KEYS, CPU, tmp_path))
    path = tmp_path / rcv1.FILE
    content = path.read_bytes()
    for spoiled in (b"", b"nonsense", content[: len(content) // 2], content[:200] + bytes(50) + content[250:]):
        path.write_bytes(spoiled)
        with pytest.raises(FedzeroError, match=r"rcv1-binary-sample\.npz"):
            rcv1.load(tmp_path)


def test_the_real_sample(full_data):
    place = BuildContext(KEYS, CPU, full_data(rcv1.FILE))
    problem = Binary(dataset="rcv1", partition=Shards(1)).build(100, place)
    shards: Any = problem.shards
    rows, labels = problem.objective.train
    assert isinstance(rows, SparseRows)
    assert (len(rows), rows.width, problem.params.size) == (19_000, 47_236, 47_236)
    assert {len(part) for part in shards.parts} == {190}
    assert sum(len(set(labels[part])) == 1 for part in shards.parts) >= 99
    squares = np.add.reduceat(rows.values**2, rows.offsets[:-1])
    np.testing.assert_allclose(squares, 1, atol=1e-4)
    everything = rows, labels
    for _ in range(10):
        problem.params.add(problem.objective.gradient(problem.params, everything)[1] * -100)
    metrics = problem.objective.evaluate(problem.params)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.9
    # A probe of the MLP, 2,361,901 parameters: the values of x ± μz differ, a little.
    mlp = Binary(dataset="rcv1", model="mlp").build(100, place)
    assert mlp.params.size == 47_236 * 50 + 50 + 50 + 1
    points = tuple(Terms.of([1], [sign * 1e-4], Domain.GAUSSIAN) for sign in (1, -1))
    values = mlp.objective.losses(mlp.params, points, [mlp.shards.batch(KEYS, 0, 0, 3)])
    assert values.shape == (1, 2)
    assert 0 < abs(values[0, 0] - values[0, 1]) < 1e-2
