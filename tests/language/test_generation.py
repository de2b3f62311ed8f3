"""Text generated side by side is the text of each prompt alone; sampling follows from the noise it is given."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from small_language import KINDS

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params
from fedzero.oracles.generation import (
    ENDED,
    STEP,
    Decoder,
    Decoding,
    KeyValues,
    PaddedPrompts,
    Stepwise,
    Whole,
    choose,
    chunks,
    common_length,
    generate,
    read,
)
from fedzero.oracles.reward import Prompts, RewardFunction, RewardObjective
from fedzero.tasks.language import Layers, Lora, attention
from fedzero.tasks.language.generating import Generate, decoding_of, reader_of
from fedzero.tasks.language.pretrained import adapt, decodes_upto, load
from sampling import mostly_slow

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NEEDS_CUDA = (pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
PROMPTS = ([5, 17, 9], [8], [99, 1, 250, 7, 12, 30], [31] * 9, [40, 41, 42, 43], [3, 200], [60, 61, 5])
BEGUN = tuple([*range(70, 82), *prompt] for prompt in PROMPTS)
"""The same after tokens that all have in common."""
MOST = 12


def opened(folder, dtype=torch.float32):
    return load(str(folder), dtype, CPU)


def ends_of(model, prompts=PROMPTS) -> torch.Tensor:
    """What some of the rows say sooner or later ends a row, so that rows end at different times."""
    ends = torch.zeros(len(model.head.weight), dtype=torch.bool)
    for prompt, step in ((prompts[0], 0), (prompts[3], 4)):
        ends[alone(model.module, prompt, step + 1, torch.zeros_like(ends))[step]] = True
    return ends


def alone(module, prompt, most, ends) -> list[int]:
    """The plain loop: one prompt, no padding, no mask, nothing kept."""
    ids: list[int] = list(prompt)
    for _ in range(most):
        with torch.no_grad():
            ids.append(int(module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ends[ids[-1]]:
            break
    return ids[len(prompt) :]


def lists(said: torch.Tensor) -> list[list[int]]:
    return [[token for token in row if token != ENDED] for row in said.tolist()]


def test_what_prompts_have_in_common():
    assert common_length(PROMPTS) == common_length([BEGUN[0]]) == common_length([[1] * 20, [1] * 8]) == 0
    assert common_length(BEGUN) == 12
    assert common_length([[1] * 20, [1] * 12, [1] * 12]) == 11, "every row has a token of its own"
    prompts = PaddedPrompts.of(BEGUN)
    assert prompts.common.tolist() == BEGUN[0][:12]
    assert (prompts.rows, prompts.width, prompts.own.shape) == (7, 21, (3, 7, 9))
    assert prompts.own[2].max() == 20


@pytest.mark.parametrize("prompts", [PROMPTS, BEGUN], ids=["apart", "begun alike"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_each_row_alone(small_model, kind, prompts):
    """Whatever is said: here, tokens of chance."""
    module = opened(small_model(kind)).module
    said = torch.randint(400, (4, len(PROMPTS)), generator=torch.Generator().manual_seed(1)) % 300
    with torch.no_grad():
        for way in (Way(module, PaddedPrompts.of(prompts), 4) for Way in (Stepwise, Whole)):
            found = [read(way), *(way.next(chosen) for chosen in said)]
            for step, logits in enumerate(found):
                for row, prompt in enumerate(prompts):
                    ids = torch.tensor([[*prompt, *said[:step, row].tolist()]])
                    wanted = module(input_ids=ids, use_cache=False).logits[0, -1]
                    assert torch.allclose(logits[row], wanted, atol=1e-4)


@pytest.mark.covered
@pytest.mark.parametrize("prompts", [PROMPTS, BEGUN], ids=["apart", "begun alike"])
@pytest.mark.parametrize("stepwise", [True, False], ids=["stepwise", "whole"])
@pytest.mark.parametrize("kind", KINDS)
def test_side_by_side_as_each_alone(small_model, kind, stepwise, prompts):
    model = opened(small_model(kind))
    ends = ends_of(model, prompts)
    wanted = [alone(model.module, prompt, MOST, ends) for prompt in prompts]
    assert len({len(said) for said in wanted}) > 1, "rows that end at different times"
    said = generate(model.module, PaddedPrompts.of(prompts), Decoding(MOST, ends, stepwise=stepwise))
    assert lists(said) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_as_transformers_generates(small_model, kind):
    model = opened(small_model(kind))
    ends = ends_of(model)
    said = generate(model.module, PaddedPrompts.of(PROMPTS), Decoding(MOST, ends))
    for prompt, row in zip(PROMPTS, lists(said), strict=True):
        wanted = model.module.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=MOST,
            eos_token_id=torch.nonzero(ends)[:, 0].tolist(),
            pad_token_id=0,
        )
        assert row == wanted[0, len(prompt) :].tolist()


@pytest.mark.parametrize("prompts", [PROMPTS, BEGUN], ids=["apart", "begun alike"])
@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_heads_say_the_same(small_model, monkeypatch, kind, prompts):
    model, calls = opened(small_model(kind)), []
    decoding = Decoding(MOST, ends_of(model))
    wanted = generate(model.module, PaddedPrompts.of(prompts), decoding)
    grouped = attention._grouped
    monkeypatch.setattr(attention, "_grouped", lambda *given, **named: calls.append(given) or grouped(*given, **named))
    before = model.module.config._attn_implementation
    with attention.many_rows(model.module):
        assert torch.equal(generate(model.module, PaddedPrompts.of(prompts), decoding), wanted)
        alone(model.module, prompts[0], 2, decoding.ends)  # without a mask of ours
    assert model.module.config._attn_implementation == before
    assert calls, "the attention is the one under test"


def test_adapters_and_layers(small_model):
    from fedzero.directions import Keys

    for train in (Lora(rank=4), Layers(first=-1)):
        model = adapt(opened(small_model("llama")), train, Keys.of_seed(1))
        ends = ends_of(model)
        said = generate(model.module, PaddedPrompts.of(PROMPTS), Decoding(MOST, ends))
        assert lists(said) == [alone(model.module, prompt, MOST, ends) for prompt in PROMPTS]


@pytest.mark.parametrize("stepwise", [True, False], ids=["stepwise", "whole"])
def test_buffers_may_be_used_again(small_model, stepwise):
    """What another text left in them is not read, not even where it is not a number."""
    model = opened(small_model("smollm"))
    noise = torch.rand(len(PROMPTS), MOST, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    decoding, tokens = Decoding(MOST, ends_of(model), stepwise=stepwise), PaddedPrompts.of(PROMPTS)
    for some in (noise, None):
        wanted = generate(model.module, tokens, decoding, some)
        decoder = Decoder(model.module, tokens, decoding, some is not None)
        others = PaddedPrompts.of([prompt[::-1] for prompt in PROMPTS])
        assert not torch.equal(decoder(others, some), wanted)
        assert torch.equal(decoder(tokens, some), wanted)
        with torch.no_grad():
            layer = model.module.model.layers[0].self_attn.v_proj.weight
            before = layer.clone()
            layer.fill_(torch.nan)
            decoder(tokens, some)
            layer.copy_(before)
        assert torch.equal(decoder(tokens, some), wanted)


@pytest.mark.parametrize("stepwise", [True, False], ids=["stepwise", "whole"])
def test_buffers_are_freed_at_once(small_model, stepwise):
    """They are gigabytes on a GPU: none may wait for the garbage collector in a cycle of references."""
    model = opened(small_model("smollm"))
    decoding = Decoding(MOST, ends_of(model), stepwise=stepwise)
    gc.disable()
    gc.freeze()  # what other tests have left is not looked through
    try:
        generate(model.module, PaddedPrompts.of(BEGUN), decoding)
        assert not [each for each in gc.get_objects() if type(each) in (KeyValues, Stepwise, Whole)]
    finally:
        gc.unfreeze()
        gc.enable()


def test_it_stops_when_all_rows_have(small_model):
    model = opened(small_model("smollm"))
    everything = torch.ones(len(model.head.weight), dtype=torch.bool)
    passes = []
    model.module.register_forward_hook(lambda *_: passes.append(1))
    said = generate(model.module, PaddedPrompts.of(PROMPTS), Decoding(MOST, everything))
    assert len(passes) == 1
    assert (said[:, 0] != ENDED).all() and (said[:, 1:] == ENDED).all()


@pytest.mark.parametrize("kind", KINDS)
def test_who_decodes_stepwise_is_found_by_trial(small_model, kind):
    assert decodes_upto(opened(small_model(kind))) == 64
    assert decodes_upto(opened(small_model(kind), torch.bfloat16)) == 64


def test_no_further_than_the_window_of_attention(small_model):
    model = opened(small_model("llama"))
    model.module.config.sliding_window = 20
    assert decoding_of(model, Generate(max_tokens=4), 16).stepwise
    assert not decoding_of(model, Generate(max_tokens=4), 17).stepwise


def test_a_model_that_heeds_no_mask_is_read_whole(small_model):
    model = opened(small_model("llama"))
    run = model.module.forward
    model.module.forward = lambda input_ids, use_cache=False, **_: run(input_ids=input_ids, use_cache=False)
    assert not decodes_upto(model)
    decoding = decoding_of(model, Generate(max_tokens=4), 9)
    assert not decoding.stepwise
    said = generate(model.module, PaddedPrompts.of(PROMPTS), decoding)
    assert lists(said) == [alone(model.module, prompt, 4, decoding.ends) for prompt in PROMPTS]


def test_chunks_hold_every_prompt_once():
    for tokens in (1, 40, 1000):
        found = list(chunks(PROMPTS, MOST, tokens, tokens))
        assert sorted(np.concatenate(found).tolist()) == list(range(len(PROMPTS)))
        assert all(len(some) == 1 or len(some) * (9 + MOST) <= tokens for some in found)


def test_what_prompts_have_in_common_counts_once_for_tokens_and_in_every_row_for_columns():
    assert len(next(chunks(BEGUN, MOST, 2 * (9 + MOST), 1000))) == 2
    assert len(next(chunks(BEGUN, MOST, 1000, 3 * (21 + MOST)))) == 3


@pytest.mark.parametrize("prompts", [PROMPTS, BEGUN], ids=["apart", "begun alike"])
def test_blocks_of_rows_may_be_at_points_of_their_own(small_model, prompts):
    """One pass for several points: here, each block of rows meets another shift behind the last layer."""
    module = opened(small_model("smollm")).module
    decoding = Decoding(MOST, ends_of(opened(small_model("smollm"))))
    shifts = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    now = shifts[:1]

    def shifted(layer, inputs, output):
        return output + now.repeat_interleave(len(output) // len(now), 0)[:, None]

    module.model.norm.register_forward_hook(shifted)
    wanted = []
    for shift in shifts:
        now = shift[None]
        wanted.append(generate(module, PaddedPrompts.of(prompts), decoding))
    now = shifts
    assert torch.equal(generate(module, PaddedPrompts.of(prompts).repeated(3), decoding), torch.cat(wanted))
    assert not torch.equal(wanted[0], wanted[1])


# ---- sampling


def test_a_token_is_sampled_as_often_as_it_is_likely():
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0]]).repeat(40_000, 1)
    uniform = torch.rand(40_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for temperature in (0.5, 1.0, 2.0):
        shares = torch.bincount(choose(logits, temperature, uniform), minlength=4) / len(logits)
        assert torch.allclose(shares, torch.softmax(logits[0] / temperature, 0), atol=0.01)


def test_the_ends_of_the_interval():
    logits = torch.tensor([[-1e9, 0.0, -1e9, 0.0, -1e9]] * 3)
    found = choose(logits, 1.0, torch.tensor([0.0, 0.5, np.nextafter(1.0, 0.0)], dtype=torch.float64))
    assert found.tolist() == [1, 3, 3], "never what has no chance"


def test_a_sampled_row_depends_on_its_own_noise_alone(small_model):
    model = opened(small_model("smollm"))
    decoding = Decoding(MOST, ends_of(model), 0.7)
    noise = torch.rand(len(PROMPTS), MOST, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = generate(model.module, PaddedPrompts.of(PROMPTS), decoding, noise)
    for i, prompt in enumerate(PROMPTS):
        single = generate(model.module, PaddedPrompts.of([prompt]), decoding, noise[i : i + 1])
        assert torch.equal(single[0], together[i])
    assert not torch.equal(generate(model.module, PaddedPrompts.of(PROMPTS), decoding, noise.flip(1)), together)


# ---- where a text ends


def test_stops_and_texts(small_model):
    model = opened(small_model("llama"))
    line = model.tokenizer("\n", add_special_tokens=False)["input_ids"]
    decoding, read = decoding_of(model, Generate(max_tokens=4), 9), reader_of(model, "\n")
    assert decoding.ends[model.tokenizer.eos_token_id] and decoding.ends[line[-1]]
    assert int(decoding.ends.sum()) < 20
    tokens = model.tokenizer(" great\n No", add_special_tokens=False)["input_ids"]
    assert read(tokens) == " great"
    assert read([*model.tokenizer(" great", add_special_tokens=False)["input_ids"], model.tokenizer.eos_token_id]) == (
        " great"
    )
    assert reader_of(model, "")(tokens) == " great\n No"
    assert reader_of(model, "at\n N")(tokens) == " gre", "of several tokens"
    assert int(decoding_of(model, Generate(stop=""), 9).ends.sum()) == 1


# ---- on a GPU


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_says_the_same(small_model, kind):
    model, gpu = opened(small_model(kind)), load(str(small_model(kind)), torch.float32, torch.device("cuda"))
    ends = ends_of(model)
    noise = torch.rand(len(PROMPTS), MOST, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for some in (None, noise):
        wanted = generate(model.module, PaddedPrompts.of(PROMPTS), Decoding(MOST, ends), some)
        there = None if some is None else some.cuda()
        found = generate(
            gpu.module, PaddedPrompts.of(PROMPTS).to(torch.device("cuda")), Decoding(MOST, ends.cuda()), there
        )
        assert torch.equal(found.cpu(), wanted)


@pytest.mark.covered
@pytest.mark.parametrize("sampled", [False, True], ids=["likeliest", "sampled"])
@pytest.mark.parametrize("kind", mostly_slow(KINDS, lambda kind: kind in ("gpt2", "llama")))
@pytest.mark.parametrize("device", [CPU, pytest.param(CUDA, marks=NEEDS_CUDA)], ids=["cpu", "gpu"])
def test_what_is_recorded_serves_other_prompts_points_and_weights(small_model, device, kind, sampled):
    """The same tokens as by views that are made anew, which are not recorded; and as by the module itself."""

    def objective(exact):
        model = load(str(small_model(kind)), torch.float32, device)
        ends = torch.zeros(len(model.head.weight), dtype=torch.bool, device=device)
        judge, asked = RewardFunction(str, lambda pairs: [0.0] * len(pairs)), asked_of(PROMPTS, False)
        return model.module, RewardObjective(model.module, model.head, Decoding(MOST, ends), judge, asked, exact=exact)

    module, beside = objective(False)
    params, (_, views) = Params.of_module(module), objective(True)
    for turn in range(4):
        asked = asked_of([[*prompt, 3 + turn] for prompt in PROMPTS], sampled, turn)
        points = [Terms.of([10 * turn + p], [0.02], Domain.RANK1) for p in range(3)]
        found = beside.generated(params, points, asked)
        assert beside.sides is not None
        assert (found == views.generated(params, points, asked)).all()
        assert len(np.unique(found, axis=0)) > 1, "points say different things"
        noise = None if asked.noise is None else torch.from_numpy(asked.noise).to(device)
        wanted = generate(module, PaddedPrompts.of(asked.prompts, STEP).to(device), beside.decoding, noise)
        assert (beside.generated(params, [Terms.of([], [], Domain.RANK1)], asked)[0] == wanted.cpu().numpy()).all()
        for tensor in params.tensors.values():
            tensor.mul_(1.05)  # in place, as a fold is
    recorded = [decoder._token._graph for decoder, _ in beside.decoders._kept.values()]
    assert len(recorded) == (2 if device == CUDA else 0), "one shape of points, one without"
    assert all(recorded)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_cannot_be_recorded_runs_as_it_is(small_model):
    model, gpu = opened(small_model("smollm")), load(str(small_model("smollm")), torch.float32, torch.device("cuda"))
    gpu.module.model.norm.register_forward_hook(lambda layer, inputs, output: output * (float(output.max()) > -1e9))
    decoding = Decoding(MOST, torch.zeros(len(gpu.head.weight), dtype=torch.bool, device="cuda"))
    with pytest.warns(RuntimeWarning, match="not recorded"):
        found = generate(gpu.module, PaddedPrompts.of(PROMPTS).to(torch.device("cuda")), decoding)
    wanted = generate(model.module, PaddedPrompts.of(PROMPTS), Decoding(MOST, decoding.ends.cpu()))
    assert torch.equal(found.cpu(), wanted)


def asked_of(prompts, sampled, seed=0) -> Prompts:
    noise = np.random.default_rng(seed).random((len(prompts), MOST)) if sampled else None
    return Prompts(tuple(prompts), tuple({} for _ in prompts), noise=noise)


def test_groups_of_heads_in_any_order_of_memory(monkeypatch):
    """With gradients a GPU's attention gives (rows, heads, T, d) in the memory order of (rows, T, heads, d)."""
    usual = attention.F.scaled_dot_product_attention

    def permuted(*given, **named):
        return usual(*given, **named).transpose(1, 2).contiguous().transpose(1, 2)

    query, key = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 9, 8)
    mask = torch.zeros(3, 1, 5, 9)
    expected, _ = attention._grouped(None, torch.nn.Identity(), query, key, key, mask)
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", permuted)
    assert torch.equal(attention._grouped(None, torch.nn.Identity(), query, key, key, mask)[0], expected)
