"""Layers that are compiled compute what they did, at any view and for any shape, and know when they cannot be."""

from __future__ import annotations

import shutil

import pytest
import torch
from small_language import KINDS
from torch import _dynamo as dynamo

from fedzero.directions import Domain, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.capture import as_if_capturing
from fedzero.oracles.language import LanguageObjective, Texts
from fedzero.tasks.language.pretrained import compile_layers, load, packs_upto
from sampling import mostly_slow

POINTS = [Terms.of(keys, [0.03] * len(keys), Domain.GAUSSIAN) for keys in ([], [3], [4], [7, 8])]
BATCHES = [
    [Texts(tuple([i + 1] * (1 + i % longest) for i in range(count)), tuple(i % 2 for i in range(count)))]
    for count, longest in ((5, 4), (20, 7), (3, 30), (12, 18))
]


@pytest.fixture(autouse=True)
def forgotten():
    """What was compiled is kept by the code of layers, which all tests share."""
    dynamo.reset()
    yield
    dynamo.reset()


def objective(folder, backend=None):
    model = load(str(folder), torch.float32, torch.device("cpu"))
    params, pack = Params.of_module(model.module), packs_upto(model)
    if backend is not None:
        compile_layers(model, backend)
    test = Texts(([5, 17, 9], [8, 3]), (0, 1))
    return params, LanguageObjective(model.module, model.head, torch.tensor([12, 200]), test, pack=pack)


@pytest.mark.parametrize("kind", mostly_slow(KINDS, lambda kind: kind in ("gpt2", "llama")))
def test_losses_at_all_points_are_as_before(small_model, kind):
    """Traced as for the real compiler, then run as it was traced: weights come anew into every layer."""
    params, plain = objective(small_model(kind))
    own, compiled = objective(small_model(kind), "aot_eager")
    dynamo.utils.counters.clear()
    for batches in BATCHES + BATCHES:
        wanted = plain.losses(params, POINTS, batches)
        assert compiled.losses(own, POINTS, batches) == pytest.approx(wanted, rel=1e-5)
    assert 1 <= dynamo.utils.counters["stats"]["unique_graphs"] <= 4, "layers share their code, and so do shapes"


def test_gradients_too(small_model):
    (params, plain), (own, compiled) = (objective(small_model("smollm"), b) for b in (None, "aot_eager"))
    (loss, gradient), (other, same) = (o.gradient(p, BATCHES[1][0]) for o, p in ((plain, params), (compiled, own)))
    assert loss == pytest.approx(other, rel=1e-5)
    assert torch.allclose(gradient, same, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")
def test_for_real(small_model):
    """With the compiler a user gets, on one kind and one shape: it takes its time."""
    params, plain = objective(small_model("smollm"))
    own, compiled = objective(small_model("smollm"), "inductor")
    assert compiled.losses(own, POINTS, BATCHES[0]) == pytest.approx(plain.losses(params, POINTS, BATCHES[0]), rel=1e-4)


def test_a_rehearsal_is_taken_for_a_recording_while_it_lasts():
    """transformers asks, and makes other masks then; a layer must have been compiled for those."""
    asks = pytest.importorskip("transformers").utils.import_utils.is_cuda_stream_capturing
    before = torch.cuda.is_current_stream_capturing
    with pytest.raises(ZeroDivisionError), as_if_capturing():
        assert asks()
        raise ZeroDivisionError
    assert torch.cuda.is_current_stream_capturing is before
    assert not asks()


def test_where_nothing_can_be_compiled_it_says_so(small_model):
    model = load(str(small_model("opt")), torch.float32, torch.device("cpu"))
    with pytest.raises(FedzeroError, match=r"task\.compile = true, but torch.compile fails here: .*nonesuch"):
        compile_layers(model, "nonesuch")
