"""Metrics without gradients: equal to scikit-learn's to the last bit, and of the classifier the parameters mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch.nn.utils import vector_to_parameters

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.oracles import Basis
from fedzero.recipe import recipe as recipes
from fedzero.tasks import BuildContext
from fedzero_papers.oracles.metric import Metric, confusion, scores
from fedzero_papers.tasks import covertype
from fedzero_papers.tasks.metric import MetricTuning, drawn_classes
from fedzero_papers.tasks.victims import TunedMlp

KEYS, CPU = Keys.of_seed(5), torch.device("cpu")
HERE = BuildContext(KEYS, CPU, None)
SCORES: dict[str, Any] = {
    "precision": sklearn_metrics.precision_score,
    "recall": sklearn_metrics.recall_score,
    "f1": sklearn_metrics.f1_score,
    "jaccard": sklearn_metrics.jaccard_score,
}


def by_scikit(metric: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    return float(SCORES[metric](labels, predictions, average="macro", zero_division=0))


# ---- metrics


@pytest.mark.parametrize("metric", get_args(Metric))
def test_scores_equal_scikit_learn_to_the_last_bit(metric):
    """Few rows and many, classes that are never right, never said, or not there at all."""
    generator = np.random.default_rng(1)
    for _ in range(60):
        n, present, said = generator.integers((1, 1, 1), (80, 8, 8))
        labels = generator.choice(7, present, replace=False)[generator.integers(present, size=n)]
        guesses = generator.choice(7, said, replace=False)[generator.integers(said, size=(3, n))]
        right = generator.random((3, n)) < generator.random()
        predictions = np.where(right, labels, guesses)
        found = scores(metric, confusion(labels, predictions, 7))
        assert found.tolist() == [by_scikit(metric, labels, row) for row in predictions]


def test_a_metric_by_hand():
    labels, predictions = np.array([0, 0, 1, 1, 2]), np.array([[0, 1, 1, 1, 0]])
    counts = confusion(labels, predictions, 4)
    assert counts[0].tolist() == [[1, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert scores("precision", counts)[0] == pytest.approx((1 / 2 + 2 / 3 + 0) / 3)
    assert scores("recall", counts)[0] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert scores("f1", counts)[0] == pytest.approx((1 / 2 + 4 / 5 + 0) / 3)
    assert scores("jaccard", counts)[0] == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)


# ---- the objective


def mlp_at(problem: Any, u: torch.Tensor, bound: float) -> TunedMlp:
    """A module of its own with θ* + bound (2u − 1)."""
    mlp = TunedMlp()
    vector_to_parameters(problem.objective.start + bound * (2 * u.clamp(0, 1) - 1), mlp.parameters())
    return mlp.eval()


@pytest.mark.parametrize("metric", get_args(Metric))
def test_losses_are_those_of_the_classifier(metric):
    problem = MetricTuning(metric=metric, bound=0.7, samples=210).build(3, HERE)
    points = tuple(Terms.of([k] * (k > 0), [0.1 * k] * (k > 0), Domain.GAUSSIAN) for k in range(8))
    rows = [problem.shards.batch(KEYS, 0, 0, client) for client in (2, 0)]
    table = problem.objective.losses(problem.params, points, rows)
    assert table.shape == (2, 8)
    for values, mine in zip(table, rows, strict=True):
        for value, point in zip(values, points, strict=True):
            with torch.no_grad():
                outputs = mlp_at(problem, problem.params.view(point).vector(), 0.7)(mine.x)
            assert value == 1 - by_scikit(metric, mine.y, outputs.argmax(1).numpy())
    assert len(set(table.ravel().tolist())) > 8


def test_points_along_a_basis():
    problem = MetricTuning(samples=140).build(2, HERE)
    columns = torch.randn(2, 2189, generator=torch.Generator().manual_seed(3)) * 0.2
    points = (Terms.of([], [], Domain.GAUSSIAN), Terms.of([1, 2], [0.1, 0.1], Domain.GAUSSIAN))
    rows = problem.shards.batch(KEYS, 0, 0, 1)
    table = problem.objective.losses(problem.params, points, [rows], Basis(columns))
    for p, point in enumerate(points):
        u = problem.params.view(point).vector() + columns[p]
        with torch.no_grad():
            predictions = mlp_at(problem, u, 1.0)(rows.x).argmax(1).numpy()
        assert table[0, p] == 1 - by_scikit("precision", rows.y, predictions)


def test_many_points_are_evaluated_in_portions(monkeypatch):
    problem = MetricTuning(samples=70).build(2, HERE)
    points = tuple(Terms.of([k], [0.1], Domain.GAUSSIAN) for k in range(9))
    rows = [problem.shards.batch(KEYS, 0, 0, 0)]
    together = problem.objective.losses(problem.params, points, rows)
    monkeypatch.setattr("fedzero_papers.oracles.metric.TOGETHER", 70 * 30 * 2)
    np.testing.assert_array_equal(problem.objective.losses(problem.params, points, rows), together)


def test_weights_stay_within_the_bound():
    """Far outside of the box the classifier is that of the box's nearest corner."""
    problem = MetricTuning(samples=70, bound=0.4).build(2, HERE)
    rows = [problem.shards.batch(KEYS, 0, 0, client) for client in range(2)]
    far = Terms.of([1], [100.0], Domain.RADEMACHER)
    corner = problem.params.clone()
    corner.load({"x": (problem.params.view(far).vector() > 0).float()})
    nothing = Terms.of([], [], Domain.RADEMACHER)
    np.testing.assert_array_equal(
        problem.objective.losses(problem.params, (far,), rows), problem.objective.losses(corner, (nothing,), rows)
    )


