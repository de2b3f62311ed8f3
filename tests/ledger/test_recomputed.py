"""Runs are recomputed from their ledgers by code that follows docs/ledger.md and imports nothing of fedzero."""

from __future__ import annotations

import ast
import json
import sys
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recompute import decomfl, fedavg, rounds, short, stream
from recompute.digits import Digits, first_model, normalised, parts
from recompute.file import File, floats, read, tensors_of
from recompute.generator import Generator
from recompute.zofedht import ZOFedHT

import fedzero
from fedzero.directions import Keys
from fedzero.ledger.store import Ledger
from fedzero.model import schedules
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs.growing import Growth
from fedzero.runs.session import resume, start
from fedzero.tasks import images, partition

SMALL = ["task.batch=4", "algorithm.directions=3", "federation.clients=8", "federation.cohort=4", "engine.device=cpu"]
DEMO = [*SMALL, "rounds=4", "evaluate_every=2"]
"""Recipe demo-cnn, smaller: ±1, momentum, a schedule, forward differences, IID."""
GAUSSIAN = [
    *(*SMALL, "rounds=3", "evaluate_every=3", "algorithm.distribution=gaussian", "algorithm.difference=central"),
    *("algorithm.optimizer={kind='sgd'}", "algorithm.local_steps=2", "algorithm.radius=0.01", "algorithm.rate=1e-3"),
    *("task.partition={kind='dirichlet', alpha=0.5}", "federation.replacement=true", "seed=11"),
]
PERCEPTRON = ["rounds=3", "evaluate_every=2", "engine.device=cpu"]
"""The demo itself: rank one, momentum, the perceptron, whole parts as batches."""
FEDAVG = {
    "name": "fedavg",
    "rounds": 12,
    "seed": 3,
    "evaluate_every": 5,
    "algorithm": {"kind": "fedavg", "rate": 0.02, "local_steps": 2, "momentum": 0.5},
    "task": {"kind": "quadratic", "dimension": 8, "noise": 0.1},
    "federation": {"clients": 6, "cohort": 3},
    "engine": {"device": "cpu"},
}
ZOFEDHT = {
    "name": "zofedht",
    "rounds": 8,
    "seed": 5,
    "evaluate_every": 3,
    "algorithm": {"kind": "zofedht", "form": "seeded", "tau": 3, "alpha": 0.4, "directions": 2, "local_steps": 2}
    | {"radius": 1e-2, "rate": {"kind": "inverse-sqrt", "start": 0.01}},
    "task": {"kind": "quadratic", "dimension": 300, "noise": 0.1},
    "federation": {"clients": 6, "cohort": 4, "replacement": True},
    "engine": {"device": "cpu"},
}


@pytest.fixture
def made(tmp_path: Path, quiet):
    """made(recipe): a run of it; its ledger, and the root of its keys."""

    def run(recipe: recipes.Recipe) -> tuple[File, bytes]:
        start(recipe, tmp_path / "run", Environment(), quiet)
        file = read(tmp_path / "run" / "ledger.db")
        return file, stream.root_of(file.recipe["seed"])

    return run


def digits(file: File, root: bytes) -> Digits:
    return Digits(Path(str(resources.files("fedzero") / "data" / "mnist-subset.npz")), file.recipe, root)


def close(found: np.ndarray, right: np.ndarray) -> bool:
    return float(np.linalg.norm(found - right)) <= 1e-5 * float(np.linalg.norm(right))


