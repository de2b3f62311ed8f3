"""Layers below the first trained one run once for all points, and nobody can tell from the numbers."""

from __future__ import annotations

import pytest
import torch
from small_language import KINDS

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.frozen_prefix import FrozenPrefix
from fedzero.oracles.language import LanguageObjective, Texts
from fedzero.tasks.language import Full, Layers, Lora, Names, Span
from fedzero.tasks.language.pretrained import adapt, load, packs_upto

CPU = torch.device("cpu")
POINTS = [Terms.of([], [], Domain.GAUSSIAN), *(Terms.of([key], [0.05], Domain.GAUSSIAN) for key in (7, 8, 9))]
TEXTS = Texts(([5, 17, 9], [8, 3], [99, 1, 250, 7], [31] * 9), (0, 1, 1, 0))


def opened(folder, train):
    return adapt(load(str(folder), torch.float32, CPU), train, Keys.of_seed(5))


def objective_of(model, pack=0):
    return LanguageObjective(model.module, model.head, torch.tensor([12, 200]), TEXTS, pack=pack)


def layers_of(model):
    """The list of layers, whatever the model calls it."""
    return next(m for m in model.module.modules() if isinstance(m, torch.nn.ModuleList))


def counted(layer):
    """How often a layer has run."""
    runs = []
    run = layer.forward
    layer.forward = lambda *arguments, **named: (runs.append(1), run(*arguments, **named))[1]
    return runs


