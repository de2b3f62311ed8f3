"""A module at a view, piece by piece, is the module with that view's weights; and its own weights stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_language import KINDS
from torch import nn

from fedzero.directions import Domain, Keys, Terms
from fedzero.model.params import Params
from fedzero.oracles import Basis
from fedzero.oracles.language import LanguageObjective, Texts, measured
from fedzero.oracles.piecewise import ALIGNED, Chosen, Piecewise
from fedzero.tasks.language import Full, Lora, Names
from fedzero.tasks.language.pretrained import adapt, load, packs_upto

CPU = torch.device("cpu")
KEYS = Keys.of_seed(5)
TRAINS = {"full": Full(), "names": Names(("*.1.*weight", "*wte*", "*embed_tokens*")), "lora": Lora(rank=4)}
TERMS = Terms.of([7, 8], [0.05, -0.02], Domain.GAUSSIAN)
NOWHERE = Terms.of([], [], Domain.GAUSSIAN)
IDS = torch.tensor([[5, 17, 9, 40], [8, 8, 3, 0], [99, 1, 250, 7]])


def opened(folder, train="full", dtype=torch.float32):
    return adapt(load(str(folder), dtype, CPU), TRAINS[train], KEYS)


def twin(folder, train, params, terms, dtype=torch.float32, offset=None):
    """Another copy of the model, with the view's weights written into it."""
    other = opened(folder, train, dtype)
    trained = Params.of_module(other.module)
    trained.load(params.view(terms).tensors())
    if offset is not None:
        for tensor, piece in zip(trained.tensors.values(), trained.split(offset), strict=True):
            tensor.copy_(tensor.float() + piece.view(tensor.shape))
    return other.module


