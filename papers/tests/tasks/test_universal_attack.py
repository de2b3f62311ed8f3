"""The universal attack: losses by hand, gradients, memory, pictures; and the task: who holds which images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles import ALL_DATA, Basis
from fedzero.recipe import recipe as recipes
from fedzero.tasks import BuildContext, images
from fedzero_papers.oracles.universal_attack import TOGETHER, Targets, UniversalAttackObjective, _some
from fedzero_papers.tasks import universal_attack
from fedzero_papers.tasks.trained import Fit, fit
from fedzero_papers.tasks.universal_attack import UniversalAttack, pixels, victim
from fedzero_papers.tasks.victims import Victim

KEYS, CPU = Keys.of_seed(5), torch.device("cpu")
HERE = BuildContext(KEYS, CPU, None)
NAMES = ("naught", "one", "two", "three")
LABEL, WEIGHT = 2, 0.7


# ---- the objective, with a victim small enough to be worked out by hand


class Hyperbolic(nn.Module):
    """Logits B tanh(A a) of images of 3×4 pixels."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.a = torch.randn(6, 12, generator=generator)
        self.b = 2 * torch.randn(4, 6, generator=generator)
        self.passes: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1:] == (1, 3, 4)
        self.passes.append(x)
        return torch.tanh(x.flatten(1) @ self.a.T) @ self.b.T


IMAGES = torch.rand(9, 3, 4, generator=torch.Generator().manual_seed(2)) - 0.5
IMAGES[0, 0] = -0.5
IMAGES[1, 2] = 0.5


@pytest.fixture
def objective() -> UniversalAttackObjective:
    return UniversalAttackObjective(Hyperbolic(), Targets(IMAGES[:6], LABEL, NAMES), IMAGES[6:], WEIGHT)


def attacked_by_hand(image: np.ndarray, x: np.ndarray) -> np.ndarray:
    """½ tanh(atanh(2a) + x) by addition of areas: (t + s)/(1 + ts) with t = 2a, s = tanh x."""
    t, s = np.clip(2 * image.astype(np.float64), -(1 - 1e-6), 1 - 1e-6), np.tanh(x.astype(np.float64))
    return 0.5 * (t + s) / (1 + t * s)


def by_hand(image: Tensor, x: np.ndarray) -> tuple[float, float, int]:
    """(margin, distortion, predicted) of one image in float64."""
    net, flat = Hyperbolic(), image.numpy().reshape(-1)
    attacked = attacked_by_hand(flat, x)
    logits = net.b.double().numpy() @ np.tanh(net.a.double().numpy() @ attacked)
    rest = max(value for j, value in enumerate(logits) if j != LABEL)
    return logits[LABEL] - rest, float(((attacked - flat) ** 2).sum()), int(logits.argmax())


def loss_by_hand(image: Tensor, x: np.ndarray) -> float:
    margin, distortion, _ = by_hand(image, x)
    return max(margin, 0.0) + WEIGHT * distortion


def somewhere(seed: int = 3, size: float = 0.5) -> Params:
    return Params.of_vector(size * torch.randn(12, generator=torch.Generator().manual_seed(seed)))


def some_points(count: int) -> tuple[Terms, ...]:
    return (Terms.of([], [], Domain.GAUSSIAN), *(Terms.of([k], [0.3], Domain.GAUSSIAN) for k in range(1, count)))


def test_losses_are_those_by_hand(objective):
    base, points = somewhere(), some_points(8)
    batches = [torch.tensor([0, 4, 5]), torch.tensor([1])]
    table = objective.losses(base, points, batches)
    xs = [base.view(point).vector().numpy() for point in points]
    expected = [[np.mean([loss_by_hand(IMAGES[int(i)], x) for i in batch]) for x in xs] for batch in batches]
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-6)
    margins = [by_hand(image, x)[0] for image in IMAGES[:6] for x in xs]
    assert min(margins) < 0 < max(margins), "both sides of the kink were seen"


def test_points_of_several_terms_and_of_a_basis(objective):
    base, columns = somewhere(), torch.randn(2, 12, generator=torch.Generator().manual_seed(5)) * 0.3
    points = (Terms.of([1, 2], [0.3, -0.2], Domain.RADEMACHER), Terms.of([3], [0.1], Domain.RADEMACHER))
    for basis in (Basis(columns), Basis(columns, np.array([[0.5, -1.0], [2.0, 0.0]]))):
        table = objective.losses(base, points, [torch.tensor([3])], basis)
        for p, point in enumerate(points):
            x = (base.view(point).vector() + basis.offset(p)).numpy()
            assert table[0, p] == pytest.approx(loss_by_hand(IMAGES[3], x), rel=1e-5)


