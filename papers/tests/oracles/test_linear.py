"""Logistic regression, SVM and perceptron against plain double precision at points that are really moved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rows import sparse_of

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params
from fedzero.oracles import Basis, combination
from fedzero_papers.oracles.linear import HINGE, LOGISTIC, LinearObjective
from fedzero_papers.oracles.perceptron import PerceptronObjective, tensors
from fedzero_papers.oracles.rows import DenseRows

FEATURES, HIDDEN = 30, 4
MODELS = ("logistic", "svm", "mlp")
Reference = Callable[[torch.Tensor, np.ndarray, np.ndarray], torch.Tensor]


def logistic(x: torch.Tensor, a: np.ndarray, y: np.ndarray) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(torch.from_numpy(a) @ x, torch.from_numpy((y + 1) / 2))


def svm(x: torch.Tensor, a: np.ndarray, y: np.ndarray) -> torch.Tensor:
    return torch.clamp(1 - torch.from_numpy(y) * (torch.from_numpy(a) @ x), min=0).mean()


def mlp(x: torch.Tensor, a: np.ndarray, y: np.ndarray) -> torch.Tensor:
    W, b, v, c = torch.split(x, [FEATURES * HIDDEN, HIDDEN, HIDDEN, 1])
    probability = torch.sigmoid(torch.sigmoid(torch.from_numpy(a) @ W.view(FEATURES, HIDDEN) + b) @ v + c)
    return F.binary_cross_entropy(probability, torch.from_numpy((y + 1) / 2))


REFERENCES: dict[str, Reference] = {"logistic": logistic, "svm": svm, "mlp": mlp}


class Case:
    """A model with data in both forms, three batches and its reference."""

    def __init__(self, model: str, sparse: bool, seed: int = 0):
        generator = np.random.default_rng(seed)
        mask = generator.random((60, FEATURES)) < 0.3
        self.a = (generator.standard_normal((60, FEATURES)) * mask).astype(np.float32)
        self.a[7] = 0
        self.y = generator.choice([-1.0, 1.0], 60)
        self.reference = REFERENCES[model]
        rows = sparse_of(self.a) if sparse else DenseRows(self.a)
        self.indices = [np.arange(5, 15), np.arange(3), np.array([59, 7, 7, 30])]
        self.batches = [(rows.pick(i), self.y[i]) for i in self.indices]
        train, test = (rows.pick(np.arange(40)), self.y[:40]), (rows.pick(np.arange(40, 60)), self.y[40:])
        self.objective: LinearObjective | PerceptronObjective
        if model == "mlp":
            self.params = Params(tensors(FEATURES, HIDDEN))
            self.objective = PerceptronObjective(LOGISTIC, train, test)
        else:
            self.params = Params.of_vector(torch.zeros(FEATURES))
            self.objective = LinearObjective(LOGISTIC if model == "logistic" else HINGE, train, test)
        self.params.add(torch.from_numpy(generator.standard_normal(self.params.size).astype(np.float32)) * 0.4)

    def direction(self, key: int, stream: Domain) -> torch.Tensor:
        return self.params.direction(stream, key).double()

    def expected(self, points: tuple[Terms, ...], basis: Basis | None = None) -> np.ndarray:
        table = np.empty((len(self.batches), len(points)))
        for p, terms in enumerate(points):
            x = self.params.vector().double()
            for key, c in zip(terms.keys.tolist(), terms.coefficients.tolist(), strict=True):
                x = x + c * self.direction(key, terms.stream)
            if basis is not None:
                for weight, column in zip(basis.weights[p].tolist(), basis.columns, strict=True):
                    x = x + weight * column.double()
            table[:, p] = [float(self.reference(x, self.a[i].astype(np.float64), self.y[i])) for i in self.indices]
        return table


@pytest.fixture(params=[(m, s) for m in MODELS for s in (False, True)], ids=lambda p: f"{p[0]}-{'s' if p[1] else 'd'}")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*request.param)


def tolerance(case: Case) -> float:
    """Margins are summed in float64, the perceptron's inputs in float32."""
    return 1e-6 if isinstance(case.objective, PerceptronObjective) else 1e-13


G, R = Domain.GAUSSIAN, Domain.RADEMACHER
FORMS = {
    "x alone": (Terms.of([], [], G),),
    "forward": tuple(Terms.of([k] * (k > 0), [0.1] * (k > 0), G) for k in range(5)),
    "central": tuple(Terms.of([k], [sign * 0.1], G) for k in (3, 4) for sign in (1, -1)),
    "rademacher": tuple(Terms.of([k], [sign * 0.1], R) for k in (3, 4) for sign in (1, -1)),
    "several terms": (Terms.of([1, 2, 3], [0.1, -0.2, 0.3], G), Terms.of([2], [0.5], G), Terms.of([3, 1], [1, 1], G)),
    "a key twice": (Terms.of([5, 6, 5], [0.1, 0.2, 0.25], G), Terms.of([5], [0.35], G)),
    "both streams": (Terms.of([5], [0.1], G), Terms.of([5], [0.1], R), Terms.of([], [], R)),
}


