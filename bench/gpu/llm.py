"""A step of zeroth-order fine-tuning beside the straightforward way, on one GPU: OPT-1.3B's shape, bfloat16, 32 × 64.

    PYTHONPATH=src python -m bench.gpu.llm         random weights: only time and memory are looked at

The straightforward way is MeZO's loop: a seeded normal for every tensor, added with +μ, −2μ, +μ, then the update; its
two forward passes are eager. The bare passes are two forward passes of the untouched model, recorded as a CUDA graph,
with all logits. Memory is what the process takes of the device, each way in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import torch
import transformers
from bench.table import seconds, show

from fedzero.directions import Domain, Program, Terms
from fedzero.model.params import Params
from fedzero.oracles.language import LanguageObjective, Texts

ROWS, WIDTH, MU, RATE = 32, 64, 1e-3, 1e-6
DEVICE = torch.device("cuda")
STREAMS = {"rademacher": Domain.RADEMACHER, "gaussian": Domain.GAUSSIAN}


def opt(hidden: int = 2048, layers: int = 24, heads: int = 32) -> torch.nn.Module:
    config = transformers.OPTConfig(
        hidden_size=hidden, ffn_dim=4 * hidden, num_hidden_layers=layers, num_attention_heads=heads,
        vocab_size=50272, max_position_embeddings=2048, word_embed_proj_dim=hidden,
    )  # fmt: skip
    with DEVICE:
        model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def median(work: Callable[[], object], repeats: int = 15) -> float:
    """Seconds on the clock, all that Python does included."""
    return sorted(seconds(work, repeats, 3, torch.cuda.synchronize))[repeats // 2]


class Straightforward:
    """MeZO as it is usually written."""

    def __init__(self, model: torch.nn.Module, texts: Texts, words: torch.Tensor):
        self.model, self.words, self.seed = model, words, 0
        self.ids, self.labels = torch.tensor(texts.prompts, device=DEVICE), torch.tensor(texts.labels, device=DEVICE)

    def loss(self) -> torch.Tensor:
        with torch.no_grad():
            logits = self.model(input_ids=self.ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits[:, -1, self.words].float(), self.labels)

    def move(self, scale: float) -> None:
        torch.manual_seed(self.seed)
        for parameter in self.model.parameters():
            z = torch.normal(0, 1, parameter.shape, dtype=parameter.dtype, device=DEVICE)
            parameter.data.add_(z, alpha=scale)

    def step(self) -> None:
        self.seed += 1
        self.move(MU)
        up = self.loss()
        self.move(-2 * MU)
        down = self.loss()
        self.move(MU)
        self.move(-RATE * float((up - down) / (2 * MU)))


def two_bare_passes(model: torch.nn.Module, ids: torch.Tensor) -> Callable[[], None]:
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(input_ids=ids, use_cache=False)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(input_ids=ids, use_cache=False)
            model(input_ids=ids, use_cache=False)
    return graph.replay


class Ours:
    """Probes through the oracle, the step through a fold."""

    def __init__(self, objective: LanguageObjective, params: Params, texts: Texts, stream: Domain):
        self.objective, self.params, self.texts, self.stream, self.key = objective, params, texts, stream, 0

    def step(self) -> None:
        self.key += 1
        points = tuple(Terms.of([self.key], [sign * MU], self.stream) for sign in (1, -1))
        up, down = self.objective.losses(self.params, points, [self.texts])[0]
        self.params.fold(Terms.of([self.key], [-RATE * (up - down) / (2 * MU)], self.stream), self.key)


def prompts() -> tuple[Texts, torch.Tensor]:
    ids = torch.randint(0, 50000, (ROWS, WIDTH)).tolist()
    return Texts(tuple(ids), tuple(i % 2 for i in range(ROWS))), torch.tensor([10, 20], device=DEVICE)


def ours(stream: Domain) -> Ours:
    model, (texts, words) = opt(), prompts()
    objective = LanguageObjective(model, model.get_output_embeddings(), words, texts)
    return Ours(objective, Params.of_module(model), texts, stream)


def steps() -> None:
    model, (texts, words) = opt(), prompts()
    loop = Straightforward(model, texts, words)
    eager, plain = median(loop.loss), median(loop.step)
    bare = median(two_bare_passes(model, loop.ids))
    rows = [
        ("eager forward pass", f"{1e3 * eager:.1f} ms", "", "", ""),
        ("MeZO's loop", f"{1e3 * plain:.1f} ms", "1×", f"{plain / bare:.2f}", ""),
        ("two bare passes, recorded", f"{1e3 * bare:.1f} ms", f"{plain / bare:.1f}×", "1", ""),
    ]
    wanted = {"rademacher": "≥ 8×, ≤ 1.3", "gaussian": "≥ 6.5×, ≤ 1.6"}
    del loop, model
    for name, stream in STREAMS.items():
        torch.cuda.empty_cache()
        taken = median(ours(stream).step)
        ratios = f"{plain / taken:.1f}×", f"{taken / bare:.2f}"
        rows.append((f"fedzero, {name}", f"{1e3 * taken:.1f} ms", *ratios, wanted[name]))
    header = ("", "time", "faster than the loop", "of bare passes", "wanted")
    show("A step, central difference, P = 1; OPT-1.3B's shape, bfloat16, 32 × 64", rows, header)


def taken_of_device(way: str) -> int:
    """Bytes, after a few steps; the driver's own part is the same for all ways and left out."""
    torch.zeros(1, device=DEVICE)
    free = torch.cuda.mem_get_info()[0]
    if way == "inference":
        loop = Straightforward(opt(), *prompts())
        work: Callable[[], object] = loop.loss
    else:
        work = ours(STREAMS[way]).step
    torch.cuda.empty_cache()  # what making the model left behind
    for _ in range(3):
        work()
    return free - torch.cuda.mem_get_info()[0]


