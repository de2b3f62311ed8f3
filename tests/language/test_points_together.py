"""Language models at many points of rank-one directions in one pass: the losses of views, or views where it fails."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_language import KINDS
from torch import _dynamo as dynamo

from fedzero.directions import Domain, Keys, LowRank, Terms
from fedzero.model.params import Params
from fedzero.oracles import passes
from fedzero.oracles.language import LanguageObjective, Texts
from fedzero.oracles.low_rank import neighbours
from fedzero.oracles.side_by_side import SideBySide, agree
from fedzero.tasks.language import Full, Layers, Lora, Names
from fedzero.tasks.language.pretrained import adapt, compile_layers, load

CPU = torch.device("cpu")
TRAINS = {
    "full": Full(),
    "names": Names(("*.1.*weight", "*wte*", "*embed_tokens*")),
    "biases": Names(("*bias", "*norm*", "*ln_*")),
    "layers": Layers(first=-1),
    "lora": Lora(rank=4),
}
ADAPTERS = {"queries": Lora(rank=4, targets=("q_proj",)), "keys": Lora(rank=1, targets=("k_proj",))}
"""Which move a model by so little that near the base, in 16 bits, points differ by about as much as rounding does."""
BATCHES = [Texts(([5, 17, 9, 40, 2], [8]), (0, 1)), Texts(([99, 1, 250], [6, 6], [31]), (1, 1, 0))]


def points(rank=1, count=6):
    stream = Domain.RANK1 if rank == 1 else LowRank(rank)
    return [Terms.of([], [], Domain.RANK1), *(Terms.of([100 * k], [0.02 * (-1) ** k], stream) for k in range(1, count))]


def opened(folder, train="full", dtype=torch.float32, pack=64, compiled=None, **how):
    model = adapt(load(str(folder), dtype, CPU), (TRAINS | ADAPTERS)[train], Keys.of_seed(5))
    if compiled is not None:
        compile_layers(model, compiled)
    test = Texts(([5, 17, 9], [8, 3]), (0, 1))
    objective = LanguageObjective(model.module, model.head, torch.tensor([12, 200]), test, pack=pack, **how)
    return Params.of_module(model.module), objective


@pytest.mark.covered
@pytest.mark.parametrize("pack", [0, 64])
@pytest.mark.parametrize("train", TRAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_views(small_model, monkeypatch, kind, train, pack):
    params, objective = opened(small_model(kind), train, pack=pack)
    _, exact = opened(small_model(kind), train, pack=pack, exact=True)
    before = params.digest()
    for rank, tokens in ((1, 1 << 12), (3, 40)):  # all points in one pass, and a few at a time
        monkeypatch.setitem(passes.BESIDE, "cpu", tokens)
        found = objective.losses(params, points(rank), BATCHES)
        wanted = exact.losses(params, points(rank), BATCHES)
        assert objective.passes.sides is not None
        assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted - wanted[:, :1]).max()
        assert len(np.unique(wanted)) == wanted.size
    params.changed()
    assert params.digest() == before
    assert objective.evaluate(params) == exact.evaluate(params)


def test_compiled_layers(small_model):
    """The layers of a model share their compiled code, side by side too."""
    dynamo.reset()
    for kind in KINDS:
        params, objective = opened(small_model(kind), compiled="aot_eager")
        _, exact = opened(small_model(kind), exact=True)
        dynamo.utils.counters.clear()
        found = objective.losses(params, points(), BATCHES)
        assert found == pytest.approx(exact.losses(params, points(), BATCHES), rel=1e-5)
        assert objective.passes.sides is not None
        assert 1 <= dynamo.utils.counters["stats"]["unique_graphs"] <= 2, kind
        assert not dynamo.utils.counters["graph_break"], kind
    dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_model_whose_rows_depend_on_each_other_is_evaluated_at_views(small_model, dtype):
    params, objective = opened(small_model("opt"), pack=0, dtype=dtype)
    _, exact = opened(small_model("opt"), pack=0, exact=True, dtype=dtype)
    for each in (objective, exact):
        each.passes.module.model.decoder.layers[0].register_forward_hook(lambda _, __, output: output - output.mean(0))
    with pytest.warns(RuntimeWarning, match="points are evaluated one by one"):
        found = objective.losses(params, points(), BATCHES)
    assert objective.passes.sides is None
    assert np.array_equal(found, exact.losses(params, points(), BATCHES))


@pytest.mark.parametrize("noise, same", [(0.2, True), (0.5, False)])
def test_a_trial_in_sixteen_bits_compares_by_the_root_mean_square(noise, same):
    """One logit of thousands may be far off; what is as far off as points differ is something else than rounding."""
    wanted = torch.randn(3, 5000, generator=torch.Generator().manual_seed(1))
    error = noise * torch.randn(3, 5000, generator=torch.Generator().manual_seed(2))
    assert agree(wanted + error, wanted, exact=False) is same
    assert not agree(wanted + error, wanted, exact=True)


def test_a_weight_read_elsewhere(small_model):
    params, objective = opened(small_model("opt"), pack=0)
    _, exact = opened(small_model("opt"), pack=0, exact=True)
    objective.losses(params, points(), BATCHES)
    for each in (objective, exact):
        layer = each.passes.module.model.decoder.layers[0]
        layer.fc2.register_forward_hook(lambda _, __, output, layer=layer: output + layer.fc1.weight.sum())
    found = objective.losses(params, points(), BATCHES)
    assert np.array_equal(found, exact.losses(params, points(), BATCHES))


def test_sixteen_bits(small_model):
    """The products are not rounded into the weights, so these losses are nearer to float32's than those of views, on
    average over many points."""
    params, objective = opened(small_model("smollm"), dtype=torch.bfloat16)
    _, exact = opened(small_model("smollm"), dtype=torch.bfloat16, exact=True)
    wide, reference = opened(small_model("smollm"), exact=True)
    wide.load({name: tensor.float() for name, tensor in params.tensors.items()})
    many = points(count=300)
    right = reference.losses(wide, many, BATCHES)
    found, views = (each.losses(params, many, BATCHES) for each in (objective, exact))
    assert objective.passes.sides is not None
    assert np.abs(found - right).max() < 0.1 * np.abs(right - right[:, :1]).max()
    assert np.abs(found - right).mean() < np.abs(views - right).mean()


def _loss_in_float64(module, base, moved, texts):
    """Of a model moved by a vector: each prompt alone, in float64 throughout."""
    parts = moved.double().split([tensor.numel() for tensor in base.values()])
    tensors = {name: t + part.view(t.shape) for (name, t), part in zip(base.items(), parts, strict=True)}
    logits = [
        torch.func.functional_call(module, tensors, (torch.tensor([prompt]),)).logits[0, -1, [12, 200]]
        for prompt in texts.prompts
    ]
    return float(torch.nn.functional.cross_entropy(torch.stack(logits), torch.tensor(texts.labels)))


@pytest.mark.parametrize("kind, train", [("llama", "queries"), ("opt", "keys")])
def test_adapters_in_sixteen_bits(small_model, kind, train):
    """Side by side although points near the base cannot be told from rounding, and as near to float64's as views."""
    params, objective = opened(small_model(kind), train, dtype=torch.bfloat16)
    _, exact = opened(small_model(kind), train, dtype=torch.bfloat16, exact=True)
    model = adapt(load(str(small_model(kind)), torch.bfloat16, CPU), ADAPTERS[train], Keys.of_seed(5))
    module, base = model.module.double(), {name: tensor.double() for name, tensor in params.tensors.items()}
    many = [Terms(terms.keys, terms.coefficients * 10, terms.stream) for terms in points(count=100)]
    found, views = (each.losses(params, many, BATCHES) for each in (objective, exact))
    assert objective.passes.sides is not None
    moved = [params.total(terms) for terms in many]
    right = np.array([[_loss_in_float64(module, base, each, texts) for each in moved] for texts in BATCHES])
    errors = [np.sqrt(np.square(each - right).mean()) for each in (found, views)]
    assert errors[0] < 1.1 * errors[1] < np.abs(right - right[:, :1]).max(), errors


@pytest.mark.parametrize("kind", KINDS)
def test_token_by_token_with_a_cache(small_model, kind):
    """As generation does it: a first pass over the prompts, then one token at a time."""
    model = load(str(small_model(kind)), torch.float32, CPU)
    params, sides, some = Params.of_module(model.module), SideBySide(model.module, model.head), points(count=3)
    ids = torch.tensor([[5, 17, 9, 40], [8, 8, 3, 11]])
    with torch.no_grad():
        with sides.at(params, neighbours(params, some)):
            first = model.module(input_ids=ids[:, :3].repeat(3, 1), use_cache=True)
            second = model.module(
                input_ids=ids[:, 3:].repeat(3, 1), past_key_values=first.past_key_values, use_cache=True
            )
        for p, terms in enumerate(some):
            tensors = params.view(terms).tensors()
            wanted = torch.func.functional_call(model.module, tensors, (), {"input_ids": ids}, tie_weights=True).logits
            assert torch.allclose(second.logits.view(3, 2, 1, -1)[p, :, 0], wanted[:, -1], atol=1e-4)
