"""SmolLM2-135M with LoRA on SST-2: devices with onnxruntime beside a device with PyTorch, in one run.

    python -m bench.devices.language --data DATA --folder FOLDER [--rounds 2] [--devices 2]

The graph, once exported, stays in FOLDER. Before the run the losses of a batch are compared point by point, onnxruntime
beside PyTorch with the same rows and keys, and timed. In the run every reply carries the digest of the model that it
was computed on; a reply with another one than the server's would be on the ledger as refused.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.table import show
from fedzero_client import cli, turn
from fedzero_client import plan as device_plan
from fedzero_client.graph import Graph, _losses
from fedzero_client.model import Model, added

from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.signing import Signer
from fedzero.engines.devices.ticket import address
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import keys_of, prepare
from fedzero.runs import session as runs
from fedzero.runs.oracles import export_recipe
from fedzero.runs.progress import Silent
from fedzero.tasks.contract import BuildContext
from fedzero.tasks.language.encoding import Encoder
from fedzero.tasks.language.portable import padded
from fedzero.tasks.language.texts import TEXTS

BATCH, LENGTH, RANK, DIRECTIONS = 4, 48, 4, 2
METHOD = {"kind": "decomfl", "rate": 1e-3, "directions": DIRECTIONS, "radius": 1e-2, "distribution": "rank1"}


def language(rounds: int, devices: int) -> Any:
    task = {"kind": "language", "model": "smollm2-135m", "train": {"kind": "lora", "rank": RANK}, "text": "sst2"}
    task |= {"batch": BATCH, "length": LENGTH, "training": 120, "testing": 16}
    places = {"clients": devices + 1, "cohort": devices + 1}
    return recipes.decode(
        {"name": "sst2", "rounds": rounds, "seed": 1, "algorithm": METHOD, "task": task, "federation": places}
    )


def of_devices(recipe: Any, folder: Path) -> Any:
    """The same run on devices."""
    task = {"kind": "devices", "graph": str(folder / "lm.onnx"), "widths": [LENGTH, 2], "batch": BATCH}
    task |= {"test": str(folder / "test.npz")}
    places = recipe.federation.clients
    table = {"name": "sst2", "rounds": recipe.rounds, "seed": 1, "evaluate_every": recipe.rounds, "algorithm": METHOD}
    table |= {"task": task, "federation": {"clients": places, "cohort": places}}
    table |= {"base": str(folder / "lm.safetensors")}
    engine = {"kind": "devices", "listen": "127.0.0.1:0", "least": places, "deadline": 1800.0, "merge": False}
    engine |= {"beat": 600, "grace": 600.0}  # a device that evaluates for minutes answers no pings meanwhile
    return recipes.decode(table | {"engine": engine})


def context_of(recipe: Any, environment: Environment) -> BuildContext:
    return BuildContext(keys_of(recipe, None), torch.device("cpu"), environment.data)


def rows_of(recipe: Any, environment: Environment, folder: Path, places: int) -> None:
    """The rows of devices and of the server, as files."""
    task, place = recipe.task, context_of(recipe, environment)
    text = TEXTS["sst2"]
    encoder = Encoder(task._tokenizer(place), LENGTH)
    train, test = (encoder.prompts(text, rows, 0) for rows in task._rows(text, place, None))
    np.savez(folder / "test.npz", x=padded(test.tokens, LENGTH), y=np.array(test.labels))
    for p in range(places):
        some = slice(p, None, places)
        np.savez(folder / f"{p}.npz", x=padded(train.tokens[some], LENGTH), y=np.array(train.labels[some]))


class TorchGraph:
    """What `fedzero_client.graph.Graph` does, by PyTorch."""

    whole = True

    def __init__(self, plan: device_plan.Plan):
        recipe = language(1, 1)
        self.plan = plan
        self.module = recipe.task.oracle(context_of(recipe, Environment(data=Path(os.environ["FEDZERO_DATA"])))).module
        self.names = [name for name, p in self.module.named_parameters() if p.requires_grad]

    def values(self, x: Sequence[Any], points: Sequence[Any], rows: Any, y: Any) -> Any:
        found = []
        for point in points:
            tensors = zip(self.names, added(self.plan, x, point), self.plan.tensors, strict=True)
            named = {name: torch.from_numpy(flat).view(tensor.shape) for name, flat, tensor in tensors}
            with torch.no_grad():
                logits = torch.func.functional_call(self.module, named, (torch.from_numpy(rows),))
            found.append(_losses(logits.numpy()[None], y).mean())
        return np.array(found)


def compare(recipe: Any, folder: Path) -> None:
    """Losses of the points of a turn, one way beside the other."""
    plan = device_plan.read(plans.encode(plans.plan_of(prepare(recipe, Environment(folder=folder)))))
    model = Model(plan)
    model.x = first_values(recipe, folder)
    with np.load(folder / "0.npz") as file:
        rows = turn.Rows(file["x"], file["y"])
    torch.set_num_threads(1)
    lines, found = list[tuple[str, ...]](), {}
    ways = {"onnxruntime": Graph((folder / "lm.onnx").read_bytes(), plan, 1), "PyTorch": TorchGraph(plan)}
    for name, graph in ways.items():
        worker = turn.Worker(plan, rows, 0, oracle=graph)
        worker._values(model.x, 0, 0)
        began = time.perf_counter()
        found[name] = worker._values(model.x, 1, 0)
        lines.append((name, f"{time.perf_counter() - began:.2f}", *(f"{value:.7f}" for value in found[name])))
    show(
        "losses of a turn, one thread", lines, ("by", "seconds", *(f"point {p}" for p in range(len(found["PyTorch"]))))
    )
    print("largest difference of a loss:", f"{np.abs(found['onnxruntime'] - found['PyTorch']).max():.1e}")


def first_values(recipe: Any, folder: Path) -> list[Any]:
    params = prepare(recipe, Environment(folder=folder)).problem.params
    return [tensor.numpy().reshape(-1).copy() for tensor in params.tensors.values()]


def device(where: str, folder: Path, place: int, by_torch: bool) -> subprocess.Popen[bytes]:
    own = folder / f"device-{place}"
    own.mkdir(exist_ok=True)
    ours = ["bench.devices.language", "--join"] if by_torch else ["fedzero_client"]
    program = [sys.executable, "-m", *ours]
    sha = sha256((folder / "lm.onnx").read_bytes()).hexdigest()
    if not (own / f"{sha}.onnx").exists():  # as if it had been fetched before
        os.link(folder / "lm.onnx", own / f"{sha}.onnx")
    rest = ["join", where, "--data", str(folder / f"{place}.npz"), "--folder", str(own), "--memory", "32"]
    return subprocess.Popen([*program, *rest])


def main() -> None:
    if "--join" in sys.argv:
        sys.exit(cli.main(sys.argv[sys.argv.index("--join") + 1 :], TorchGraph))
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2)
    given = parser.parse_args()
    folder, environment = given.folder, Environment(data=given.data)
    os.environ["FEDZERO_DATA"] = str(given.data)
    folder.mkdir(exist_ok=True)
    plain = language(given.rounds, given.devices)
    if not (folder / "lm.onnx").exists():
        written, _ = export_recipe(plain, environment, folder / "lm.onnx")
        print(f"graph: {written.size:,} bytes, difference from PyTorch {written.difference:.1e}")
    rows_of(plain, environment, folder, given.devices + 1)
    recipe = of_devices(plain, folder)
    compare(recipe, folder)
    run, processes = folder / "run", list[Any]()
    registry = Registry(run)
    ticket = registry.ticket(given.devices + 1)

    def begin() -> None:
        while not registry.url:
            time.sleep(0.2)
        where = address(registry.url, registry.run, ticket, Signer(registry.keys).fingerprint)
        for place in range(given.devices + 1):
            processes.append(device(where, folder, place, by_torch=place == given.devices))
            while len(registry.places()) <= place:
                time.sleep(0.2)

    threading.Thread(target=begin, daemon=True).start()
    runs.start(recipe, run, Environment(), Silent())
    for process in processes:
        process.wait(120)
    with closing(Ledger.open(run / LEDGER)) as ledger:
        records = list(ledger.rounds())
    for record in records:
        print(f"round {record.round}: cohort {record.cohort}, refused {record.refused}")


if __name__ == "__main__":
    main()
