"""Losses of single prompts and responses: those of the model itself in float64, one row after the other."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.language import LanguageObjective, Texts
from fedzero.oracles.packing import evened, pack_prompts, targeted
from fedzero.oracles.passes import Passes
from fedzero.oracles.responses import ChoiceObjective, ResponseObjective, Responses, Scorer
from fedzero.oracles.rows import why_no_rows
from fedzero.tasks.language import Full, Layers
from fedzero.tasks.language.encoding import Encoded
from fedzero.tasks.language.pretrained import adapt, load
from fedzero.tasks.language.shards import LanguageShards, choices
from fedzero.tasks.partition import Mix
from sampling import mostly_slow

PROMPTS = ([5, 17, 9, 40, 2], [8], [99, 1, 250], [6, 6, 31, 7, 7, 7, 9], [31, 12])
TEXTS = Texts(PROMPTS, (0, 1, 1, 0, 1))
RESPONSES = Responses(tuple([*p, 20, 3, 50][: len(p) + n] for p, n in zip(PROMPTS, (1, 3, 2, 3, 1), strict=True)),
                      (1, 3, 2, 3, 1))  # fmt: skip
ANSWERS = ((12, 7), (200,))


def around(stream, count=4):
    return [Terms.of([k] * (k > 0), [0.04] * (k > 0), stream) for k in range(count)]


def opened(folder, train=None, device="cpu"):
    return adapt(load(str(folder), torch.float32, torch.device(device)), train or Full(), Keys.of_seed(5))


def logs_of(model, params, points, tokens):
    """log p (T, V) of every point in float64, by moved copies of the model."""
    for terms in points:
        moved = copy.deepcopy(model.module)
        named = dict(moved.named_parameters())
        for name, tensor in params.view(terms).tensors().items():
            named[name].data = tensor.clone()
        with torch.no_grad():
            yield moved.double()(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)


def of_responses(model, params, points, rows):
    found = np.empty((len(points), len(rows)))
    for i, (tokens, size) in enumerate(zip(rows.tokens, rows.scored, strict=True)):
        for p, logs in enumerate(logs_of(model, params, points, tokens)):
            places = range(len(tokens) - size, len(tokens))
            found[p, i] = -np.mean([float(logs[t - 1, tokens[t]]) for t in places])
    return found


CASES = [
    ("opt", Full(), 64, Domain.RANK1),
    ("smollm", Full(), 0, Domain.GAUSSIAN),
    ("gpt2", Layers(first=-1), 64, Domain.RANK1),
    ("llama", Layers(first=-1), 64, Domain.GAUSSIAN),
]


@pytest.mark.parametrize(
    ("kind", "train", "pack", "stream"), mostly_slow(CASES, lambda kind, *_: kind in ("opt", "llama"))
)
def test_prompts_responses_and_choices_row_by_row(small_model, kind, train, pack, stream):
    points, folder = around(stream), small_model(kind)
    plain, models = opened(folder, train), [opened(folder, train) for _ in range(3)]
    base, (params, again, third) = Params.of_module(plain.module), [Params.of_module(m.module) for m in models]
    scorers = [Scorer(Passes(m.module, m.head, None), pack) for m in models[1:]]
    chosen = choices(list(PROMPTS), TEXTS.labels, ANSWERS)
    words = torch.tensor([12, 200])
    language = LanguageObjective(models[0].module, models[0].head, words, TEXTS, pack=pack)
    responses, choosing = ResponseObjective(scorers[0], RESPONSES), ChoiceObjective(scorers[1], chosen, 2)

    wanted = np.empty((len(points), len(PROMPTS)))
    for i, (prompt, label) in enumerate(zip(PROMPTS, TEXTS.labels, strict=True)):
        for p, logs in enumerate(logs_of(plain, base, points, prompt)):
            wanted[p, i] = F.cross_entropy(logs[-1, words][None], torch.tensor([label])).item()
    scores = -of_responses(plain, base, points, chosen.rows).reshape(len(points), -1, 2)
    right = np.take_along_axis(scores, np.array(TEXTS.labels)[None, :, None], 2)[..., 0]
    cases = (
        (language, params, TEXTS, wanted),
        (responses, again, RESPONSES, of_responses(plain, base, points, RESPONSES)),
        (choosing, third, chosen, np.log(np.exp(scores).sum(-1)) - right),
    )
    for objective, own, batch, expected in cases:
        assert objective.no_rows == ""
        found = objective.row_losses(own, points, batch)
        assert found.shape == expected.shape and found.dtype == np.float64
        assert np.abs(found - expected).max() < 5e-5
        assert np.allclose(found.mean(1), objective.losses(own, points, [batch])[0], rtol=1e-12, atol=0)
    if stream is Domain.RANK1:
        assert all(passes.sides is not None for passes in (language.passes, responses.scorer.passes))
    assert (language.passes.prefix is not None) == (train != Full())


def test_no_rows_at_all_and_measures(small_model):
    model = opened(small_model("opt"))
    words, params, points = torch.tensor([12, 200]), Params.of_module(model.module), around(Domain.GAUSSIAN, 2)
    objective = LanguageObjective(model.module, model.head, words, TEXTS, "accuracy", pack=64)
    wrong = objective.row_losses(params, points, TEXTS)
    assert set(np.unique(wrong)) <= {0.0, 1.0}
    assert np.allclose(wrong.mean(1), objective.losses(params, points, [TEXTS])[0])
    assert objective.row_losses(params, points, Texts((), ())).shape == (2, 0)
    scorer = Scorer(Passes(opened(small_model("opt")).module, model.head, None), 64)
    assert ResponseObjective(scorer, RESPONSES).row_losses(params, points, Responses((), ())).shape == (2, 0)
    assert ChoiceObjective(scorer, None, 2).row_losses(params, points, choices([], (), ANSWERS)).shape == (2, 0)
    objective.measure = "f1"
    assert "F1 is a mean over answers" in objective.no_rows
    with pytest.raises(FedzeroError, match="F1"):
        objective.row_losses(params, points, TEXTS)


def test_weights_that_follow_from_other_rows_are_refused(small_model):
    model = opened(small_model("opt"))
    objective = LanguageObjective(model.module, model.head, torch.tensor([12, 200]), TEXTS, pack=64)
    data, labels = Encoded(list(PROMPTS), list(TEXTS.labels), [], 0), np.array(TEXTS.labels)
    plain = LanguageShards(data, [np.array([1, 3, 4])], 2)
    assert why_no_rows(objective, plain) == ""
    assert plain.held(0) == 3 and plain.taken(0, np.array([0, 2])).prompts == (PROMPTS[1], PROMPTS[4])
    balanced = LanguageShards(data, [np.array([1, 3, 4])], 2, Mix(labels, np.array([0.5, 0.5])))
    assert "task.balanced" in why_no_rows(objective, balanced)


@pytest.mark.parametrize("pack", [0, 64])
def test_padding_to_few_shapes_changes_no_row(small_model, pack):
    """What recorded passes are given: the same numbers, and few shapes for batches of any size."""
    model = opened(small_model("llama"))
    params, passes = Params.of_module(model.module), Passes(model.module, model.head, None)
    points, shapes = around(Domain.RANK1, 3), set()
    for count in range(1, 60):
        prompts = [[1 + i % 50] * (1 + i % 9) for i in range(count)]
        for packed in pack_prompts(prompts, pack, 1 << 14):
            batch = targeted(packed, [[7, 8][: 1 + i % 2] if len(p) > 1 else [7] for i, p in enumerate(prompts)])
            padded = evened(batch)
            shapes.add((padded.tokens.shape[1:], padded.ends.shape))
            assert padded.tokens.shape[1] <= max(16, 1.125 * batch.tokens.shape[1] + 16)
            if count in (1, 7, 33):
                found, wanted = passes.at_points(params, points, padded), passes.at_points(params, points, batch)
                assert torch.allclose(found[:, : batch.ends.shape[1]], wanted, atol=2e-5)
    assert len(shapes) <= 12


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stream", [Domain.GAUSSIAN, Domain.RANK1])
def test_recorded_rows_are_eager_ones(small_model, stream):
    model = opened(small_model("smollm"), device="cuda")
    objective = LanguageObjective(model.module, model.head, torch.tensor([12, 200], device="cuda"), TEXTS, pack=64)
    params, points = Params.of_module(model.module), around(stream)
    for size in (1, 2, 3, 5, 2):
        batch = Texts(PROMPTS[:size], TEXTS.labels[:size])
        found = objective.row_losses(params, points, batch)
        recorder, objective.passes.recorder = objective.passes.recorder, None
        wanted = objective.row_losses(params, points, batch)
        objective.passes.recorder = recorder
        assert found == pytest.approx(wanted, rel=1e-4)
    assert len(recorder._recordings) <= 3, "batches of all sizes share recordings"