def test_passes_are_few_and_bounded(objective):
    """Two points of a small batch go together; however many there are, no pass is larger than it may be."""
    objective.losses(somewhere(), some_points(2), [torch.arange(6)])
    assert [len(x) for x in objective.victim.passes] == [12]
    objective.victim.passes.clear()
    objective.losses(somewhere(), some_points(300), [torch.arange(6)])
    sizes = [len(x) for x in objective.victim.passes]
    assert sum(sizes) == 1800
    assert max(sizes) <= TOGETHER
    assert len(sizes) <= 1800 / TOGETHER * 1.1 + 1
    objective.victim.passes.clear()
    objective.losses(somewhere(), some_points(1), [torch.arange(6).repeat(100)])
    assert max(len(x) for x in objective.victim.passes) <= TOGETHER, "a batch that is too large alone"


def test_images_at_many_points_are_not_all_made_at_once():
    pieces = list(_some(torch.zeros(500, 12), 6))
    assert max(len(some) for some in pieces) * 6 <= TOGETHER
    assert sum(len(some) for some in pieces) == 500
    assert [len(some) for some in _some(torch.zeros(3, 12), 2 * TOGETHER)] == [1, 1, 1], "at least one point"


def test_attacked_images_stay_images(objective):
    objective.losses(somewhere(size=30.0), some_points(40), [torch.arange(6)])
    seen = torch.cat(objective.victim.passes)
    assert float(seen.abs().max()) <= 0.5
    assert torch.isfinite(seen).all()


def test_black_pixels_can_be_moved_but_only_by_much(objective):
    """At ±½ the clamp gives 7.25 in the space of x; without it no x would do anything."""
    black = IMAGES[:1].flatten(1)[0, :4]
    assert (black == -0.5).all()
    for x, least, most in ((1.0, 0.0, 1e-4), (7.0, 0.2, 0.5), (14.0, 0.999, 1.0)):
        objective.victim.passes.clear()
        objective.losses(Params.of_vector(torch.full((12,), x)), some_points(1), [torch.tensor([0])])
        moved = objective.victim.passes[0].flatten(1)[0, :4] - black
        assert least <= float(moved.min()) <= float(moved.max()) <= most


def test_gradients_are_those_of_central_differences(objective):
    batch = torch.tensor([0, 1, 2, 4])
    value, gradient = objective.gradient(somewhere(), batch)
    x = somewhere().vector().double().numpy()

    def mean(x: np.ndarray) -> float:
        return float(np.mean([loss_by_hand(IMAGES[int(i)], x) for i in batch]))

    assert value == pytest.approx(mean(x), rel=1e-5)
    slopes = [(mean(x + step) - mean(x - step)) / 2e-5 for step in 1e-5 * np.eye(12)]
    np.testing.assert_allclose(gradient.numpy(), slopes, rtol=1e-4, atol=1e-4)
    assert np.abs(slopes).max() > 0.1


def test_what_is_measured(objective):
    x = somewhere(7, 1.5)
    metrics = objective.evaluate(x)
    pool = [by_hand(image, x.vector().numpy()) for image in IMAGES[:6]]
    others = [by_hand(image, x.vector().numpy())[2] != LABEL for image in IMAGES[6:]]
    successes = [predicted != LABEL for _, _, predicted in pool]
    assert 0 < sum(successes) < 6, "the example has both"
    assert metrics.others["success"] == pytest.approx(np.mean(successes))
    assert metrics.others["held-out success"] == pytest.approx(np.mean(others))
    assert metrics.others["distortion"] == pytest.approx(np.mean([d for _, d, _ in pool]), rel=1e-5)
    assert metrics.others["attack loss"] == pytest.approx(np.mean([max(m, 0) for m, _, _ in pool]), rel=1e-5)
    whole = metrics.others["attack loss"] + WEIGHT * metrics.others["distortion"]
    assert metrics.loss == pytest.approx(whole, rel=1e-6)
    assert metrics.accuracy is None


def test_pictures_have_the_right_pixels(objective):
    x = somewhere(7, 1.5)
    shown = objective.pictures(x)
    assert (shown.height, shown.width, shown.channels, len(shown.rows)) == (3, 4, 1, 3)
    found = np.frombuffer(shown.pixels, np.uint8).reshape(3, 6, 3, 4)
    for column, image in enumerate(IMAGES[:6]):
        flat = image.numpy().astype(np.float64)
        attacked = attacked_by_hand(flat.reshape(-1), x.vector().numpy()).reshape(3, 4)
        difference = np.clip(attacked - flat, -0.5, 0.5)
        for row, part in enumerate((flat, difference, attacked)):
            np.testing.assert_allclose(found[row, column], (part + 0.5) * 255, atol=0.51)
        assert shown.columns[column] == f"two → {NAMES[by_hand(image, x.vector().numpy())[2]]}"
    grey = np.frombuffer(objective.pictures(Params.of_vector(torch.zeros(12))).pixels, np.uint8).reshape(3, -1)[1]
    assert set(grey.tolist()) <= {127, 128}, "no perturbation is grey"


# ---- the task


