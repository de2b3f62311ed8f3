"""Points side by side (rank-one directions) beside points at weights of their own (dense ±1), in the same run.

    PYTHONPATH=src python -m bench.cpu.points mlp cnn     rounds on a CPU: MLP 784-200-10, P 100; the CNN of E1, P 10
    PYTHONPATH=src python -m bench.cpu.points opt         OPT-1.3B's shape on a GPU, random weights, 64 points
    PYTHONPATH=src python -m bench.cpu.points generate    the same, with 32 tokens generated after each prompt
    PYTHONPATH=src python -m bench.cpu.points sst2 --data DIR     rounds of e3-sst2 on a GPU, beside gaussian directions

A round is a whole one (m 10, batch 32, forward difference): draw, evaluate, fold, write to the ledger. On the GPU an
ask is timed as a method makes it, numbers on the host at the end, and the replay of its recorded pass alone.
"""

from __future__ import annotations

import argparse
import gc
import math
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench.cpu import e1_round
from bench.table import machine, seconds, show
from torch import nn

from fedzero.directions import Domain, Keys, Terms
from fedzero.model.params import Params
from fedzero.oracles.criteria import Supervised, per_sample
from fedzero.oracles.generation import Decoding
from fedzero.oracles.language import LanguageObjective, Texts
from fedzero.oracles.low_rank import neighbours
from fedzero.oracles.reward import Prompts, RewardFunction, RewardObjective
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup, prepare
from fedzero.tasks import images
from fedzero.tasks.language.pretrained import Pretrained, compile_layers
from fedzero.tasks.models import initialise
from fedzero.tasks.own import LocalTask
from fedzero.tasks.partition import Iid, split
from fedzero.tasks.samples import Columns, Part

CLIENTS, COHORT = 100, 10
WAYS = (("dense ±1, views", "rademacher", False), ("rank one, views", "rank1", True), ("rank one", "rank1", False))


def setup_of(task: dict[str, Any], directions: int, distribution: str, exact: bool, environment: Environment) -> Setup:
    method = {"kind": "decomfl", "rate": 1e-4, "directions": directions, "distribution": distribution}
    table = {
        "name": "points",
        "rounds": 1000,
        "algorithm": method,
        "task": task | {"exact": exact},
        "federation": {"clients": CLIENTS, "cohort": COHORT},
        "engine": {"kind": "local", "device": "cpu"},
    }
    return prepare(recipes.decode(table), environment)