def test_the_recomputation_imports_numpy_msgspec_and_the_standard_library_only():
    here, found = Path(__file__).parent / "recompute", set[str]()
    for path in here.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                found.add(str(node.module).partition(".")[0])
    assert found - sys.stdlib_module_names == {"msgspec", "numpy", "recompute"}


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("demo-cnn", DEMO), ("demo-cnn", GAUSSIAN), ("demo", PERCEPTRON)],
    ids=["rademacher", "gaussian", "demo"],
)
def test_decomfl(name: str, overrides: list[str], made, tmp_path: Path):
    file, root = made(recipes.load(name, overrides))
    recipe, data = file.recipe, digits(file, root)
    model = first_model(root, recipe["task"]["model"])
    assert (stream.digest(model), stream.sha256(model)) == (file.start["base"], file.start["base_sha256"])
    method = decomfl.DeComFL(recipe, root, model)
    for record, ((_, scalars),) in decomfl.replayed(file, method):
        round, drawn = record["round"], rounds.cohort(recipe, root, record["round"])
        assert drawn == record["cohort"]
        assert stream.digest(method.model) == file.marks.get(round, stream.digest(method.model))
        for evaluation in file.of("evaluation"):
            if evaluation["round"] == round:
                loss, accuracy = data.tested(method.model)
                assert evaluation["metrics"]["loss"] == pytest.approx(loss, rel=2e-6)
                assert evaluation["metrics"]["accuracy"] == accuracy
        turns = {client: method.client(round, client, data.loss) for client in sorted(set(drawn))}
        given, outside = rounds.bounded({c: g for c, (g, _, _) in turns.items()}, recipe["federation"]["bound"])
        assert outside == record.get("bounded", [])
        # Losses of float32 passes are right to some 1e-6; a slope has that over the radius.
        error = 4e-6 / recipe["algorithm"]["radius"]
        assert np.abs(rounds.mean(given, rounds.weights(drawn)) - scalars).max() < error < 0.02 * np.abs(scalars).max()
        assert record["loss"] == pytest.approx(np.mean([loss for _, loss, _ in turns.values()]), rel=2e-6)
        assert record["queries"] == sum(queries for _, _, queries in turns.values())
        assert record["bytes_up"] == rounds.length_of_replies(round, drawn, scalars.size, turns[drawn[0]][2])
        assert record["bytes_down"] == rounds.length_of_catch_up(file.rounds, round)
    last = file.of("end")[0]
    assert (stream.digest(method.model), stream.sha256(method.model)) == (last["model"], last["sha256"])
    saved = tensors_of(tmp_path / "run" / "model.safetensors")
    assert {name: x.tobytes() for name, x in method.model.items()} == {n: data for n, (_, _, data) in saved.items()}


PRIVATE = [*SMALL, "rounds=4", "evaluate_every=2", "privacy.sigma=1.0"]


PRIVATE_UNITS = {
    "client": [],
    "example": ["unit=example", "clip=1.0", "population=4000", "probability=0.02"],
    "client of a host": ["hosts=2"],
}


@pytest.mark.parametrize("unit", PRIVATE_UNITS)
def test_a_private_run_is_replayed_and_its_costs_are_constants(unit: str, made):
    more = PRIVATE_UNITS[unit]
    file, root = made(recipes.load("demo-cnn", [*PRIVATE, *(f"privacy.{each}" for each in more)]))
    recipe, before = file.recipe, None
    method = decomfl.DeComFL(recipe, root, first_model(root, recipe["task"]["model"]))
    assert set(file.start["facts"]) <= {"model", "fixed"}, "nothing that digests data"
    for record, ((_, scalars),) in decomfl.replayed(file, method):
        assert stream.digest(method.model) == file.marks.get(record["round"], stream.digest(method.model))
        assert list(record) == [*PRIVATE_ROUND]
        assert [record[name] for name in ("cohort", "refused", "remembered", "queried", "loss")] == [
            [],
            [],
            [],
            [],
            None,
        ]
        costs = rounds.expected_costs(recipe, record["round"], before, scalars.size, scalars.size + 1)
        assert [record["bytes_up"], record["bytes_down"], record["queries"]] == costs
        assert record["spent"][0] > 0 and record["spent"][1] is None
        before = record["update"]
    spent = [record["spent"][0] for record in file.rounds]
    assert len(spent) == 4 and spent == sorted(spent)
    assert (stream.digest(method.model), stream.sha256(method.model)) == tuple(
        file.of("end")[0][k] for k in ("model", "sha256")
    )


