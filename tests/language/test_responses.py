"""Responses: the loss that `transformers` gives, at views and side by side, and choices of several tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_language import KINDS

from fedzero.directions import Domain, Keys, LowRank, Terms
from fedzero.model.params import Params
from fedzero.oracles import vocabulary
from fedzero.oracles.contract import Basis
from fedzero.oracles.language import LanguageObjective, Texts
from fedzero.oracles.passes import NO_TERMS, Passes
from fedzero.oracles.responses import ChoiceObjective, Choices, ResponseObjective, Responses, Scorer
from fedzero.tasks.language import Full, Layers, Lora
from fedzero.tasks.language.pretrained import adapt, load

CPU = torch.device("cpu")
ROWS = Responses(([5, 17, 9, 40, 2], [8, 3], [99, 1, 250, 7, 7, 7, 7], [6, 6, 2]), (2, 1, 4, 1))
POINTS = [
    Terms.of([], [], Domain.RANK1),
    *(Terms.of([100 * k], [0.02 * (-1) ** k], Domain.RANK1) for k in (1, 2)),
    Terms.of([500], [0.02], LowRank(3)),
]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """The vocabulary of about 330 tokens in parts, the last of which is shorter."""
    monkeypatch.setattr(vocabulary, "LEAST", 64)
    monkeypatch.setitem(vocabulary.NUMBERS, "cpu", 64)


def opened(folder, train=None, dtype=torch.float32, pack=64, exact=False):
    model = adapt(load(str(folder), dtype, CPU), train or Full(), Keys.of_seed(5))
    scorer = Scorer(Passes(model.module, model.head, None, exact=exact), pack)
    return model.module, Params.of_module(model.module), ResponseObjective(scorer, ROWS)


def plain(module, rows=ROWS):
    """The losses of rows by the model itself, with the labels of prompts masked."""
    for tokens, scored in zip(rows.tokens, rows.scored, strict=True):
        ids = torch.tensor([tokens])
        labels = ids.clone()
        labels[:, :-scored] = -100
        yield module(input_ids=ids, labels=labels).loss


CASES = [
    ("opt", Full(), torch.float32, 64),
    ("gpt2", Layers(first=-1), torch.float32, 0),
    ("llama", Lora(rank=4), torch.bfloat16, 64),
    ("smollm", Full(), torch.float32, 64),
    ("smollm", Full(), torch.bfloat16, 0),
]


@pytest.mark.parametrize(("kind", "train", "dtype", "pack"), CASES)
def test_losses_are_those_of_transformers(small_model, kind, train, dtype, pack):
    """At the base, with tied embeddings, frozen layers and 16 bits; at views and side by side they are alike."""
    module, params, objective = opened(small_model(kind), train, dtype, pack)
    with torch.no_grad():
        wanted = [float(loss) for loss in plain(module)]
    rough = dtype != torch.float32
    assert objective.scorer.passes.by_head
    assert -objective.scorer.means(params, (NO_TERMS,), ROWS)[0] == pytest.approx(wanted, abs=5e-3 if rough else 2e-6)
    *_, exact = opened(small_model(kind), train, dtype, pack, exact=True)
    found, views = (each.losses(params, POINTS, [ROWS, ROWS]) for each in (objective, exact))
    assert objective.scorer.passes.sides is not None
    assert np.array_equal(found[0], found[1])
    assert np.abs(found - views).max() < (0.1 if rough else 1e-3) * np.abs(views - views[:, :1]).max()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_transformers(small_model, kind):
    module, params, objective = opened(small_model(kind))
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    found, gradient = objective.gradient(params, Responses(ROWS.tokens, ROWS.scored, weights))
    loss = sum(weight * each for weight, each in zip(weights, plain(module), strict=True))
    assert isinstance(loss, torch.Tensor)
    wanted = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
    assert found == pytest.approx(loss.item(), abs=2e-6)
    assert torch.allclose(gradient, wanted, atol=2e-6)
    assert objective.losses(params, [NO_TERMS], [Responses(ROWS.tokens, ROWS.scored, weights)])[0] == pytest.approx(
        loss.item(), abs=2e-6
    )


def test_perplexity_counts_tokens_and_the_loss_rows(small_model):
    module, params, objective = opened(small_model("smollm"))
    with torch.no_grad():
        each = np.array([float(loss) for loss in plain(module)])
    metrics, sizes = objective.evaluate(params), np.array(ROWS.scored)
    assert metrics.loss == pytest.approx(each.mean(), rel=1e-5)
    assert metrics.others == {"perplexity": pytest.approx(np.exp((each * sizes).sum() / sizes.sum()), rel=1e-5)}


def test_a_model_that_caps_its_logits_is_believed_and_not_its_head(small_model):
    model = load(str(small_model("llama")), torch.float32, CPU)

    def capped(module, inputs, output):
        output.logits = 2 * torch.tanh(output.logits / 2)
        return output

    model.module.register_forward_hook(capped)
    params, passes = Params.of_module(model.module), Passes(model.module, model.head, None)
    assert not passes.by_head
    found = Scorer(passes, 64).means(params, POINTS, ROWS)
    assert passes.sides is not None
    with torch.no_grad():
        ids = torch.tensor([ROWS.tokens[0]])
        logs = model.module(input_ids=ids).logits[0, 2:4].log_softmax(-1)
    assert found[0, 0] == pytest.approx(float((logs[0, 40] + logs[1, 2]) / 2), abs=1e-5)


def test_answers_of_one_token_are_chosen_as_by_their_logits(small_model):
    """Scores differ from logits by one number a prompt, which no loss over the answers can see."""
    model = load(str(small_model("gpt2")), torch.float32, CPU)
    prompts, labels = ([5, 17, 9, 40], [8, 3, 11]), (0, 1)
    rows = Responses(tuple([*prompt, answer] for prompt in prompts for answer in (12, 200)), (1,) * 4)
    plain_texts, choices = Texts(prompts, labels), Choices(rows, labels)
    params = Params.of_module(model.module)
    wanted = LanguageObjective(model.module, model.head, torch.tensor([12, 200]), plain_texts)
    found, gradient = wanted.losses(params, POINTS, [plain_texts]), wanted.gradient(params, plain_texts)[1]
    scored = load(str(small_model("gpt2")), torch.float32, CPU)
    objective = ChoiceObjective(Scorer(Passes(scored.module, scored.head, None)), choices, 2)
    own = Params.of_module(scored.module)
    assert objective.losses(own, POINTS, [choices]) == pytest.approx(found, rel=1e-4)
    assert objective.evaluate(own).accuracy == wanted.evaluate(params).accuracy
    assert torch.allclose(objective.gradient(own, choices)[1], gradient, atol=1e-6)


@pytest.mark.parametrize("stream", [Domain.GAUSSIAN, Domain.RADEMACHER, Domain.RANK1])
def test_views_of_all_directions_and_of_a_basis(small_model, stream):
    _, params, objective = opened(small_model("smollm"), exact=True)
    terms = Terms.of([3, 4], [0.02, 0.01], stream)
    columns = 0.01 * torch.randn(1, params.size, generator=torch.Generator().manual_seed(1))
    for basis in (None, Basis(columns)):
        found = objective.losses(params, [terms], [ROWS], basis)[0, 0]
        there = params.clone()
        there.load(params.view(terms).tensors())
        if basis is not None:
            there.add(columns[0])
        assert found == pytest.approx(objective.losses(there, [NO_TERMS], [ROWS])[0, 0], abs=1e-5)