def memory() -> None:
    found = {}
    for way in ("inference", *STREAMS):
        child = [sys.executable, "-m", "bench.gpu.llm", "--memory", way]
        found[way] = int(subprocess.run(child, check=True, capture_output=True, text=True).stdout.split()[-1])
    of = found["inference"]
    rows = [
        (way, f"{size / 1e9:.3f} GB", f"{size / of:.3f}", "" if size == of else "≤ 1.1") for way, size in found.items()
    ]
    show("Memory of the device", rows, ("", "taken", "of inference", "wanted"))


def catch_up() -> None:
    """A client that missed 1,000 rounds with P = 10, in one pass and round by round."""
    params, rows = Params.of_module(opt()), []
    for name, stream in STREAMS.items():
        missed = [Terms.of([10 * r + p for p in range(10)], [1e-6] * 10, stream) for r in range(1000)]
        at_once, one_by_one = params.clone(), params.clone()
        at_once.fold(missed[0])
        one_by_one.fold(missed[0])
        torch.cuda.synchronize()
        began = time.perf_counter()
        at_once.advance(Program.of(missed, range(1000)))
        torch.cuda.synchronize()
        middle = time.perf_counter()
        for round, terms in enumerate(missed):
            one_by_one.fold(terms, round)
        torch.cuda.synchronize()
        end = time.perf_counter()
        equal = "yes" if at_once.digest() == one_by_one.digest() else "NO"
        limit = {"rademacher": "≤ 6 s", "gaussian": "≤ 30 s"}[name]
        rows.append((name, f"{middle - began:.1f} s", f"{end - middle:.1f} s", equal, limit))
    header = ("", "at once", "round by round", "bit-equal", "wanted")
    show(f"Catch-up of 1,000 rounds, P = 10, {params.size:,} parameters, bfloat16", rows, header)


def main() -> None:
    if not torch.cuda.is_available():
        print("bench/gpu/llm.py needs a CUDA device; skipped")
    elif "--memory" in sys.argv:
        print(taken_of_device(sys.argv[-1]))
    else:
        steps()
        torch.cuda.empty_cache()
        memory()
        catch_up()


if __name__ == "__main__":
    main()