@pytest.mark.parametrize("train", TRAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_logits_are_those_of_the_views_weights(small_model, kind, train):
    model = opened(small_model(kind), train)
    params = Params.of_module(model.module)
    pieces, before = Piecewise(model.module, model.head), params.digest()
    with torch.no_grad():
        own = model.module(input_ids=IDS, use_cache=False).logits
        with pieces.at(params.view(TERMS)):
            found = model.module(input_ids=IDS, use_cache=False).logits
        wanted = twin(small_model(kind), train, params, TERMS)(input_ids=IDS, use_cache=False).logits
        again = model.module(input_ids=IDS, use_cache=False).logits
    assert torch.equal(found, wanted)
    assert not torch.equal(found, own)
    assert torch.equal(again, own)
    params.changed()
    assert params.digest() == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("stream", [Domain.GAUSSIAN, Domain.RADEMACHER])
def test_types_and_streams(small_model, stream, dtype):
    model = opened(small_model("smollm"), dtype=dtype)
    params, terms = Params.of_module(model.module), Terms.of([3], [0.03], stream)
    pieces = Piecewise(model.module, model.head)
    with torch.no_grad(), pieces.at(params.view(terms)):
        found = model.module(input_ids=IDS, use_cache=False).logits
    wanted = twin(small_model("smollm"), "full", params, terms, dtype)(input_ids=IDS, use_cache=False).logits
    assert found.dtype == dtype
    assert torch.equal(found, wanted)


def test_another_model_of_the_same_shape_can_be_evaluated(small_model):
    """Replicas: what is asked about need not be the module's own weights."""
    model = opened(small_model("opt"))
    params = Params.of_module(model.module)
    other = params.clone()
    other.fold(Terms.of([11], [0.1], Domain.GAUSSIAN))
    pieces = Piecewise(model.module, model.head)
    for terms in (NOWHERE, TERMS):
        with torch.no_grad(), pieces.at(other.view(terms)):
            found = model.module(input_ids=IDS, use_cache=False).logits
        assert torch.equal(found, twin(small_model("opt"), "full", other, terms)(input_ids=IDS, use_cache=False).logits)


def test_a_failure_in_the_middle_leaves_the_weights_in_place(small_model):
    model = opened(small_model("llama"))
    params = Params.of_module(model.module)
    places = {name: p.data_ptr() for name, p in model.module.named_parameters()}
    pieces = Piecewise(model.module, model.head)
    breaking = model.module.model.layers[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), torch.no_grad(), pieces.at(params.view(TERMS)):
        model.module(input_ids=IDS, use_cache=False)
    breaking.remove()
    assert {name: p.data_ptr() for name, p in model.module.named_parameters()} == places
    with torch.no_grad(), pieces.at(params.view(TERMS)):
        found = model.module(input_ids=IDS, use_cache=False).logits
    wanted = twin(small_model("llama"), "full", params, TERMS)(input_ids=IDS, use_cache=False).logits
    assert torch.equal(found, wanted)


def test_scratch_is_one_layer_and_never_an_embedding(small_model):
    model = opened(small_model("smollm"))
    params, pieces = Params.of_module(model.module), Piecewise(model.module, model.head)
    objective_ids = torch.tensor([1, 2])
    with torch.no_grad(), pieces.at(params.view(TERMS)):
        pieces.chosen = Chosen(objective_ids, torch.tensor([[0, 1, 2], [3, 2, 3]]))
        model.module(input_ids=IDS, use_cache=False)
    layer = [p.numel() for p in model.module.model.layers[0].parameters()]
    assert sum(len(t) for t in pieces._scratch.values()) == sum(-(-n // ALIGNED) * ALIGNED for n in layer)


def test_blocks_inside_blocks_do_not_overwrite_each_other():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.scale

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(4))
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x) + self.shift

    module = Outer()
    params = Params.of_module(module)
    view = params.view(TERMS)
    with torch.no_grad(), Piecewise(module).at(view):
        found = module(torch.ones(4))
    made = view.tensors()
    assert torch.equal(found, made["inner.scale"] + made["shift"])


# ---- the objective


def objective_of(model, measure="loss", pack=0):
    test = Texts(([5, 17, 9], [8, 3], [99, 1, 250, 7]), (0, 1, 1))
    return LanguageObjective(model.module, model.head, torch.tensor([12, 200]), test, measure, pack)


def by_hand(module, texts, answers=(12, 200)):
    """One prompt at a time, whole logits, no padding."""
    losses = []
    with torch.no_grad():
        for prompt, label in zip(texts.prompts, texts.labels, strict=True):
            logits = module(input_ids=torch.tensor([prompt])).logits[0, -1, list(answers)]
            losses.append(float(F.cross_entropy(logits[None].double(), torch.tensor([label]))))
    return losses


@pytest.mark.covered
@pytest.mark.parametrize("pack", [0, 64])
@pytest.mark.parametrize("train", TRAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_each_prompt_alone(small_model, kind, train, pack):
    model = opened(small_model(kind), train)
    params, objective = Params.of_module(model.module), objective_of(model, pack=pack)
    batches = [Texts(([5, 17, 9, 40, 2], [8]), (0, 1)), Texts(([99, 1, 250], [6, 6], [31]), (1, 1, 0))]
    found = objective.losses(params, (NOWHERE, TERMS), batches)
    for point, terms in enumerate((NOWHERE, TERMS)):
        module = twin(small_model(kind), train, params, terms)
        for batch, texts in enumerate(batches):
            alone = by_hand(module, texts)
            assert found[batch, point] == pytest.approx(sum(alone) / len(alone), rel=2e-5)


@pytest.mark.parametrize("pack", [0, 64])
def test_losses_and_gradients_heed_what_prompts_count(small_model, pack):
    """As if a prompt that counts twice were there twice."""
    model = opened(small_model("llama"))
    params, objective = Params.of_module(model.module), objective_of(model, pack=pack)
    prompts, labels = ([5, 17, 9, 40, 2], [8], [99, 1]), (0, 1, 1)
    plain = Texts((*prompts, prompts[1]), (*labels, labels[1]))
    weighed = Texts(prompts, labels, np.array([0.25, 0.5, 0.25]))
    both = objective.losses(params, (NOWHERE, TERMS), [plain, weighed])
    assert both[0] == pytest.approx(both[1], rel=1e-5)
    (loss, gradient), (other, same) = objective.gradient(params, plain), objective.gradient(params, weighed)
    assert loss == pytest.approx(other, rel=1e-6)
    assert torch.allclose(gradient, same, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weights", [None, np.array([0.1, 0.2, 0.3, 0.4])])
def test_accuracy_heeds_what_prompts_count(weights):
    logits = torch.tensor([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    wrong = measured("accuracy", logits, torch.tensor([0, 0, 0, 1]), weights)
    assert float(wrong) == pytest.approx(0.25 if weights is None else 0.2)


def test_a_few_tokens_at_a_time_give_the_same(small_model):
    model = opened(small_model("gpt2"))
    params, objective = Params.of_module(model.module), objective_of(model)
    batch = Texts(tuple([i + 1] * (1 + i % 7) for i in range(20)), tuple(i % 2 for i in range(20)))
    whole = objective.losses(params, (TERMS,), [batch])
    objective.passes.tokens = 16
    assert objective.losses(params, (TERMS,), [batch]) == pytest.approx(whole, rel=1e-5)
    few = objective.evaluate(params)
    objective.passes.tokens = 10_000
    assert few.loss == pytest.approx(objective.evaluate(params).loss, rel=1e-5)


def test_points_along_a_basis(small_model):
    model = opened(small_model("smollm"))
    params, objective = Params.of_module(model.module), objective_of(model)
    column = 0.05 * torch.randn(1, params.size, generator=torch.Generator().manual_seed(1))
    found = objective.losses(params, (TERMS,), [objective.test], Basis(column))
    module = twin(small_model("smollm"), "full", params, TERMS, offset=column[0])
    assert found[0, 0] == pytest.approx(sum(by_hand(module, objective.test)) / 3, rel=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_autograd_on_whole_logits(small_model, kind):
    model = opened(small_model(kind))
    params, objective = Params.of_module(model.module), objective_of(model)
    base = params.clone()
    base.fold(TERMS)
    loss, gradient = objective.gradient(base, objective.test)
    other = twin(small_model(kind), "full", base, NOWHERE)
    texts = objective.test
    logits = torch.stack([other(input_ids=torch.tensor([p])).logits[0, -1, [12, 200]] for p in texts.prompts])
    wanted = F.cross_entropy(logits, torch.tensor(texts.labels))
    pieces = torch.autograd.grad(wanted, list(other.parameters()))
    assert loss == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert torch.allclose(gradient, torch.cat([p.reshape(-1) for p in pieces]), rtol=1e-3, atol=1e-6)


# ---- several prompts in a row


@pytest.mark.parametrize("kind", KINDS)
def test_these_models_share_rows(small_model, kind):
    assert packs_upto(opened(small_model(kind))) == 64


def test_a_model_that_knows_no_positions_does_not(small_model):
    """What a model without `position_ids` in its forward pass would do: ignore them."""
    model = opened(small_model("smollm"))
    plain = model.module.forward
    model.module.forward = lambda input_ids, use_cache, **_: plain(input_ids=input_ids, use_cache=use_cache)
    assert packs_upto(model) == 0


def test_a_model_that_refuses_the_mask_does_not(small_model):
    model = opened(small_model("smollm"))
    plain = model.module.forward
    model.module.forward = lambda input_ids, use_cache: plain(input_ids=input_ids, use_cache=use_cache)
    assert packs_upto(model) == 0


def test_no_row_is_wider_than_a_window_of_attention(small_model):
    model = opened(small_model("smollm"))
    model.module.config.sliding_window = 48
    assert packs_upto(model) == 48