@pytest.mark.parametrize("form", FORMS)
def test_losses_are_those_of_a_model_that_is_really_moved(case, form):
    digest = case.params.digest()
    values = case.objective.losses(case.params, FORMS[form], case.batches)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, case.expected(FORMS[form]), rtol=tolerance(case), atol=tolerance(case))
    assert case.params.digest() == digest, "evaluating changes nothing"
    alone = [case.objective.losses(case.params, FORMS[form], [batch])[0] for batch in case.batches]
    np.testing.assert_array_equal(values, alone, err_msg="a batch's values do not depend on its company")


@pytest.mark.parametrize("form", ["x alone", "forward", "several terms"])
def test_points_may_move_along_a_basis_too(case, form):
    points, generator = FORMS[form], np.random.default_rng(4)
    columns = torch.from_numpy(generator.standard_normal((3, case.params.size)).astype(np.float32))
    basis = Basis(columns, generator.standard_normal((len(points), 3)))
    values = case.objective.losses(case.params, points, case.batches, basis)
    np.testing.assert_allclose(values, case.expected(points, basis), rtol=tolerance(case), atol=tolerance(case))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.booleans(),
    st.lists(st.lists(st.tuples(st.integers(0, 6), st.floats(-1, 1, width=32)), max_size=5), min_size=1, max_size=6),
)
def test_any_points(model, sparse, drawn):
    case = Case(model, sparse)
    points = tuple(Terms.of([k for k, _ in terms], [c for _, c in terms], G) for terms in drawn)
    values = case.objective.losses(case.params, points, case.batches)
    np.testing.assert_allclose(values, case.expected(points), rtol=tolerance(case), atol=tolerance(case))


def test_directions_may_come_in_blocks(case, monkeypatch):
    whole = case.objective.losses(case.params, FORMS["forward"], case.batches)
    monkeypatch.setattr(combination, "TOGETHER", 2 * case.params.size)
    np.testing.assert_allclose(case.objective.losses(case.params, FORMS["forward"], case.batches), whole, rtol=1e-13)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_central_differences_at_a_tiny_radius_are_slopes(model, sparse):
    """float32 points would lose half the digits of the difference at μ = 1e-4; a combination loses none."""
    case, mu = Case(model, sparse), 1e-4
    points = tuple(Terms.of([9], [sign * mu], G) for sign in (1, -1))
    values = case.objective.losses(case.params, points, case.batches)
    slopes = (values[:, 0] - values[:, 1]) / (2 * float(np.float32(mu)))
    for slope, i in zip(slopes, case.indices, strict=True):
        x = case.params.vector().double().requires_grad_()
        (gradient,) = torch.autograd.grad(case.reference(x, case.a[i].astype(np.float64), case.y[i]), x)
        assert slope == pytest.approx(float(gradient @ case.direction(9, G)), rel=3e-6, abs=1e-6)


def test_gradient_is_that_of_autograd(case):
    for batch, i in zip(case.batches, case.indices, strict=True):
        x = case.params.vector().double().requires_grad_()
        expected = case.reference(x, case.a[i].astype(np.float64), case.y[i])
        loss, gradient = case.objective.gradient(case.params, batch)
        assert loss == pytest.approx(float(expected.detach()), rel=1e-6)
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient.double(), torch.autograd.grad(expected, x)[0], rtol=1e-5, atol=1e-6)


def test_evaluate_is_training_loss_and_test_accuracy(case):
    metrics, x = case.objective.evaluate(case.params), case.params.vector().double()
    assert metrics.loss == pytest.approx(
        float(case.reference(x, case.a[:40].astype(np.float64), case.y[:40])), rel=1e-6
    )
    # A sample is right if its loss with its own label is smaller than with the other.
    rows, right = case.a[40:].astype(np.float64), 0
    for a, y in zip(rows, case.y[40:], strict=True):
        as_it_is, flipped = (float(case.reference(x, a[None], np.array([label]))) for label in (y, -y))
        right += as_it_is < flipped
    assert metrics.accuracy == pytest.approx(right / 20)


@pytest.mark.parametrize("loss", [LOGISTIC, HINGE])
def test_losses_of_huge_margins_are_finite(loss):
    margins = np.array([-1e6, -800.0, 0.0, 800.0, 1e6])
    with np.errstate(all="raise", under="ignore"):
        values, slopes = loss.value(margins), loss.slope(margins)
    assert np.isfinite(values).all()
    assert values[0] == pytest.approx(1e6, rel=1e-5)
    assert (slopes[0], slopes[-1]) == (-1, 0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_parameters_may_live_on_a_gpu(case):
    there = Params({name: tensor.cuda() for name, tensor in case.params.tensors.items()})
    here, moved = (case.objective.losses(p, FORMS["forward"], case.batches) for p in (case.params, there))
    np.testing.assert_array_equal(here, moved)
    gradient = case.objective.gradient(there, case.batches[0])[1]
    assert gradient.device.type == "cuda"
    torch.testing.assert_close(gradient.cpu(), case.objective.gradient(case.params, case.batches[0])[1])