def perceptron() -> Environment:
    """The packaged digits, dealt out evenly, and an MLP."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    initialise(Params.of_module(model), Keys.of_seed(0).root)
    data = images.load("mnist", False, None)
    whole = Columns(images.tensors(data.train_x, data.train_y, torch.device("cpu")))
    parts = split(Iid(), data.train_y.astype("int64"), CLIENTS, Keys.of_seed(0))
    clients = [Part(whole, part) for part in parts]
    loss = Supervised(per_sample(nn.functional.cross_entropy))
    return Environment(functions={"mlp": LocalTask(model, loss, clients, clients[:1])})


def rounds(
    title: str, task: dict[str, Any], directions: int, wanted: str, environment: Callable[[], Environment]
) -> None:
    setups = [setup_of(task, directions, distribution, exact, environment()) for _, distribution, exact in WAYS]
    compared(f"{title}, m {COHORT}, batch 32, P {directions} (wanted {wanted})", [name for name, *_ in WAYS], setups)


LANGUAGE = (
    ("gaussian, compiled", "gaussian", True),
    ("gaussian", "gaussian", False),
    ("rank one, compiled", "rank1", True),
    ("rank one", "rank1", False),
)


def sentiment(given: argparse.Namespace) -> None:
    """Whole rounds of recipe e3-sst2."""

    def setup(distribution: str, compiled: bool) -> Setup:
        sets = [f'algorithm.distribution="{distribution}"', f"task.compile={str(compiled).lower()}", "task.testing=8"]
        return prepare(recipes.load("e3-sst2", sets), Environment(given.data))

    ways = [(name, *how) for name, *how in LANGUAGE if not (given.eager and how[-1])]
    names, setups = [name for name, *_ in ways], [setup(*how) for _, *how in ways]
    compared("One round of e3-sst2 (wanted ≥ 1.5×)", names, setups)


def compared(title: str, names: list[str], setups: list[Setup]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, str(i)) for i in range(len(setups))]
        for place in places:
            place.mkdir()
        # Rounds take turns, so that a noisy neighbour disturbs all ways alike.
        times = list(zip(*(e1_round.ours(s, str(place)) for s, place in zip(setups, places, strict=True)), strict=True))
    columns = list(zip(*times, strict=True))
    found, least = [median(column) for column in columns], [min(column) for column in columns]
    beside = [getattr(setup.problem.objective, "beside", None) for setup in setups]
    rows = [
        (
            *(name, f"{1e3 * t:.1f}", f"{found[0] / t:.1f}×", f"{1e3 * m:.1f}", f"{least[0] / m:.1f}×"),
            "" if way is None else way.way or "views",
        )
        for name, t, m, way in zip(names, found, least, beside, strict=True)
    ]
    show(title, rows, ("", "median ms", "", "least ms", "", "way"))


POINTS, WIDTH, RADIUS, GENERATED = 64, 64, 1e-2, 32


def opt(given: argparse.Namespace) -> Any:
    import transformers

    hidden = given.hidden
    config = transformers.OPTConfig(
        hidden_size=hidden, ffn_dim=4 * hidden, num_hidden_layers=given.layers, word_embed_proj_dim=hidden,
        num_attention_heads=max(1, hidden // 64), vocab_size=50272, max_position_embeddings=2048,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def texts(count: int) -> Texts:
    ids = torch.randint(0, 50000, (count, WIDTH), generator=torch.Generator().manual_seed(1)).tolist()
    return Texts(tuple(ids), tuple(i % 2 for i in range(count)))


def around(stream: Domain, count: int) -> list[Terms]:
    return [Terms.of([1000 + p], [RADIUS], stream) for p in range(count)]


def milliseconds(work: Callable[[], object], repeats: int = 10) -> float:
    return 1e3 * median(seconds(work, repeats, 2, torch.cuda.synchronize))


class Gpu:
    """A model, its parameters and an objective, made anew for every way so that memory can be told apart."""

    def __init__(self, given: argparse.Namespace):
        torch.compiler.reset()
        gc.collect()  # the model before this one, whose parts refer to each other
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.module = opt(given)
        if not given.eager:
            compile_layers(Pretrained("opt", self.module, None, 2048))
        words = torch.tensor([10, 20], device="cuda")
        self.params = Params.of_module(self.module)
        self.objective = LanguageObjective(self.module, self.module.get_output_embeddings(), words, texts(1))

    def line(self, name: str, points: list[Terms], prompts: int, repeats: int = 10) -> tuple[float, float, Any]:
        """Prints and returns milliseconds of an ask and of its replays, and the losses."""
        batch = texts(prompts)
        began = time.perf_counter()
        losses = self.objective.losses(self.params, points, [batch])
        first = time.perf_counter() - began
        ask = milliseconds(lambda: self.objective.losses(self.params, points, [batch]), repeats)
        recorder = self.objective.passes.recorder
        assert recorder is not None
        (*_, last) = recorder._recordings.values()
        replays = -(-len(points) // last.passes.outputs[0].shape[0]) if last.passes.outputs[0].dim() == 3 else 0
        replay = milliseconds(last.passes.graph.replay, repeats) * max(1, replays)
        memory = torch.cuda.max_memory_reserved() / 1e9
        way = "side by side" if replays else "views"
        print(
            f"{name}: ask {ask:.1f} ms, replay {replay:.1f} ms{'' if replays else ' each'}, first {first:.0f} s, "
            f"reserved {memory:.2f} GB, {way}",
            flush=True,
        )
        return ask, replay, losses


def gpu(given: argparse.Namespace) -> None:
    print(machine(), flush=True)
    nothing, rank1 = [Terms.of([], [], Domain.RADEMACHER)], around(Domain.RANK1, POINTS)
    found: dict[str, tuple[float, float, Any]] = {}

    def tried(name: str, work: Callable[[], tuple[float, float, Any]]) -> None:
        try:
            found[name] = work()
        except Exception:
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)

    model = Gpu(given)
    tried("plain 256", lambda: model.line("a plain batch of 256 prompts × 64", nothing, 4 * POINTS))
    tried("plain 64", lambda: model.line("a plain batch of 64 prompts × 64", nothing, POINTS))
    del model
    model = Gpu(given)
    tried("beside 256", lambda: model.line("64 points × 4 prompts × 64, side by side", rank1, 4))
    tried("beside 64", lambda: model.line("64 points × 1 prompt × 64, side by side", rank1, 1))
    fill = milliseconds(lambda: neighbours(model.params, rank1))
    print(f"factors of 64 points: {fill:.1f} ms", flush=True)
    dense = around(Domain.RADEMACHER, POINTS)
    tried("dense 256", lambda: model.line("64 points × 4 prompts × 64, dense ±1 by views", dense, 4, 3))
    tried("dense 64", lambda: model.line("64 points × 1 prompt × 64, dense ±1 by views", dense, 1, 3))
    model.objective.passes.sides = None
    tried("views 256", lambda: model.line("64 points × 4 prompts × 64, rank one by views", rank1, 4, 3))
    for size in ("256", "64"):
        plain, beside, views = (found.get(f"{way} {size}") for way in ("plain", "beside", "dense"))
        if plain and beside:
            print(f"{size} rows: throughput {plain[0] / beside[0]:.3f} of plain (replays: {plain[1] / beside[1]:.3f})")
        if views and beside:
            print(f"{size} rows: {views[0] / beside[0]:.1f}× the points a second of dense views")
    if "beside 256" in found and "views 256" in found:
        a, b = (found[name][2][0] for name in ("beside 256", "views 256"))
        alike = float(torch.corrcoef(torch.tensor([a, b]))[0, 1])
        print(f"losses at 64 points, side by side and by views: correlation {alike:.4f}")


def generation(given: argparse.Namespace) -> None:
    """64 points × 4 prompts × 64 tokens, and 32 tokens after each, beside one point with as many prompts."""
    print(machine(), flush=True)
    module = opt(given)
    params = Params.of_module(module)
    ends = torch.zeros(50272, dtype=torch.bool, device="cuda")
    judge = RewardFunction(lambda tokens: "", lambda pairs: [0.0] * len(pairs))

    def ms(points: list[Terms], count: int, exact: bool = False, repeats: int = 4) -> tuple[float, float]:
        """Of all tokens, and of one that is replayed, if it is."""
        asked = Prompts(texts(count).prompts, tuple({} for _ in range(count)))
        head = module.get_output_embeddings()
        objective = RewardObjective(module, head, Decoding(GENERATED, ends), judge, asked, exact=exact)
        found = milliseconds(lambda: objective.generated(params, points, asked), repeats)
        if len(points) > 1 and not exact and objective.sides is None:
            print("NOT side by side", flush=True)
        decoders = [decoder for decoder, _ in objective.decoders._kept.values()]
        if not decoders:
            return found, math.nan
        decoders[-1].way.load(decoders[-1].way.prompts)  # and so are all columns, for as many tokens as follow
        decoders[-1].step.zero_()
        return found, milliseconds(decoders[-1]._token._graph.replay)

    with torch.no_grad():
        for prompts in (4, 1):
            plain, plain_token = ms([Terms.of([], [], Domain.RADEMACHER)], prompts * POINTS)
            beside, token = ms(around(Domain.RANK1, POINTS), prompts)
            print(
                f"64 points × {prompts} prompts, {GENERATED} tokens generated: {beside:.0f} ms, {plain / beside:.3f} "
                f"of the throughput of a plain batch ({plain:.0f} ms); one token of all rows {token:.2f} and "
                f"{plain_token:.2f} ms",
                flush=True,
            )
        for prompts in (4, 1):
            views, _ = ms(around(Domain.RANK1, POINTS), prompts, exact=True, repeats=1)
            print(f"64 points × {prompts} prompts, {GENERATED} tokens, by views: {views:.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["mlp", "cnn", "opt", "generate", "sst2"], default=["mlp", "cnn"])
    parser.add_argument("--directions", type=int, help="P of the CPU's rounds")
    parser.add_argument("--rounds", type=int, default=15, help="that are timed, after five others")
    parser.add_argument("--data", type=Path, help="folder with the datasets, for sst2")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    given = parser.parse_args()
    e1_round.WARM, e1_round.ROUNDS = 5, given.rounds  # all clients share a model here: nobody has to catch up
    if "mlp" in given.parts:
        task = {"kind": "own", "name": "mlp"}
        rounds("One round of MNIST, MLP 784-200-10", task, given.directions or 100, "≥ 10×", perceptron)
    if "cnn" in given.parts:
        rounds("One round of E1, CNN", {"kind": "mnist"}, given.directions or 10, "≥ 1.3×", Environment)
    for part, run in (("opt", gpu), ("generate", generation), ("sst2", sentiment)):
        if part in given.parts and torch.cuda.is_available():
            run(given)
        elif part in given.parts:
            print(f"the part {part} needs a CUDA device; skipped")


if __name__ == "__main__":
    main()