@pytest.fixture(scope="module", autouse=True)
def short_training() -> Iterator[None]:
    """Victims of these tests are trained for two epochs: good enough, and fast."""

    def short(module: nn.Module, x: Tensor, y: Tensor, how: Fit) -> None:
        assert how.epochs == 20
        fit(module, x, y, replace(how, epochs=2))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(universal_attack, "fit", short)
        yield


@pytest.fixture(scope="module")
def subset() -> images.Images:
    return images.load_subset("fashion")


def test_recipes_decode_into_it():
    task = recipes.task({"kind": "universal-attack", "dataset": "mnist", "weight": 0.5})
    assert isinstance(task, UniversalAttack)
    assert (task.label_attacked, task.pool, task.per_client, task.weight, task.full) == (4, 200, 60, 0.5, False)
    for wrong in ({"label_attacked": 10}, {"pool": 0}, {"weight": -1.0}, {"dataset": "rcv1"}):
        with pytest.raises(msgspec.ValidationError):
            recipes.task({"kind": "universal-attack", **wrong})


def test_the_victim_is_as_described(subset):
    assert sum(p.numel() for p in Victim().parameters()) == 114_314
    found = victim(subset)
    with torch.no_grad():
        predicted = found.module(pixels(subset.test_x)[:, None]).argmax(1).numpy()
    assert found.accuracy == pytest.approx((predicted == subset.test_y).mean())
    assert found.accuracy > 0.6
    assert pixels(np.array([0, 255], np.uint8)).tolist() == [-0.5, 0.5]


def test_everybody_holds_images_of_the_class_that_the_victim_has_right(subset):
    task = UniversalAttack(label_attacked=7, pool=50, per_client=20, batch=8)
    problem: Any = task.build(6, HERE)
    assert problem.params.size == 784
    assert not problem.params.vector().any()
    sevens = {pixels(image).numpy().tobytes() for image in subset.train_x[subset.train_y == 7]}
    pool = problem.objective.pool.images
    assert len(pool) == 50
    assert len({image.numpy().tobytes() for image in pool} & sevens) == 50
    assert problem.objective.evaluate(problem.params).others["success"] == 0
    assert problem.objective.evaluate(problem.params).others["held-out success"] == 0
    parts = [problem.shards.batch(KEYS, 0, ALL_DATA, client).tolist() for client in range(6)]
    assert all(len(set(part)) == 20 and min(part) >= 0 and max(part) < 50 for part in parts)
    assert len({tuple(part) for part in parts}) == 6
    batch = problem.shards.batch(KEYS, 3, 1, 2).tolist()
    assert len(set(batch)) == 8
    assert set(batch) < set(parts[2])
    again: Any = task.build(6, HERE)
    assert torch.equal(again.objective.pool.images, pool)
    other: Any = task.build(6, BuildContext(Keys.of_seed(6), CPU, None))
    assert not torch.equal(other.objective.pool.images, pool), "another seed, other images"
    accuracy = victim(subset).accuracy
    assert f"{100 * accuracy:.2f} %" in problem.facts["victim"]
    assert victim(subset).digest in problem.facts["victim"]
    assert problem.facts["images"].startswith("50 of ")
    assert "sneaker" in problem.facts["images"]


def test_too_few_images():
    with pytest.raises(FedzeroError, match=r"task\.per_client = 60 .* task\.pool = 50"):
        UniversalAttack(pool=50).build(4, HERE)
    with pytest.raises(FedzeroError, match=r"only \d+ training images of class 4 rightly, 401 are needed: lower task"):
        UniversalAttack(pool=401).build(4, HERE)


def test_following_the_gradients_fools_the_victim():
    """The attack can succeed at all."""
    problem: Any = UniversalAttack(pool=60, per_client=60, weight=0.05).build(2, HERE)
    before = problem.objective.evaluate(problem.params)
    for _ in range(40):
        _, slope = problem.objective.gradient(problem.params, torch.arange(60))
        problem.params.add(-slope)
    after = problem.objective.evaluate(problem.params)
    assert after.others["attack loss"] < before.others["attack loss"] / 2
    assert after.others["success"] > 0.3


def test_full_images_are_wanted_but_no_folder_is_given():
    with pytest.raises(FedzeroError, match=r"task\.full.*fashion.*--data"):
        UniversalAttack(full=True).build(3, HERE)


def test_full_images_are_taken_from_the_folder(full_data, monkeypatch):
    folder = full_data("mnist")
    monkeypatch.setattr(universal_attack, "fit", lambda m, x, y, how: fit(m, x[::10], y[::10], Fit(1, 64, 4e-3)))
    task = UniversalAttack(dataset="mnist", full=True)
    problem: Any = task.build(3, BuildContext(KEYS, CPU, folder))
    assert "60,000" in task.label
    assert "(4)" in problem.facts["images"]
    assert int(problem.facts["images"].split()[2]) > 4000, "of 5,842"
