"""Losses of responses at many points in one pass beside plain inference, on one GPU: SmolLM2-135M's shape or a model.

    PYTHONPATH=src python -m bench.gpu.completions [FOLDER]      the folder of a model; default: random weights

32 prompts of 96 to 224 tokens with responses of 4 to 12, at 64 points of rank-one directions. Plain inference reads the
same rows of the same packed batch, 64 times, at the base, recorded as a CUDA graph, and scores the same positions with
the same chunked head in float32, without what points add. Besides: losses side by side against those at views and the
model's own with labels, and time and memory of the head over 64 × 32 × 32 positions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers
from bench.gpu.llm import median
from bench.table import show

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params
from fedzero.oracles.packing import PackedBatch, pack_prompts, targeted
from fedzero.oracles.passes import BESIDE, NO_TERMS, Passes
from fedzero.oracles.responses import ResponseObjective, Responses, Scorer
from fedzero.oracles.vocabulary import log_probabilities
from fedzero.tasks.language.pretrained import Pretrained, compile_layers, load, packs_upto

POINTS, ROWS, RADIUS = 64, 32, 1e-2
DEVICE = torch.device("cuda")
WANTED = "≥ 0.85 (0.9 wished)"


def model_of(folder: str | None, dtype: torch.dtype) -> Pretrained:
    if folder is not None:
        return load(folder, dtype, DEVICE)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=2048,
    )  # fmt: skip
    torch.manual_seed(0)
    with DEVICE:
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    return Pretrained("random", module.eval(), None, 2048)


def rows() -> Responses:
    random = np.random.default_rng(0)
    prompts, sizes = random.integers(96, 225, ROWS), random.integers(4, 13, ROWS)
    tokens = tuple(random.integers(5, 40000, p + s).tolist() for p, s in zip(prompts, sizes, strict=True))
    return Responses(tokens, tuple(sizes.tolist()))


def points(radius: float = RADIUS) -> list[Terms]:
    return [Terms.of([k // 2 + 1], [radius * (-1) ** k], Domain.RANK1) for k in range(POINTS)]


def objective_of(model: Pretrained, exact: bool = False, compiled: bool = False) -> ResponseObjective:
    pack = packs_upto(model)
    if compiled:
        compile_layers(model)
    return ResponseObjective(Scorer(Passes(model.module, model.head, None, True, exact), pack), rows())


def plain(objective: ResponseObjective, params: Params, count: int) -> Callable[[], torch.Tensor]:
    """The same rows of the same batch so many times over, at the base, in passes as large as those of points."""
    passes, batch = objective.scorer.passes, rows()
    packed = next(pack_prompts(batch.read, objective.scorer.pack, passes.tokens))
    one = targeted(packed, batch.targets).to(passes.device)
    size = -(-count // -(-count // max(1, BESIDE["cuda"] // one.tokens[0].numel())))
    first = one.tokens.shape[1] * torch.arange(size, device=passes.device)[:, None]
    ends = torch.stack([(one.ends[0] + first).view(-1), *(each.repeat(size) for each in one.ends[1:])])
    tiled = PackedBatch(one.tokens.repeat(1, size, 1), ends, np.tile(one.which, size), one.shared)

    def run() -> torch.Tensor:
        return torch.cat([passes.at_points(params, (NO_TERMS,), tiled) for _ in range(0, count, size)]).cpu()

    return run


def speed(folder: str | None) -> None:
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        for compiled in (False, True):
            model = model_of(folder, dtype)
            params, objective = Params.of_module(model.module), objective_of(model, compiled=compiled)
            batch, some = rows(), points()
            inference = median(plain(objective, params, POINTS), 7)
            began = time.perf_counter()
            objective.losses(params, some, [batch])
            first = time.perf_counter() - began
            ours = median(lambda o=objective, p=params, s=some, b=batch: o.losses(p, s, [b]), 7)  # type: ignore[misc]
            sides = "" if objective.scorer.passes.sides is not None else " (at views!)"
            way = f"{str(dtype).removeprefix('torch.')}{', compiled' if compiled else ''}{sides}"
            found.append(
                (way, f"{1e3 * inference:.1f} ms", f"{1e3 * ours:.1f} ms", f"{inference / ours:.2f}", f"{first:.0f} s")
            )
            del model, params, objective
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    header = ("", "plain inference", "64 points in one pass", f"of plain, {WANTED}", "first pass")
    show(f"Losses of responses: {POINTS} points × {ROWS} rows", found, header)


def agreement(folder: str | None) -> None:
    found, batch = [], rows()
    for dtype in (torch.bfloat16, torch.float32):
        model = model_of(folder, dtype)
        params, objective = Params.of_module(model.module), objective_of(model)
        losses = objective.losses(params, points(), [batch])[0]
        base = objective.losses(params, [NO_TERMS], [batch])[0, 0]
        objective.scorer.passes.sides = None
        views = objective.losses(params, points(), [batch])[0]
        theirs = []
        for tokens, scored in zip(batch.tokens, batch.scored, strict=True):
            ids = torch.tensor([tokens], device=DEVICE)
            labels = ids.clone()
            labels[:, :-scored] = -100
            with torch.no_grad():
                theirs.append(float(model.module(input_ids=ids, labels=labels).loss))
        spread = np.std(views)
        found.append(
            (str(dtype).removeprefix("torch."), f"{base:.5f}", f"{np.mean(theirs):.5f}", f"{spread:.4f}",
             f"{np.sqrt(np.mean((losses - views) ** 2)) / spread:.1e}")
        )  # fmt: skip
        del model, params, objective
        torch.cuda.empty_cache()
    header = ("", "loss at the base", "transformers' own", "spread of points", "side by side − views, of the spread")
    show("The same losses", found, header)


def memory() -> None:
    """64 points × 32 rows × 32 tokens × 49,152: 12.9 GB of float32 logits, if they were stored."""
    n, size, width = POINTS * 32 * 32, 49152, 576
    weight = torch.randn(size, width, device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(n, width, device=DEVICE, dtype=torch.bfloat16)
    targets = torch.randint(0, size, (n,), device=DEVICE)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        taken = median(lambda: log_probabilities(x, targets, size, lambda first, last: weight[first:last]), 7)
    peak = torch.cuda.max_memory_allocated() - before
    rows = [
        ("chunks", f"{1e3 * taken:.1f} ms", f"{peak / 1e9:.2f} GB"),
        ("all logits", "", f"{4 * n * size / 1e9:.1f} GB"),
    ]
    show(f"The head over {n:,} positions", rows, ("", "time", "memory"))


def main() -> None:
    if not torch.cuda.is_available():
        print("bench/gpu/completions.py needs a CUDA device; skipped")
        return
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    memory()
    agreement(folder)
    speed(folder)


if __name__ == "__main__":
    main()
