"""Recorded passes give what eager ones do, for every shape of batch and number of terms; needs a CUDA device."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from small_language import KINDS

from fedzero.directions import Domain, Keys, LowRank, Terms
from fedzero.model.params import Params
from fedzero.oracles import graphs, passes, vocabulary
from fedzero.oracles.language import LanguageObjective, Texts
from fedzero.oracles.passes import Passes
from fedzero.oracles.responses import ResponseObjective, Responses, Scorer
from fedzero.tasks.language import Full, Layers, Lora
from fedzero.tasks.language.generating import Generate
from fedzero.tasks.language.pretrained import adapt, compile_layers, load
from fedzero.tasks.language.saying import Speaker

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BATCHES = [
    [Texts(([5, 17, 9, 40, 2], [8]), (0, 1)), Texts(([99, 1, 250], [6, 6], [31]), (1, 1, 0))],
    [Texts(tuple([i + 1] * (1 + i % 7) for i in range(20)), tuple(i % 2 for i in range(20)))],
]


def objective_on_gpu(folder, pack=64, dtype=torch.float32, compiled=False, train=None):
    model = adapt(load(str(folder), dtype, torch.device("cuda")), train or Full(), Keys.of_seed(5))
    if compiled:
        compile_layers(model)
    words = torch.tensor([12, 200], device="cuda")
    test = Texts(([5, 17, 9], [8, 3]), (0, 1))
    return Params.of_module(model.module), LanguageObjective(model.module, model.head, words, test, pack=pack)


def points(stream):
    return [
        Terms.of([], [], stream),
        *(Terms.of([key], [0.03], stream) for key in (3, 4, 5)),
        Terms.of([7, 8, 9], [0.05, -0.02, 0.01], stream),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_layers_can_be_recorded(small_model, kind):
    params, objective = objective_on_gpu(small_model(kind), compiled=True)
    _, plain = objective_on_gpu(small_model(kind))
    plain.passes.recorder = None
    for batches in BATCHES + BATCHES:
        found = objective.losses(params, points(Domain.GAUSSIAN), batches)
        assert found == pytest.approx(plain.losses(params, points(Domain.GAUSSIAN), batches), rel=1e-4)


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("pack", [0, 64])
@pytest.mark.parametrize("stream", [Domain.GAUSSIAN, Domain.RADEMACHER])
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_is_eager(small_model, monkeypatch, kind, stream, pack, lanes):
    monkeypatch.setattr(graphs, "LANES", lanes)
    params, objective = objective_on_gpu(small_model(kind), pack)
    before = params.digest()
    for batches in BATCHES + BATCHES:  # once to record, once to replay
        found = objective.losses(params, points(stream), batches)
        recorder, objective.passes.recorder = objective.passes.recorder, None
        wanted = objective.losses(params, points(stream), batches)
        objective.passes.recorder = recorder
        assert found == pytest.approx(wanted, rel=1e-5)
    params.changed()
    assert params.digest() == before


@pytest.mark.parametrize("compiled", [False, True], ids=["as they are", "compiled"])
@pytest.mark.parametrize("pack", [0, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_below_the_first_trained_one_are_replayed_once_for_all_points(small_model, kind, pack, compiled):
    params, objective = objective_on_gpu(small_model(kind), pack, compiled=compiled, train=Layers(first=-1))
    whole, plain = objective_on_gpu(small_model(kind), pack, train=Layers(first=-1))
    plain.passes.prefix.unwrap()
    plain.passes.prefix = plain.passes.recorder = None
    for batches in BATCHES + BATCHES:
        found = objective.losses(params, points(Domain.GAUSSIAN), batches)
        assert found == pytest.approx(plain.losses(whole, points(Domain.GAUSSIAN), batches), rel=1e-4)
        assert len(set(found[0])) == len(points(Domain.GAUSSIAN))
    inputs = {recording.inputs for recording in objective.passes.recorder._recordings.values()}
    assert len(inputs) == len(BATCHES)
    assert all(each.prefix is not None for each in inputs)
    assert objective.evaluate(params).loss == pytest.approx(plain.evaluate(whole).loss, rel=1e-4)


def test_a_fold_is_seen_by_what_was_recorded_before_it(small_model):
    """The graph reads the weights where they are."""
    params, objective = objective_on_gpu(small_model("smollm"))
    stream = Domain.GAUSSIAN
    first = objective.losses(params, points(stream), BATCHES[0])
    params.fold(Terms.of([11], [0.1], stream))
    second = objective.losses(params, points(stream), BATCHES[0])
    objective.passes.recorder = None
    assert second == pytest.approx(objective.losses(params, points(stream), BATCHES[0]), rel=1e-5)
    assert (first != second).all()


def test_points_with_more_terms_than_a_recording_holds_are_evaluated_eagerly(small_model):
    params, objective = objective_on_gpu(small_model("opt"))
    many = Terms.of(range(graphs.MAX_TERMS + 1), [1e-5] * (graphs.MAX_TERMS + 1), Domain.RADEMACHER)
    assert objective.losses(params, [many], BATCHES[0]).shape == (2, 1)
    assert not objective.passes.recorder._recordings


def test_graphs_of_an_earlier_run_do_not_spoil_a_recording(small_model):
    """Freeing a graph is not allowed while another is recorded, and collection comes when it likes: here, at once."""
    folder = small_model("gpt2")
    params, objective = objective_on_gpu(folder)
    objective.losses(params, points(Domain.GAUSSIAN), BATCHES[0])
    objective.itself = objective
    gc.collect()
    thresholds = gc.get_threshold()
    params, second = objective_on_gpu(folder)
    del objective
    gc.set_threshold(1, 1, 1)
    try:
        found = second.losses(params, points(Domain.GAUSSIAN), BATCHES[0])
    finally:
        gc.set_threshold(*thresholds)
    second.passes.recorder = None
    assert found == pytest.approx(second.losses(params, points(Domain.GAUSSIAN), BATCHES[0]), rel=1e-5)


def around(rank=1, count=7):
    stream = Domain.RANK1 if rank == 1 else LowRank(rank)
    return [Terms.of([], [], Domain.RANK1), *(Terms.of([100 * k], [0.02 * (-1) ** k], stream) for k in range(1, count))]


@pytest.mark.parametrize("compiled", [False, True], ids=["as they are", "compiled"])
@pytest.mark.parametrize("train", [Full(), Layers(first=-1), Lora(rank=4)], ids=lambda train: type(train).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_points_side_by_side_are_replayed(small_model, monkeypatch, kind, train, compiled):
    """All in one pass and a few at a time, at other points than those recorded, and after a fold."""
    params, objective = objective_on_gpu(small_model(kind), compiled=compiled, train=train)
    own, plain = objective_on_gpu(small_model(kind), train=train)
    plain.passes.sides = plain.passes.recorder = None
    for rank, tokens in ((1, 1 << 15), (3, 1 << 15), (1, 600)):
        monkeypatch.setitem(passes.BESIDE, "cuda", tokens)
        for batches in BATCHES:
            for some in (around(rank), around(rank)[::-1]):
                found, wanted = objective.losses(params, some, batches), plain.losses(own, some, batches)
                assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted - wanted.mean()).max()
        for each in (params, own):
            each.fold(Terms.of([rank], [0.05], Domain.RANK1))
    assert objective.passes.sides is not None


def test_points_side_by_side_in_sixteen_bits(small_model):
    params, objective = objective_on_gpu(small_model("opt"), dtype=torch.bfloat16)
    wide, plain = objective_on_gpu(small_model("opt"))
    wide.load({name: tensor.float() for name, tensor in params.tensors.items()})
    plain.passes.sides = plain.passes.recorder = None
    found, wanted = objective.losses(params, around(), BATCHES[1]), plain.losses(wide, around(), BATCHES[1])
    assert objective.passes.sides is not None
    assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted - wanted.mean()).max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("train", [Full(), Layers(first=-1), Lora(rank=4)], ids=lambda train: type(train).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_responses_are_replayed(small_model, monkeypatch, kind, train, dtype):
    """Side by side and at views, batches of several shapes; the vocabulary in parts, the last of which is shorter."""
    monkeypatch.setattr(vocabulary, "LEAST", 64)
    monkeypatch.setitem(vocabulary.NUMBERS, "cuda", 64)
    many = [Responses(([5, 17, 9, 40, 2], [8, 3]), (2, 1)), Responses(([99, 1, 250, 7, 7, 7, 7], [6, 6, 2]), (4, 1))]

    def opened(on, dtype):
        model = adapt(load(str(small_model(kind)), dtype, torch.device(on)), train, Keys.of_seed(5))
        scorer = Scorer(Passes(model.module, model.head, None), 64)
        return Params.of_module(model.module), ResponseObjective(scorer, many[0])

    params, objective = opened("cuda", dtype)
    own, plain = opened("cpu", torch.float32)
    own.load({name: tensor.float().cpu() for name, tensor in params.tensors.items()})
    plain.scorer.passes.sides = None
    share = 1e-3 if dtype == torch.float32 else 0.2
    for some in (around(), points(Domain.GAUSSIAN)):
        for batches in (many[:1], many, many[1:], many[:1]):
            found, wanted = objective.losses(params, some, batches), plain.losses(own, some, batches)
            assert np.abs(found - wanted).max() < share * np.abs(wanted - wanted[:, :1]).max() + 1e-4
    assert objective.scorer.passes.by_head
    assert objective.scorer.passes.sides is not None


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_responses_after_generation(small_model, kind):
    """What a GPU says, twice, and a gradient after it, are a CPU's."""
    rows, found = Responses(([5, 17, 9, 40, 2], [8, 3]), (2, 1)), []
    for on in ("cuda", "cpu"):
        model = load(str(small_model(kind)), torch.float32, torch.device(on))
        objective = ResponseObjective(Scorer(Passes(model.module, model.head, None), 64), rows)
        params, speaker = Params.of_module(model.module), Speaker(model, Generate(max_tokens=4), 8)
        said = [speaker.said(params, [[5, 17, 9], [8]]) for _ in range(2)]
        assert said[0] == said[1]
        found.append((said[0], *objective.gradient(params, rows)))
    (here, loss, gradient), (there, wanted, right) = found
    assert here == there
    assert loss == pytest.approx(wanted, rel=1e-5)
    assert torch.allclose(gradient.cpu(), right, atol=1e-4)