def test_evaluation_is_the_mean_over_clients():
    problem = MetricTuning(metric="f1", share=0.3, samples=100).build(5, HERE)
    nothing = (Terms.of([], [], Domain.GAUSSIAN),)
    values = problem.objective.losses(problem.params, nothing, [problem.shards.batch(KEYS, 0, 0, c) for c in range(5)])
    found = problem.objective.evaluate(problem.params)
    assert found.loss == pytest.approx(values.mean(), rel=1e-12)
    assert found.others == {"metric": pytest.approx(1 - found.loss, rel=1e-12)}
    assert len(set(values[:, 0].tolist())) > 1


def test_there_is_no_gradient():
    problem = MetricTuning(samples=70).build(2, HERE)
    with pytest.raises(FedzeroError, match="no gradient: use a zeroth-order method"):
        problem.objective.gradient(problem.params, problem.shards.batch(KEYS, 0, 0, 0))


# ---- the task


def test_recipes_decode_into_it():
    task = recipes.task({"kind": "metric", "metric": "jaccard", "share": 0.3})
    assert task == MetricTuning(metric="jaccard", share=0.3)
    for wrong in ({"metric": "accuracy"}, {"share": 0}, {"bound": 0}, {"samples": 0}):
        with pytest.raises(msgspec.ValidationError):
            recipes.task({"kind": "metric", **wrong})
    labels = {MetricTuning(metric=m, share=p, repetition=r).label for m in SCORES for p in (0.5, 1.0) for r in (0, 1)}  # type: ignore[arg-type]
    assert len(labels) == 16


def test_it_starts_in_the_middle_of_the_box_with_the_trained_classifier():
    problem = MetricTuning(share=1.0, samples=1750).build(7, HERE)
    assert problem.params.size == 2189
    assert (problem.params.vector() == 0.5).all()
    accuracy = float(problem.facts["classifier"].split()[1])
    assert accuracy > 0.6
    data = covertype.load(False, None)
    with torch.no_grad():
        predictions = mlp_at(problem, problem.params.vector(), 1.0)(torch.from_numpy(data.test.x)).argmax(1).numpy()
    assert accuracy == pytest.approx((predictions == data.test.y).mean(), abs=1e-4)
    # With all classes and all rows, everybody's function is precision on the test rows.
    expected = 1 - by_scikit("precision", data.test.y, predictions)
    assert problem.objective.evaluate(problem.params).loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("share", "count"), [(0.1, 1), (0.3, 2), (0.5, 4), (1.0, 7)])