PRIVATE_ROUND = (
    *("type", "round", "cohort", "update", "dense", "bytes_up", "bytes_down", "queries", "loss"),
    *("refused", "remembered", "queried", "spent"),
)
"""The keys of a `private-round`, in their order."""


def test_fedavg(made, tmp_path: Path):
    file, root = made(recipes.decode(FEDAVG))
    recipe, d = file.recipe, FEDAVG["task"]["dimension"]
    last = fedavg.restored(file)
    assert stream.digest({"x": last}) == file.of("end")[0]["model"]
    assert close(fedavg.trained(recipe, root), last)
    assert [entry["round"] for entry in file.of("saved")] == [10]
    for record in file.rounds:
        round, drawn = record["round"], rounds.cohort(recipe, root, record["round"])
        assert drawn == record["cohort"]
        assert record["queries"] == len(drawn) * recipe["algorithm"]["local_steps"]
        assert record["bytes_up"] == rounds.length_of_replies(round, drawn, d, recipe["algorithm"]["local_steps"])
        assert record["bytes_down"] == rounds.length_of_snapshots(round, drawn, 4 * d)


def test_zofedht(made):
    file, root = made(recipes.decode(ZOFEDHT))
    recipe, tau = file.recipe, ZOFEDHT["algorithm"]["tau"]
    on_record, own, per_client = ZOFedHT(recipe, root), ZOFedHT(recipe, root), 2 * 2
    for record in file.rounds:
        round, drawn = record["round"], rounds.cohort(recipe, root, record["round"])
        assert drawn == record["cohort"]
        kind, number, data, clients = msgspec.msgpack.decode(record["update"])
        assert (kind, number, clients) == (1, round, drawn)
        numbers, count = floats(data), per_client * len(set(drawn))
        T = numbers[count:].reshape(tau, tau) if (round + 1) % tau == 0 else None
        assert numbers.size == count + (0 if T is None else tau * tau)
        # With the scalars and T on record: the same bits.
        on_record.apply(round, on_record.change(round, numbers[:count], clients), T)
        assert stream.digest({"x": on_record.x}) == file.marks.get(round + 1, stream.digest({"x": on_record.x}))
        # With scalars and T of our own: the same numbers.
        turns, _ = rounds.bounded({c: own.client(round, c) for c in set(drawn)}, recipe["federation"]["bound"])
        delta = own.change(round, np.concatenate([turns[c] for c in sorted(turns)]), drawn)
        own.apply(round, delta, None if T is None else own.triangle(round, delta))
        assert close(own.x, on_record.x)
        assert record["queries"] == len(set(drawn)) * 8
        assert record["bytes_up"] == rounds.length_of_replies(round, drawn, per_client, 8)
        assert record["bytes_down"] == rounds.length_of_catch_up(file.rounds, round)
    assert on_record.Q is not None
    assert stream.digest({"x": on_record.x}) == file.of("end")[0]["model"]


def test_rounding_of_16_bits(tmp_path: Path):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(33, 9).bfloat16(), torch.randn(40, 33).bfloat16()
    method = fedzero.DeComFL(rate=0.05, directions=3, local_steps=2, distribution="rademacher", radius=0.1)
    data = [(x[:20], torch.arange(20) % 9), (x[20:], torch.arange(20) % 9)]

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(out.float(), y)

    fedzero.train(model, data, loss=loss, method=method, rounds=5, out=tmp_path / "run", progress=False)
    file = read(tmp_path / "run" / "ledger.db")
    bits = short.bits_of(tensors_of(tmp_path / "run" / "base.safetensors"))
    assert stream.digest(bits, "bfloat16") == file.start["base"]
    end = short.replayed(file, stream.root_of(file.recipe["seed"]), bits)
    assert stream.digest(end, "bfloat16") == file.of("end")[0]["model"] != file.start["base"]


