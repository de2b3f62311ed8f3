"""`fedzero.train`: modules, data and losses of the user's own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import fedzero
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER
from fedzero.oracles.criteria import per_sample
from fedzero.runs.progress import Silent
from fedzero.tasks.own import LocalTask
from stops import StopAt


def mlp(seed: int = 0, outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def pairs(seed: int = 0, rows: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator)
    return x, (x[:, :3].argmax(1)).long()


CLIENTS = [pairs(seed) for seed in range(4)]
METHOD = {"kind": "decomfl", "rate": 0.1, "directions": 5}


def go(out: Path, model: nn.Module | None = None, **changes: Any) -> fedzero.Run:
    given: dict[str, Any] = {
        "clients": CLIENTS,
        "loss": F.cross_entropy,
        "method": METHOD,
        "rounds": 6,
        "progress": False,
    }
    given |= {"test": pairs(9), "metrics": {"accuracy": fedzero.accuracy}, "evaluate_every": 2} | changes
    return fedzero.train(model or mlp(), out=out, **given)


def test_the_module_is_trained_in_place_and_the_run_says_how(tmp_path: Path) -> None:
    model = mlp()
    before = [p.clone() for p in model.parameters()]
    run = go(tmp_path / "run", model)
    assert run.model is model
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert run.history["round"].tolist() == [0, 2, 4, 6]
    x, y = pairs(9)
    assert run.history["loss"][-1] == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-6)
    assert run.history["accuracy"][-1] == (model(x).argmax(1) == y).double().mean().item()
    assert run.queries == 6 * 4 * 6
    assert run.bytes_per_client == run.history["bytes_up"][-1] + run.history["bytes_down"][-1] > 0
    assert run.summary.complete and "decomfl, 6 rounds" in repr(run)
    for name, tensor in run.replay().items():
        assert torch.equal(tensor, dict(model.named_parameters())[name])
    assert torch.equal(run.replay(0)["0.weight"], before[0])
    run.verify()


def test_everything_but_resuming_works_without_the_model(tmp_path: Path, request) -> None:
    """From another process, by the ledger and the base beside it: verify, replay, patch, report."""
    fedzero_command = request.getfixturevalue("fedzero")
    run = go(tmp_path / "run")
    folder = str(tmp_path / "run")
    assert "intact: 6 rounds, complete" in fedzero_command("verify", folder).out
    fedzero_command("replay", folder, "--out", str(tmp_path / "end.safetensors"))
    run.patch(tmp_path / "small.patch")
    base = str(tmp_path / "run" / "base.safetensors")
    fedzero_command(
        "patch", "apply", str(tmp_path / "small.patch"), "--base", base, "--out", str(tmp_path / "p.safetensors")
    )
    assert (tmp_path / "p.safetensors").read_bytes() == (tmp_path / "end.safetensors").read_bytes()
    opened = fedzero.Run.open(folder)
    assert opened.summary == run.summary
    assert "Sequential" in opened.report(tmp_path / "page.html").read_text()
    with pytest.raises(FedzeroError, match="repeat the call that began the run"):
        opened.resume(progress=False)


def test_a_run_shows_itself(tmp_path: Path) -> None:
    html = go(tmp_path / "run")._repr_html_()
    assert "<svg" in html and ">total / client</th>" in html and ">decomfl</td>" in html


def go_far(folder: Path) -> None:
    torch.set_num_threads(1)
    go(folder, rounds=150)


def test_killed_the_same_call_resumes(tmp_path: Path, warm_server) -> None:
    def process(name: str) -> Any:
        started = warm_server.Process(target=go_far, args=(tmp_path / name,), daemon=True)
        started.start()
        return started

    killed = process("killed")
    ledger = tmp_path / "killed" / LEDGER
    end = time.monotonic() + 300
    while not (ledger.exists() and fedzero.Run.open(tmp_path / "killed").summary.rounds >= 10):
        assert killed.is_alive() and time.monotonic() < end
        time.sleep(0.02)
    killed.kill()
    killed.join(300)
    assert fedzero.Run.open(tmp_path / "killed").summary.rounds < 150
    for again in [process(name) for name in ("killed", "whole")]:
        again.join(300)
        assert again.exitcode == 0
    resumed, whole = (fedzero.Run.open(tmp_path / name).summary for name in ("killed", "whole"))
    assert (resumed.rounds, resumed.model_digest) == (whole.rounds, whole.model_digest)


def test_in_a_notebook_the_same_module_resumes(tmp_path: Path, capsys) -> None:
    """After Ctrl-C the module is somewhere on its way; the call begins with what it began with."""
    model = mlp()
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "run", model, progress=StopAt(2))
    assert "the same call resumes" in capsys.readouterr().err
    run = go(tmp_path / "run", model)
    assert run.summary.model_digest == go(tmp_path / "whole").summary.model_digest
    assert go(tmp_path / "run", model).summary == run.summary, "a finished run is not trained again"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": mlp(1)}, "base model"),
        ({"model": mlp(0, outputs=4)}, "base model"),
        ({"clients": [pairs(5), *CLIENTS[1:]]}, "data"),
        ({"test": pairs(8)}, "data"),
        ({"batch": 7}, "task.batch = 32 there and 7 here"),
    ],
)
def test_another_model_or_data_is_refused(tmp_path: Path, change, words) -> None:
    go(tmp_path / "run")
    with pytest.raises(FedzeroError, match=words):
        go(tmp_path / "run", **change)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.noise = nn.Linear(4, 3), nn.Dropout(0.5)

    def forward(self, x):
        return F.dropout(self.layer(x), 0.5, training=True)


class AlwaysTraining(nn.Dropout):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return self.layer(x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Noisy(), "the model gives other values"),
        (nn.Sequential(nn.Linear(4, 3), AlwaysTraining()), r"the layer '1' \(AlwaysTraining\) gives other values"),
        (Remembering(), "changes its buffer 'seen'"),
    ],
)
def test_chance_and_memory_are_found_out(tmp_path: Path, model, words) -> None:
    with pytest.raises(FedzeroError, match=words):
        go(tmp_path / "run", model)
    assert not (tmp_path / "run" / LEDGER).exists()


def test_dropout_and_batch_norm_are_in_eval_mode(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    go(tmp_path / "run", model).verify()


class Rows(Dataset):
    def __init__(self, seed: int):
        self.x, self.y = pairs(seed)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i], int(self.y[i])


def as_numpy(pair):
    return tuple(part.numpy() for part in pair)


@pytest.mark.parametrize(
    "kept",
    [
        lambda s: TensorDataset(*pairs(s)),
        Rows,
        lambda s: as_numpy(pairs(s)),
        lambda s: list(zip(*pairs(s), strict=True)),
    ],
)
def test_whatever_data_are_kept_in_the_run_is_the_same(tmp_path: Path, kept) -> None:
    same = go(tmp_path / "own", clients=[kept(seed) for seed in range(4)]).summary
    assert same.model_digest == go(tmp_path / "pairs").summary.model_digest


def test_random_augmentation_is_refused(tmp_path: Path) -> None:
    class Augmented(Rows):
        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            return self.x[i] + torch.randn(4), int(self.y[i])

    with pytest.raises(FedzeroError, match="Augmented gives other items when it is read again"):
        go(tmp_path / "run", clients=[Augmented(0)])


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_one_dataset_is_dealt_out(tmp_path: Path, partition) -> None:
    run = go(tmp_path / "run", clients=pairs(0, 200), partition=partition, count=5)
    assert run.summary.clients == 5


def test_another_dealing_of_the_same_sizes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other positions as well as other values; a run that an earlier release began goes on."""
    x, y = pairs(0, 200)
    dealt = {"clients": (x, y), "partition": "iid", "count": 5}
    with monkeypatch.context() as patched:
        patched.setattr(
            LocalTask, "_about_data", lambda self, about=LocalTask._about_data: {"data": about(self)["data"]}
        )
        go(tmp_path / "old", **dealt, rounds=2)
    assert go(tmp_path / "run", **dealt, rounds=2).summary.rounds == 2
    for folder in ("old", "run"):
        assert go(tmp_path / folder, **dealt, rounds=3).summary.rounds == 3
        with pytest.raises(FedzeroError, match="started with data: 200 samples of 5 clients, "):
            go(tmp_path / folder, **dealt | {"partition": "shards"}, rounds=4)
    for other in ((x + 1, y), (x, y.flip(0))):
        with pytest.raises(FedzeroError, match=r"started with dataset: 200 samples, .*; here it is 200 samples, "):
            go(tmp_path / "run", **dealt | {"clients": other}, rounds=4)


