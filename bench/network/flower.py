"""The same round of FedAvg on MNIST in Flower's simulation engine (its Ray backend) and here: clients a second, memory.

    python -m venv /tmp/flower && /tmp/flower/bin/pip install 'flwr[simulation]' torch
    python -m bench.network.flower --flower /tmp/flower/bin/python [--rounds 10] [--cores 2]

Flower pins a Ray of its own, so it gets an environment of its own; each way is a process that this one starts, and
whose memory (unshared, of all its descendants, the largest sum seen) it measures. 100 clients with 40 images each, 20
of them a round, five steps of SGD with batch 32, a CNN of 28,938 weights in plain torch; one thread a worker, and no
evaluation. Rounds after the first are counted: the first starts workers. Flower's rounds last from one aggregation
to the next.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

DATA = Path(__file__).resolve().parents[2] / "src" / "fedzero" / "data" / "mnist-subset.npz"
CLIENTS, COHORT, BATCH, STEPS, RATE = 100, 20, 32, 5, 0.05


class Cnn(nn.Module):
    """conv 16@5×5, conv 32@5×5, linear; padding 2, 2×2 pools."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 32, 5, padding=2)
        self.linear = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        h = F.max_pool2d(F.relu(self.conv2(h)), 2)
        result: Tensor = self.linear(h.flatten(1))
        return result


def client(number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    with np.load(DATA) as arrays:
        x, y = arrays["train_x"][number::CLIENTS], arrays["train_y"][number::CLIENTS]
    return (x[:, None] / 255.0).astype(np.float32), y.astype(np.int64)


def flower(rounds: int, cores: int) -> list[float]:
    """Seconds of every round."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    at: list[float] = []

    class Timed(FedAvg):  # type: ignore[misc]
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            result = super().aggregate_train(server_round, replies)
            at.append(time.perf_counter())
            return result

    clients = ClientApp()

    @clients.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Any) -> Message:
        torch.set_num_threads(1)
        model = Cnn()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        number = int(context.node_config["partition-id"])
        images, labels = client(number)
        x, y = torch.from_numpy(images), torch.from_numpy(labels)
        optimizer, draw = torch.optim.SGD(model.parameters(), RATE), np.random.default_rng(number)
        for _ in range(STEPS):
            chosen = draw.choice(len(x), BATCH, replace=False)
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
        arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": len(x)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        strategy = Timed(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0)
        initial, nothing = ArrayRecord(Cnn().state_dict()), ConfigRecord({})
        strategy.start(grid, initial, num_rounds=rounds, train_config=nothing)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}}
    run_simulation(server, clients, CLIENTS, backend_config=resources)
    return np.diff(at).tolist()


def ours(rounds: int, cores: int, engine: str) -> list[float]:
    import fedzero
    from fedzero.runs.progress import Silent

    at: list[float] = []

    class Clock(Silent):
        def round(self, record: Any) -> None:
            at.append(time.perf_counter())

    torch.manual_seed(0)
    torch.set_num_threads(cores)
    data = [client(number) for number in range(CLIENTS)]
    with tempfile.TemporaryDirectory() as folder:
        fedzero.train(
            Cnn(),
            data,
            loss=F.cross_entropy,
            method={"kind": "fedavg", "rate": RATE, "local_steps": STEPS},
            rounds=rounds,
            cohort=COHORT,
            batch=BATCH,
            test=data[0],
            evaluate_every=rounds,
            engine=f"ray:{cores}" if engine == "ray" else engine,
            out=Path(folder) / "run",
            progress=Clock(),
        )
    return np.diff(at).tolist()


def measured(python: str, way: str, rounds: int, cores: int) -> tuple[float, float]:
    """Seconds of a round, median, and megabytes of all processes of a way."""
    import psutil

    command = [python, "-m", "bench.network.flower", "--way", way, "--rounds", str(rounds), "--cores", str(cores)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(cores) if way == "local" else "1"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.DEVNULL, env=environment)
        most = 0
        while process.poll() is None:
            total = 0
            for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
                try:
                    total += each.memory_full_info().uss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
            most = max(most, total)
            time.sleep(0.3)
        printed.seek(0)
        lines = printed.read().splitlines()
    if process.returncode:
        raise SystemExit(f"{way} ended with status {process.returncode}: {' '.join(command)} shows why")
    return median(json.loads(lines[-1])), most / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flower", help="Python of an environment with flwr[simulation] and torch")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--way", choices=("flower", "ray", "local"))
    options = parser.parse_args()
    if options.way:
        rounds, cores = options.rounds, options.cores
        print(json.dumps(flower(rounds, cores) if options.way == "flower" else ours(rounds, cores, options.way)))
        return
    if not options.flower:
        raise SystemExit("give --flower PYTHON, of an environment with flwr[simulation] and torch")
    from bench.table import show

    found = {}
    for way in ("flower", "ray", "local"):
        python = options.flower if way == "flower" else sys.executable
        found[way] = measured(python, way, options.rounds + 1, options.cores)
    rows = []
    for way, (seconds, megabytes) in found.items():
        rate, baseline = COHORT / seconds, COHORT / found["flower"][0]
        share = megabytes / found["flower"][1]
        rows.append((way, f"{rate:.1f}", f"{rate / baseline:.2f}", f"{megabytes:.0f}", f"{share:.2f}"))
    what = f"{COHORT} of {CLIENTS} clients, {STEPS} steps, batch {BATCH}, {options.cores} cores"
    show(f"A round of FedAvg on MNIST: {what}", rows, ("", "clients/s", "× Flower", "MB", "× Flower"))


if __name__ == "__main__":
    main()