def test_clients_hold_equally_many_rows_of_their_classes(share, count):
    problem = MetricTuning(share=share, samples=200).build(7, HERE)
    classes = drawn_classes(share, 7, 0)
    for client, known in enumerate(classes):
        assert len(set(known)) == count
        found = problem.shards.batch(KEYS, 0, 0, client)
        labels, counts = np.unique(found.y, return_counts=True)
        assert (tuple(labels), set(counts)) == (known, {200 // count})
    holdings = {id(problem.shards.batch(KEYS, 1, 2, client)) for client in range(7)}
    assert len(holdings) == len(set(classes))
    assert (len(holdings) == 1) == (share == 1.0)


def test_rows_are_test_rows_and_another_repetition_draws_others():
    part = covertype.load(False, None).test
    test = {row.tobytes(): label for row, label in zip(part.x, part.y, strict=True)}
    first, again, other = (
        MetricTuning(samples=280, repetition=r).build(1, HERE).shards.batch(KEYS, 0, 0, 0) for r in (0, 0, 1)
    )
    assert [test.get(row.tobytes()) for row in first.x.numpy()] == first.y.tolist()
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)


def test_more_rows_than_there_are():
    with pytest.raises(FedzeroError, match=r"task\.samples = 2000 wants 285 rows .*only 250.*lower it"):
        MetricTuning(share=1.0, samples=2000).build(7, HERE)
    with pytest.raises(FedzeroError, match=r"task\.samples = 6 is less than one row"):
        MetricTuning(share=1.0, samples=6).build(7, HERE)


# ---- Covertype


def test_features_of_the_subset():
    data = covertype.load(False, None)
    assert np.bincount(data.train.y).tolist() == [200] * 7
    assert np.bincount(data.test.y).tolist() == [250] * 7
    for part in (data.train, data.test):
        assert part.x.shape[1] == 54
        assert set(np.unique(part.x[:, 10:])) == {0.0, 1.0}
        assert (part.x[:, 10:14].sum(1) == 1).all()
        assert (part.x[:, 14:].sum(1) == 1).all()
    np.testing.assert_allclose(data.train.x[:, :10].mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(data.train.x[:, :10].std(0), 1, atol=1e-4)


def test_the_subset_comes_from_the_full_file(full_data):
    full = covertype.load(True, full_data(covertype.FILE))
    assert [len(part.y) for part in (full.train, full.validation, full.test)] == [11_340, 3_780, 565_892]
    raw = np.load(Path(covertype.__file__).parents[1] / "data" / "covertype-subset.npz")
    with np.load(full_data(covertype.FILE) / covertype.FILE) as whole:
        y = whole["y"]
        rows = np.concatenate(
            [
                np.sort(np.concatenate([np.flatnonzero(y[:11_340] == c)[:200] for c in range(1, 8)])),
                15_120 + np.sort(np.concatenate([np.flatnonzero(y[15_120:] == c)[:250] for c in range(1, 8)])),
            ]
        )
        for name in ("num", "wilderness", "soil", "y"):
            np.testing.assert_array_equal(raw[name], whole[name][..., rows])
    assert np.bincount(full.train.y).tolist() == [1620] * 7


def small_file(folder: Path, **changes: Any) -> None:
    rows = 15_121
    parts = {
        "num": np.arange(10 * rows, dtype=np.int64).reshape(10, rows) % 1000,
        "wilderness": np.zeros(rows, np.uint8),
        "soil": np.full(rows, 39, np.uint8),
        "y": np.ones(rows, np.uint8),
    } | changes
    (folder / "covertype").mkdir(exist_ok=True)
    np.savez(folder / covertype.FILE, **{name: part for name, part in parts.items() if part is not None})


@pytest.mark.parametrize(
    "changes",
    [
        {"soil": np.full(15_121, 40, np.uint8)},
        {"wilderness": np.full(15_121, 4, np.uint8)},
        {"y": np.zeros(15_121, np.uint8)},
        {"y": np.full(15_121, 8, np.uint8)},
        {"y": np.ones(3, np.uint8)},
        {"num": np.zeros((9, 15_121), np.int16)},
        {"soil": None},
        {"num": np.zeros((10, 9), np.int16), **dict.fromkeys(("wilderness", "soil", "y"), np.ones(9, np.uint8))},
    ],
)
def test_files_that_do_not_fit(tmp_path, changes):
    small_file(tmp_path, **changes)
    with pytest.raises(FedzeroError, match=r"covtype\.npz"):
        covertype.load(True, tmp_path)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(FedzeroError, match=r"task\.full = true needs the Covertype file: give --data"):
        MetricTuning(full=True).build(2, HERE)
    with pytest.raises(FedzeroError, match=r"covtype\.npz is missing"):
        MetricTuning(full=True).build(2, BuildContext(KEYS, CPU, tmp_path))
    small_file(tmp_path)
    assert len(covertype.load(True, tmp_path).test.y) == 1
    (tmp_path / "cut").mkdir()
    small_file(tmp_path / "cut")
    path = tmp_path / "cut" / covertype.FILE
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(FedzeroError, match=r"covtype\.npz cannot be read"):
        covertype.load(True, tmp_path / "cut")


def test_the_mlp_has_2189_weights():
    assert [tuple(p.shape) for p in TunedMlp().parameters()] == [(30, 54), (30,), (14, 30), (14,), (7, 14), (7,)]
    assert sum(p.numel() for p in TunedMlp().parameters()) == 2189