def test_dictionaries_and_an_objective(tmp_path: Path) -> None:
    """A ranking: the loss is of pairs of rows, one number a batch, so batches of clients are evaluated one by one."""

    def ranking(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        better, worse = model(batch["better"]), model(batch["worse"])
        return F.softplus(worse - better).mean()

    def right(model: nn.Module, batch: dict[str, torch.Tensor]) -> float:
        return float((model(batch["better"]) > model(batch["worse"])).float().mean())

    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    w = torch.tensor([1.0, -2.0, 0.5, 0.0])
    order = (x[0::2] @ w > x[1::2] @ w)[:, None]
    better, worse = torch.where(order, x[0::2], x[1::2]), torch.where(order, x[1::2], x[0::2])
    clients = [{"better": better[i::5], "worse": worse[i::5]} for i in range(4)]
    test = {"better": better[4::5], "worse": worse[4::5]}
    model = mlp(outputs=1)
    method = {"kind": "decomfl", "rate": 0.1, "directions": 20}
    run = go(
        tmp_path / "run",
        model,
        clients=clients,
        test=test,
        loss=None,
        objective=ranking,
        metrics={"right": right},
        method=method,
        rounds=60,
    )
    assert run.history["right"][0] < 0.75 < 0.9 < run.history["right"][-1]
    merged, alone = (
        go(
            tmp_path / str(merge),
            mlp(outputs=1),
            clients=clients,
            test=test,
            loss=None,
            objective=ranking,
            metrics={},
            merge=merge,
        ).history["loss"]
        for merge in (True, False)
    )
    assert merged == pytest.approx(alone, rel=1e-5)


def test_regression(tmp_path: Path) -> None:
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    y = (x @ torch.tensor([1.0, -1.0, 0.5, 0.0]))[:, None]
    clients = [(x[i:250:5], y[i:250:5]) for i in range(5)]
    run = go(
        tmp_path / "run",
        nn.Linear(4, 1),
        clients=clients,
        test=(x[250:], y[250:]),
        loss=nn.MSELoss(),
        metrics={"error": lambda p, t: (p - t).abs().mean()},
        method={"kind": "decomfl", "rate": 0.1, "directions": 10},
        rounds=80,
    )
    assert run.history["error"][-1] < 0.1 < run.history["error"][0]
    assert "accuracy" not in run.history


def test_segmentation_and_frozen_and_tied_weights(tmp_path: Path) -> None:
    """Losses of pixels are averaged; frozen layers stay; a tied weight is one parameter."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.out = (
                nn.Conv2d(1, 2, 3, padding=1),
                nn.Conv2d(2, 2, 3, padding=1),
                nn.Conv2d(2, 2, 1),
            )
            self.third = nn.Conv2d(2, 2, 3, padding=1)
            self.third.weight = self.second.weight
            self.first.requires_grad_(False)

        def forward(self, x):
            return self.out(self.third(F.relu(self.second(F.relu(self.first(x))))))

    images = torch.randn(24, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = (images[:, 0] > 0).long()
    net = Net()
    frozen = net.first.weight.clone()
    run = go(
        tmp_path / "run",
        net,
        clients=[(images[i::4], labels[i::4]) for i in range(4)],
        test=(images, labels),
        metrics={"accuracy": lambda o, y: (o.argmax(1) == y).float().mean()},
    )
    assert torch.equal(net.first.weight, frozen)
    assert net.third.weight is net.second.weight
    assert run.summary.parameters == 36 + 2 + 2 + 4 + 2
    assert run.history["loss"][-1] == pytest.approx(F.cross_entropy(net(images), labels).item(), rel=1e-6)


@pytest.mark.parametrize(
    "loss", [F.mse_loss, nn.SmoothL1Loss(), F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)]
)
def test_means_of_torch_are_means_of_samples(loss) -> None:
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    target = torch.arange(7) % 3 if "ross" in str(loss) else torch.zeros(7, 3)
    parts = per_sample(loss)(logits, target)
    assert parts.shape[0] == 7
    assert float(parts.mean()) == pytest.approx(float(loss(logits, target)), rel=1e-6)


def test_weighted_losses_and_own_ones_stay_as_they_are() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    assert per_sample(weighted) is weighted
    assert per_sample(len) is len  # type: ignore[arg-type]


def test_ignored_labels_are_refused(tmp_path: Path) -> None:
    x, y = pairs()
    with pytest.raises(FedzeroError, match="labels of -100 are ignored"):
        go(tmp_path / "run", clients=[(x, torch.where(y == 0, -100, y))])


def test_bfloat16(tmp_path: Path) -> None:
    run = go(
        tmp_path / "run",
        mlp().bfloat16(),
        clients=[(x.bfloat16(), y) for x, y in CLIENTS],
        test=(pairs(9)[0].bfloat16(), pairs(9)[1]),
    )
    run.verify()
    assert run.replay()["0.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": None}, "either `loss`"),
        ({"clients": []}, "clients: give a list"),
        ({"clients": pairs(), "partition": "even"}, "partition = 'even'"),
        ({"clients": [iter([1])]}, "client 0 has data of type list_iterator"),
        ({"clients": [(np.zeros((3, 4), "f4"), np.zeros(2, "i8"))]}, r"have \[2, 3\] rows"),
        ({"clients": [{"x": np.zeros((3, 4), "f4")}]}, "`loss` is of pairs"),
        ({"cohort": 9}, "federation.cohort = 9 exceeds"),
        ({"model": nn.Linear(4, 3).double()}, "float64"),
    ],
)
def test_mistakes_are_said_in_a_sentence(tmp_path: Path, change, words) -> None:
    with pytest.raises(FedzeroError, match=words):
        go(tmp_path / "run", **change)
    assert not (tmp_path / "run" / LEDGER).exists()


def test_history_as_a_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run = go(tmp_path / "run")
    table = run.history.to_pandas()
    assert isinstance(table, pandas.DataFrame) and list(table["round"]) == [0, 2, 4, 6]
    with pytest.raises(KeyError, match="the columns are round, loss, accuracy"):
        run.history["recall"]


class Sequences(Dataset):
    """Items, which are read one by one."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def spoiled(client: int, row: int, column: int, value: float) -> list[Any]:
    clients = [(x.clone(), y) for x, y in CLIENTS]
    clients[client][0][row, column] = value
    return clients


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("how", ["arrays", "items", "dealt", "test"])
def test_nan_in_the_data_is_found_before_the_run_and_not_blamed_on_the_rate(tmp_path: Path, value, how) -> None:
    clients = spoiled(2, 17, 3, value)
    place, changes = "client 2 has (nan|inf) in row 17, x", dict[str, Any]()
    if how == "items":
        changes = {"clients": [Sequences(*each) for each in clients]}
    elif how == "dealt":
        x, y = (torch.cat(columns) for columns in zip(*clients, strict=True))
        changes = {"clients": (x, y), "partition": "iid", "count": 4}
        place = r"dealt out \(client [0-3]\) has (nan|inf) in row 77, x"
    elif how == "test":
        changes, place = {"test": clients[2]}, "the test data has (nan|inf) in row 17, x, column 3"
    else:
        changes, place = {"clients": clients}, place + ", column 3"

    def model() -> nn.Module:  # tanh alone makes a finite number of infinity
        return nn.Sequential(nn.Linear(4, 3))

    with pytest.raises(FedzeroError, match=place):
        go(tmp_path / "run", model(), **changes)
    assert not (tmp_path / "run").exists()


def test_a_model_may_deal_with_numbers_that_are_not_finite(tmp_path: Path) -> None:
    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(torch.nan_to_num(x, 0.0, 0.0, 0.0))
            return out

    run = go(tmp_path / "run", Filled(), clients=spoiled(2, 17, 3, float("nan")))
    assert np.isfinite(run.history["loss"]).all()


def test_nan_in_the_model_or_its_loss_is_named(tmp_path: Path) -> None:
    model = mlp()
    with torch.no_grad():
        model[2].bias[1] = float("nan")
    with pytest.raises(FedzeroError, match=r"NaN or infinite numbers in '2\.bias'"):
        go(tmp_path / "run", model)
    with pytest.raises(FedzeroError, match="although the data are"):
        go(tmp_path / "run", loss=lambda out, y: F.cross_entropy(out, y) / 0)


def test_a_loss_that_is_no_number_from_the_start_is_not_blamed_on_the_rate(tmp_path: Path) -> None:
    """Where it was not found before the run: here only one of thousands of items is spoiled."""
    x, y = (torch.cat(columns) for columns in zip(*[pairs(seed) for seed in range(200)], strict=True))
    x[777, 0] = float("nan")
    told: list[str] = []

    class Told(Silent):
        def warn(self, text: str) -> None:
            told.append(text)

    go(tmp_path / "run", nn.Sequential(nn.Linear(4, 3)), test=Sequences(x, y), rounds=1, progress=Told())
    assert len(told) == 1
    assert "the rate is not the reason" in told[0]
    assert "lower" not in told[0]


@pytest.mark.parametrize("name", ["loss", "round", "queries", "bytes_up", "train_loss", ""])
@pytest.mark.parametrize("how", ["loss", "objective", "site"])
def test_names_of_metrics_that_a_history_uses_itself_are_refused(tmp_path: Path, name: str, how: str) -> None:
    metrics = {name: lambda *_: 7.0}
    with pytest.raises(FedzeroError, match=f"metrics has the name '{name}'"):
        if how == "site":
            fedzero.site_task(mlp(), pairs(), loss=F.cross_entropy, metrics=metrics)
        elif how == "loss":
            go(tmp_path / "run", metrics=metrics)
        else:
            objective = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
            go(tmp_path / "run", loss=None, objective=objective, metrics=metrics)
    assert not (tmp_path / "run").exists()
