"""Losses of single rows beside their mean: the same batch and points, the two ways in turn.

    PYTHONPATH=src python -m bench.cpu.rows     on a CPU; the goal is 1.1 times the mean

MLP 784-200-10 and the CNN of E1 on 512 digits, 16 points of gaussian or rank-one directions; a small random model of
OPT's shape on 24 prompts, 8 points. Passes of the two ways follow each other; the ratio of an alternation, of three, is
that of its quickest passes. Milliseconds and the verdict are of processor time: the host is shared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from bench.table import show
from torch import nn

from fedzero.directions import Domain, Keys, Terms
from fedzero.model.params import Params
from fedzero.oracles.criteria import Supervised
from fedzero.oracles.language import LanguageObjective, Texts
from fedzero.oracles.module import ModuleObjective
from fedzero.tasks.models import SmallCnn, initialise

ROWS, POINTS, PROMPTS, ALTERNATIONS = 512, 16, 24, 3
GOAL = 1.1
PARTS = ("mlp", "cnn", "language")


def around(stream: Domain, count: int) -> tuple[Terms, ...]:
    return tuple(Terms.of([7 + p // 2], [(-1) ** p * 1e-3], stream) for p in range(count))


def digits(kind: str) -> tuple[Any, Params, Any]:
    net: nn.Module = SmallCnn(channels_last=True)
    if kind == "mlp":
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    params = Params.of_module(net)
    initialise(params, Keys.of_seed(0).root)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 1, 28, 28, generator=generator)
    return ModuleObjective(net, (), Supervised()), params, (x, torch.randint(0, 10, (ROWS,), generator=generator))


def language(_: str) -> tuple[Any, Params, Any]:
    import transformers

    config = transformers.OPTConfig(
        hidden_size=256, ffn_dim=1024, num_hidden_layers=4, num_attention_heads=4, word_embed_proj_dim=256,
        vocab_size=5000, max_position_embeddings=256,
    )  # fmt: skip
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    ids = torch.randint(5, 5000, (PROMPTS, 64), generator=torch.Generator().manual_seed(1)).tolist()
    prompts = tuple(each[: 24 + i % 40] for i, each in enumerate(ids))
    batch = Texts(prompts, tuple(i % 2 for i in range(PROMPTS)))
    words = torch.tensor([10, 20])
    made = LanguageObjective(module, module.get_output_embeddings(), words, batch, pack=256)
    return made, Params.of_module(module), batch


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of the processor in all threads."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


def line(name: str, made: tuple[Any, Params, Any], stream: Domain, points: int, passes: int) -> tuple[str, ...]:
    objective, params, batch = made
    where = around(stream, points)
    ways = (lambda: objective.losses(params, where, [batch]), lambda: objective.row_losses(params, where, batch))
    for way in ways:
        way()
    found = np.array([[[cost(way) for way in ways] for _ in range(passes)] for _ in range(ALTERNATIONS)])
    least = found.min(1)  # (alternations, ways, clocks)
    clock, processor = (least[:, 1] / least[:, 0]).T
    milliseconds = (f"{1e3 * t:.1f}" for t in found[..., 1].min((0, 1)))
    each = (", ".join(f"{ratio:.2f}" for ratio in ratios) for ratios in (clock, processor))
    return name, *milliseconds, *each, "reached" if np.median(processor) <= GOAL else "not reached"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all of them")
    parser.add_argument("--passes", type=int, default=8, help="of each way in an alternation")
    given = parser.parse_args()
    lines = []
    for part in given.part or PARTS:
        build, points = (language, POINTS // 2) if part == "language" else (digits, POINTS)
        for title, stream in (("gaussian", Domain.GAUSSIAN), ("rank one", Domain.RANK1)):
            lines.append(line(f"{part}, {title}", build(part), stream, points, given.passes))
    header = ("", "mean, ms", "rows, ms", "ratio by the clock", "of processor time", f"≤ {GOAL}")
    show(f"Losses of single rows beside their mean: {ROWS} digits, {PROMPTS} prompts", lines, header)


if __name__ == "__main__":
    main()