def test_a_ledger_that_was_extended(made, tmp_path: Path, quiet):
    made(recipes.decode(FEDAVG | {"rounds": 7, "evaluate_every": 3}))
    resume(tmp_path / "run", Environment(), quiet, growth=Growth(rounds=12, evaluate_every=5))
    file = read(tmp_path / "run" / "ledger.db")
    assert [entry["round"] for entry in file.of("extended")] == [7]
    assert file.recipe == json.loads(recipes.canonical(recipes.decode(FEDAVG)))
    last = fedavg.restored(file)
    assert stream.digest({"x": last}) == file.of("end")[-1]["model"] != file.of("end")[0]["model"]
    assert close(fedavg.trained(file.recipe, stream.root_of(file.recipe["seed"])), last)


def test_the_head_of_the_chain(made, tmp_path: Path):
    file, _ = made(recipes.decode(FEDAVG | {"rounds": 2}))
    ledger = Ledger.open(tmp_path / "run" / "ledger.db")
    assert file.head == ledger.head
    ledger.close()


@pytest.mark.parametrize(("n", "size"), [(1, 1), (7, 3), (20, 20), (4000, 16), (12_000, 700), (12_000, 12_000)])
def test_draws_of_whole_numbers_are_as_specified(n: int, size: int):
    """NumPy may change its streams; ledgers are read by what docs/ledger.md says."""
    keys = Keys.of_seed(9)
    ours, numpys = (Generator(keys.root, "batch", 1, 2, n), keys.generator("batch", 1, 2, n))
    assert ours.chosen(n, size) == numpys.choice(n, size, replace=False, shuffle=False).tolist()
    ours, numpys = Generator(keys.root, "cohort", n), keys.generator("cohort", n)
    assert [ours.below(n) for _ in range(size)] == numpys.choice(n, size, shuffle=False).tolist()
    ours, numpys = Generator(keys.root, "partition"), keys.generator("partition")
    assert ours.permuted(n) == numpys.permutation(n).tolist()


@pytest.mark.parametrize("how", [partition.Iid(), partition.Shards(2), partition.Dirichlet(0.05)])
def test_partitions(how: partition.Partition):
    y, root = np.arange(400) * 7 % 10, stream.root_of(4)
    right = partition.split(how, y, 30, Keys.of_seed(4))
    found = parts(msgspec.to_builtins(how), y, 30, root)
    assert [part.tolist() for part in found] == [part.tolist() for part in right]


@pytest.mark.parametrize("dataset", ["mnist", "fashion"])
def test_pixels_are_normalised_by_three_operations(dataset: images.Dataset):
    mean, deviation = {"mnist": (0.1307, 0.3081), "fashion": (0.2860, 0.3530)}[dataset]
    data = images.load_subset(dataset)
    x, _ = images.tensors(data.train_x, data.train_y, torch.device("cpu"), dataset)
    found = normalised(data.train_x, mean, deviation)
    assert x.shape == (4000, 1, 28, 28)
    assert x[:, 0].numpy().tobytes() == found.tobytes()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 4000), st.integers(0, 5000), st.floats(1e-6, 10), st.floats(0, 1), st.integers(1, 60))
def test_schedules(length: int, round: int, start: float, share: float, other: int):
    end = start * share
    tables = [
        {"kind": "cosine", "start": start, "rounds": length, "end": end},
        {"kind": "exponential", "start": start, "factor": 1 - share / 2, "every": other, "end": end / 9},
        {"kind": "one-cycle", "start": end, "peak": start, "rise": length, "rounds": length + other, "end": end / 9},
    ]
    tables.append({"kind": "warmup", "rounds": other, "then": tables[round % 3]})
    for table in tables:
        made = msgspec.convert(table, schedules.Schedule)
        assert rounds.rate_at(msgspec.to_builtins(made), round) == schedules.rate_at(made, round)
