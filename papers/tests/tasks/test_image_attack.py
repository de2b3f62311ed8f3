"""Attacks on one image: margins by hand, pixels within bounds, who knows which classes, which images are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles import Basis
from fedzero.recipe import recipe as recipes
from fedzero.tasks import BuildContext, images
from fedzero_papers.oracles.boxed import WholeShards
from fedzero_papers.oracles.image_attack import ImageAttackObjective
from fedzero_papers.tasks import cifar, image_attack
from fedzero_papers.tasks.image_attack import ImageAttack, drawn_classes
from fedzero_papers.tasks.trained import fit
from fedzero_papers.tasks.victims import AttackedCnn, NarrowResNet

KEYS, CPU = Keys.of_seed(2), torch.device("cpu")
HERE = BuildContext(KEYS, CPU, None)
NAMES = ("naught", "one", "two", "three")


# ---- the objective, with victims whose logits are linear in the pixels


class LinearVictim(nn.Module):
    def __init__(self, seed: int, pixels: int = 12) -> None:
        super().__init__()
        self.matrix = torch.randn(4, pixels, generator=torch.Generator().manual_seed(seed))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.matrix.T


VICTIMS = [LinearVictim(1), LinearVictim(2), LinearVictim(3)]
IMAGE = torch.rand(3, 2, 2, generator=torch.Generator().manual_seed(9))
BOUND = 0.25


@pytest.fixture
def objective() -> ImageAttackObjective:
    return ImageAttackObjective(VICTIMS, IMAGE, 2, BOUND, NAMES)


def margin_by_hand(victim: LinearVictim, u: np.ndarray, label: int = 2) -> float:
    """In float64, one logit after the other."""
    x = BOUND * (2 * np.clip(u.astype(np.float64), 0, 1) - 1)
    attacked = np.clip(IMAGE.numpy().reshape(-1).astype(np.float64) + x, 0, 1)
    logits = [float(np.dot(row, attacked)) for row in victim.matrix.double().numpy()]
    return logits[label] - max(logit for c, logit in enumerate(logits) if c != label)


def some_points(count: int, size: float) -> tuple[Terms, ...]:
    return (Terms.of([], [], Domain.GAUSSIAN), *(Terms.of([k], [size], Domain.GAUSSIAN) for k in range(1, count)))


@pytest.mark.parametrize("size", [0.01, 3.0])
def test_margins_are_those_by_hand(objective, size):
    """Near the middle of the box, and far outside of it."""
    base, points = Params.of_vector(torch.rand(12, generator=torch.Generator().manual_seed(4))), some_points(7, size)
    table = objective.losses(base, points, [2, 0, 1])
    expected = [
        [margin_by_hand(VICTIMS[client], base.view(point).vector().numpy()) for point in points] for client in (2, 0, 1)
    ]
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-6)


def test_points_of_several_terms_and_of_a_basis(objective):
    base = Params.of_vector(torch.full((12,), 0.5))
    columns = torch.randn(2, 12, generator=torch.Generator().manual_seed(5)) * 0.1
    points = (Terms.of([1, 2], [0.1, -0.2], Domain.RADEMACHER), Terms.of([3], [0.1], Domain.RADEMACHER))
    for basis in (Basis(columns), Basis(columns, np.array([[0.5, -1.0], [2.0, 0.0]]))):
        table = objective.losses(base, points, [1], basis)
        for p, point in enumerate(points):
            u = (base.view(point).vector() + basis.offset(p)).numpy()
            assert table[0, p] == pytest.approx(margin_by_hand(VICTIMS[1], u), rel=1e-5)


def test_no_pixel_changes_by_more_than_the_bound(objective):
    seen: list[Tensor] = []

    class Watching(LinearVictim):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return super().forward(x)

    watched = ImageAttackObjective([Watching(1)], IMAGE, 2, BOUND, NAMES)
    watched.losses(Params.of_vector(torch.full((12,), 0.5)), some_points(300, 5.0), [0])
    everything = torch.cat(seen)
    assert len(everything) == 300
    assert float((everything - IMAGE).abs().max()) == pytest.approx(BOUND, abs=1e-6), "reached, and not passed"
    assert float(everything.min()) >= 0
    assert float(everything.max()) <= 1


def test_clients_that_share_a_model_are_asked_once():
    calls: list[int] = []

    class Counting(LinearVictim):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(len(x))
            return super().forward(x)

    shared = Counting(1)
    objective = ImageAttackObjective([shared] * 4, IMAGE, 2, BOUND, NAMES)
    table = objective.losses(Params.of_vector(torch.full((12,), 0.4)), some_points(5, 0.1), [0, 1, 2, 3])
    assert calls == [5]
    assert (table == table[0]).all()


def test_gradients_are_those_of_the_margin(objective):
    u = torch.rand(12, generator=torch.Generator().manual_seed(6)) * 0.6 + 0.2
    value, gradient = objective.gradient(Params.of_vector(u.clone()), 1)
    assert value == pytest.approx(margin_by_hand(VICTIMS[1], u.numpy()), rel=1e-5)
    for j in range(12):
        step = np.eye(12)[j] * 1e-5
        slope = (
            margin_by_hand(VICTIMS[1], u.double().numpy() + step)
            - margin_by_hand(VICTIMS[1], u.double().numpy() - step)
        ) / 2e-5
        assert float(gradient[j]) == pytest.approx(slope, abs=1e-4)


@pytest.mark.parametrize("label", range(4))
def test_success_is_decided_by_the_mean_of_the_logits(label):
    objective = ImageAttackObjective(VICTIMS, IMAGE, label, BOUND, NAMES)
    u = torch.rand(12, generator=torch.Generator().manual_seed(7))
    metrics = objective.evaluate(Params.of_vector(u))
    x = BOUND * (2 * u - 1)
    attacked = (IMAGE.flatten() + x).clamp(0, 1)
    mean = torch.stack([victim.matrix @ attacked for victim in VICTIMS]).mean(0)
    assert metrics.others["success"] == (0.0 if int(mean.argmax()) == label else 1.0)
    assert metrics.others["distortion"] == pytest.approx(float(x @ x), rel=1e-6)
    assert metrics.others["largest"] == pytest.approx(float(x.abs().max()))
    by_hand = [margin_by_hand(victim, u.numpy(), label) for victim in VICTIMS]
    assert metrics.loss == pytest.approx(np.mean(by_hand), rel=1e-5)
    assert metrics.accuracy is None


def test_pictures_have_the_right_pixels(objective):
    u = torch.tensor([0.0, 1.0, 0.5] * 4)
    shown = objective.pictures(Params.of_vector(u))
    assert (shown.height, shown.width, shown.channels) == (2, 2, 3)
    pixels = np.frombuffer(shown.pixels, np.uint8).reshape(len(shown.rows), len(shown.columns), 2, 2, 3)
    channels_last = [part.reshape(3, 2, 2).transpose(1, 2, 0) for part in (IMAGE.numpy(), u.numpy())]
    np.testing.assert_array_equal(pixels[0, 0], np.round(channels_last[0] * 255))
    np.testing.assert_array_equal(pixels[1, 0], np.round(channels_last[1] * 255), "black, white, and grey: no change")
    attacked = np.clip(channels_last[0] + np.float32(BOUND) * (2 * channels_last[1] - 1), 0, 1)
    np.testing.assert_array_equal(pixels[2, 0], np.round(attacked * 255))
    mean = torch.stack([v.matrix @ torch.from_numpy(attacked).permute(2, 0, 1).flatten() for v in VICTIMS]).mean(0)
    assert shown.columns == (f"two, taken for {NAMES[int(mean.argmax())]}",)


def test_a_batch_is_the_client():
    shards = WholeShards(range(5))
    assert [shards.batch(KEYS, 3, 1, client) for client in range(shards.clients)] == [0, 1, 2, 3, 4]


# ---- the task


def test_recipes_decode_into_it():
    task = recipes.task({"kind": "image-attack", "dataset": "cifar10", "share": 0.3, "image": 14})
    assert isinstance(task, ImageAttack)
    assert (task.dataset, task.share, task.image, task.bound) == ("cifar10", 0.3, 14, 0.3)
    for wrong in ({"image": 15}, {"share": 0.0}, {"share": 1.1}, {"bound": 0.0}, {"dataset": "fashion"}):
        with pytest.raises(msgspec.ValidationError):
            recipes.task({"kind": "image-attack", **wrong})
    labels = {ImageAttack(image=i, share=p, repetition=r).label for i in (0, 1) for p in (0.5, 1.0) for r in (0, 1)}
    assert len(labels) == 8


@pytest.mark.parametrize(("share", "count", "common"), [(0.2, 2, 1), (0.3, 3, 2), (0.5, 5, 2), (0.9, 9, 2)])
def test_models_know_two_classes_in_common_and_others_of_their_own(share, count, common):
    classes = [drawn_classes(share, 40, repetition) for repetition in range(3)]
    for drawn in classes:
        assert {len(set(known)) for known in drawn} == {count}
        assert all(known == tuple(sorted(known)) for known in drawn)
        everybody = set.intersection(*(set(known) for known in drawn))
        assert len(everybody) == common
        assert set.union(*(set(known) for known in drawn)) == set(range(10)), "forty clients draw every class"
    assert len({tuple(drawn) for drawn in classes}) == 3, "another repetition, another draw"
    assert drawn_classes(share, 40, 0) == classes[0]


def test_with_all_classes_all_models_are_one():
    assert set(drawn_classes(1.0, 10, 0)) == {tuple(range(10))}
    with pytest.raises(FedzeroError, match=r"task\.share = 0\.14 is 1 of ten classes"):
        drawn_classes(0.14, 10, 0)


def built(number: int, share: float = 0.2, clients: int = 3) -> Any:
    return ImageAttack(image=number, share=share).build(clients, HERE)


def test_real_victims_classify_the_image_rightly_before_the_attack():
    problem = built(3)
    assert problem.params.size == 784
    assert (problem.params.vector() == 0.5).all()
    objective = problem.objective
    metrics = objective.evaluate(problem.params)
    assert metrics.others == {"success": 0.0, "distortion": 0.0, "largest": 0.0}
    margins = objective.losses(problem.params, (Terms.of([], [], Domain.GAUSSIAN),), [0, 1, 2])
    assert (margins > 0).all(), "every client is right"
    assert margins.mean() == pytest.approx(metrics.loss, rel=1e-6)
    assert len({id(victim) for victim in objective.victims}) == len(set(drawn_classes(0.2, 3, 0)))
    everybody = set.intersection(*(set(known) for known in drawn_classes(0.2, 3, 0)))
    assert objective.label in everybody
    assert "test image" in problem.facts["image"]
    accuracies = [float(word.strip(",")) for word in problem.facts["victims"].split() if word.startswith(("0.", "1."))]
    assert all(0.9 < value <= 1 for value in accuracies)
    subset = images.load_subset("mnist")
    index = int(problem.facts["image"].split()[2].strip(","))
    np.testing.assert_allclose(objective.image[0].numpy() * 255, subset.test_x[index], atol=1e-4)
    assert objective.label == subset.test_y[index]


def test_fifteen_different_images():
    facts = [built(number).facts["image"].split()[2] for number in range(15)]
    assert len(set(facts)) == 15
    digests = {built(number).facts["digest of the victims"] for number in (0, 1)}
    assert len(digests) == 1, "whichever end it began to train them from"


def test_with_all_classes_everybody_has_the_same_model(monkeypatch):
    monkeypatch.setattr(image_attack, "fit", lambda m, x, y, how: fit(m, x[::5], y[::5], how))  # good enough, and fast
    problem = built(0, share=1.0)
    assert len({id(victim) for victim in problem.objective.victims}) == 1
    margins = problem.objective.losses(problem.params, some_points(4, 0.05), [0, 1, 2])
    assert (margins == margins[0]).all()
    assert not (margins[0] == margins[0, 0]).all()


def test_following_the_gradients_misleads_everybody():
    """The attack can succeed at all: steps along the mean gradient, in the box."""
    problem = ImageAttack(image=1, share=0.2, bound=0.5).build(3, HERE)
    for _ in range(60):
        slopes = torch.stack([problem.objective.gradient(problem.params, client)[1] for client in range(3)]).mean(0)
        problem.params.load({"x": (problem.params.vector() - 0.05 * slopes.sign()).clamp(0, 1)})
    metrics = problem.objective.evaluate(problem.params)
    assert metrics.others["success"] == 1.0
    assert metrics.loss < 0
    assert metrics.others["largest"] <= 0.5


def test_full_images_are_wanted_but_no_folder_is_given():
    with pytest.raises(FedzeroError, match=r"task\.full.*mnist.*--data"):
        ImageAttack(full=True).build(3, HERE)


# ---- CIFAR-10


def test_cifar_is_not_in_the_package(tmp_path: Path):
    with pytest.raises(FedzeroError, match=r"CIFAR-10 is not in the package.*--data"):
        ImageAttack(dataset="cifar10").build(3, HERE)
    with pytest.raises(FedzeroError, match=r"cifar10-subset\.npz is missing"):
        ImageAttack(dataset="cifar10").build(3, BuildContext(KEYS, CPU, tmp_path))


def cifar_file(folder: Path, **changes: Any) -> None:
    parts = {
        "x_train": np.zeros((4, 32, 32, 3), np.uint8),
        "y_train": np.arange(4, dtype=np.uint8),
        "x_test": np.ones((2, 32, 32, 3), np.uint8),
        "y_test": np.array([9, 0], np.uint8),
    } | changes
    (folder / "cifar10").mkdir(exist_ok=True)
    np.savez(folder / cifar.FILE, **{name: part for name, part in parts.items() if part is not None})


@pytest.mark.parametrize(
    "changes",
    [
        {"x_train": np.zeros((4, 3, 32, 32), np.uint8)},
        {"x_train": np.zeros((4, 32, 32, 3), np.float32)},
        {"y_train": np.arange(3, dtype=np.uint8)},
        {"y_test": np.array([9, 10], np.uint8)},
        {"y_test": None},
    ],
)
def test_cifar_files_that_do_not_fit(tmp_path, changes):
    cifar_file(tmp_path)
    assert cifar.load(tmp_path).test_y.tolist() == [9, 0]
    cifar_file(tmp_path, **changes)
    with pytest.raises(FedzeroError, match=r"cifar10-subset\.npz"):
        cifar.load(tmp_path)
    (tmp_path / cifar.FILE).write_bytes(b"nonsense")
    with pytest.raises(FedzeroError, match="cannot be read"):
        cifar.load(tmp_path)


def test_the_real_subset(full_data):
    found = cifar.load(full_data(cifar.FILE))
    assert np.bincount(found.train_y).tolist() == [1000] * 10
    assert np.bincount(found.test_y).tolist() == [200] * 10
    mean, deviation = NarrowResNet().standardise.mean.flatten(), NarrowResNet().standardise.deviation.flatten()
    pixels = found.train_x[::4] / np.float32(255)
    np.testing.assert_allclose(pixels.mean((0, 1, 2), dtype=np.float64), mean, atol=1e-2)
    np.testing.assert_allclose(pixels.std((0, 1, 2), dtype=np.float64), deviation, atol=1e-2)


# ---- the models


def test_the_victims_are_as_described():
    cnn, resnet = AttackedCnn(), NarrowResNet()
    assert [sum(p.numel() for p in model.parameters()) for model in (cnn, resnet)] == [46_730, 176_402]
    large = [m for m in resnet.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(large) + 1 == 18, "the last one is linear"
    assert sum(p.numel() for p in NarrowResNet(64).parameters()) == 11_173_962, "ResNet18 for 32×32 pixels"
    for model, shape in ((cnn.eval(), (2, 1, 28, 28)), (resnet.eval(), (2, 3, 32, 32))):
        with torch.no_grad():
            assert model(torch.rand(shape)).shape == (2, 10)


def test_pixels_become_standard_scores():
    standardise = NarrowResNet().standardise
    x = torch.rand(2, 3, 4, 4)
    for channel, (mean, deviation) in enumerate(((0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616))):
        torch.testing.assert_close(standardise(x)[:, channel], (x[:, channel] - mean) / deviation)
    assert not any(name.startswith("standardise") for name in NarrowResNet().state_dict())