@pytest.mark.covered
@pytest.mark.parametrize("pack", [0, 64], ids=["rows of their own", "shared rows"])
@pytest.mark.parametrize(
    "train", [Layers(first=-1), Lora(rank=4, first=-1), Names(("*.1.*weight",))], ids=["last", "lora", "names"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_losses_to_the_last_bit(small_model, kind, train, pack):
    model, plain = opened(small_model(kind), train), opened(small_model(kind), train)
    spared, whole = objective_of(model, pack), objective_of(plain, pack)
    assert spared.passes.prefix is not None
    assert whole.passes.prefix is not None
    whole.passes.prefix.unwrap()
    whole.passes.prefix = None
    found = spared.losses(Params.of_module(model.module), POINTS, [TEXTS])
    wanted = whole.losses(Params.of_module(plain.module), POINTS, [TEXTS])
    assert found.tolist() == wanted.tolist()
    assert len(set(found[0])) == len(POINTS)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_below_run_once_for_all_points(small_model, kind):
    model = opened(small_model(kind), Layers(first=-1))
    below, above = map(counted, layers_of(model))
    objective, params = objective_of(model, pack=64), Params.of_module(model.module)
    below.clear(), above.clear()
    objective.losses(params, POINTS, [TEXTS])
    assert (len(below), len(above)) == (1, len(POINTS))


def test_the_test_set_is_known_the_second_time(small_model):
    model = opened(small_model("smollm"), Layers(first=-1))
    below, _ = map(counted, layers_of(model))
    objective, params = objective_of(model, pack=64), Params.of_module(model.module)
    below.clear()
    first = objective.evaluate(params)
    assert objective.evaluate(params) == first
    assert len(below) == 1
    params.fold(Terms.of([3], [0.1], Domain.GAUSSIAN))
    assert objective.evaluate(params) != first
    assert len(below) == 1


@pytest.mark.parametrize("room", [0, 1, 2])
def test_what_is_kept_is_bounded(small_model, room):
    """Sheets of two rows of nine tokens, numbers of four bytes; batches of clients are never kept."""
    model = opened(small_model("smollm"), Layers(first=-1))
    below, _ = map(counted, layers_of(model))
    objective, params = objective_of(model), Params.of_module(model.module)
    objective.passes.tokens = 2 * 9
    sizes = [2 * 3 * 32 * 4, 2 * 9 * 32 * 4]
    objective.passes.prefix.capacity = sum(sizes[:room])
    objective.losses(params, POINTS, [TEXTS])
    assert objective.passes.prefix.bytes == 0
    first = objective.evaluate(params)
    assert objective.passes.prefix.bytes == objective.passes.prefix.capacity
    below.clear()
    assert objective.evaluate(params) == first
    assert len(below) == 2 - room


def test_the_gradient_goes_through_all_layers_as_ever(small_model):
    model = opened(small_model("llama"), Layers(first=-1))
    params, objective = Params.of_module(model.module), objective_of(model)
    objective.losses(params, POINTS, [TEXTS])
    loss, gradient = objective.gradient(params, TEXTS)
    assert loss == pytest.approx(objective.losses(params, POINTS[:1], [TEXTS])[0, 0], rel=1e-5)
    assert gradient.shape == (params.size,)
    assert gradient.norm() > 0


@pytest.mark.parametrize("train", [Full(), Lora(rank=4), Names(("*.0.*weight",)), Layers()])
def test_no_layer_is_spared_where_the_first_is_trained(small_model, train):
    assert objective_of(opened(small_model("smollm"), train)).passes.prefix is None


def test_a_trained_embedding_is_below_all_layers(small_model):
    """Tied to the head, in this model: whoever trains the head trains it."""
    assert objective_of(opened(small_model("smollm"), Names(("*embed_tokens*", "*.1.*")))).passes.prefix is None


def test_a_model_that_reaches_past_its_layers_is_left_alone(small_model):
    """As some do that share keys and values between layers far apart."""
    model = opened(small_model("llama"), Layers(first=-1))
    first, second = layers_of(model)
    runs, left_behind = (first.forward, second.forward), []

    def leaving(hidden, **named):
        left_behind.append(made := runs[0](hidden, **named))
        return made

    first.forward = leaving
    second.forward = lambda hidden, **named: runs[1](hidden + left_behind.pop().mean(), **named)
    assert FrozenPrefix.of(model.module) is None
    assert first.forward is leaving


def test_more_layers_than_there_are(small_model):
    for kind in (Layers, Lora):
        for first, last in ((-3, -1), (0, 2), (1, 0), (2, 2)):
            with pytest.raises(FedzeroError, match=f"layers {first} to {last} were given, but .* has layers 0 to 1"):
                opened(small_model("opt"), kind(first=first, last=last))


@pytest.mark.parametrize(
    ("layers", "low", "high", "wanted"),
    [
        (30, 0.33, 0.84, (10, 24)),
        (30, 0.5, 0.84, (15, 24)),
        (12, 0.33, 0.84, (4, 9)),
        (2, 0.33, 0.84, (1, 1)),
        (1, 0.33, 0.84, (0, 0)),
        (24, 0.0, 1.0, (0, 23)),
        (7, 1.0, 1.0, (6, 6)),
    ],
)
def test_a_span_of_layers_is_there_in_every_model(layers, low, high, wanted):
    assert Span(low, high).of(layers) == wanted


def test_a_span_is_the_layers_it_names(small_model):
    model, same = opened(small_model("opt"), Span(0.5, 1.0)), opened(small_model("opt"), Layers(1, 1))
    for one, other in zip(model.module.parameters(), same.module.parameters(), strict=True):
        assert one.requires_grad == other.requires_grad
    with pytest.raises(FedzeroError, match=r"low = 0\.7 is not below high = 0\.7"):
        opened(small_model("opt"), Span(0.7, 0.7))


@pytest.mark.parametrize("kind", KINDS)
def test_chosen_layers_are_trained_and_nothing_else(small_model, kind):
    model = opened(small_model(kind), Layers(first=-1))
    own = {id(p) for p in layers_of(model)[1].parameters()}
    assert {id(p) for p in model.module.parameters() if p.requires_grad} == own
    adapted = opened(small_model(kind), Lora(rank=4, first=-1))
    names = [name for name, p in adapted.module.named_parameters() if p.requires_grad]
    assert names
    assert all(".1." in name for name in names)
    assert packs_upto(adapted) == 64
