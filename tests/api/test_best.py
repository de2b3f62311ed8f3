"""The best model by any metric, metrics on any data, and data for validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedzero
from fedzero.api.table import Table
from fedzero.api.validation import held_out
from fedzero.errors import FedzeroError
from fedzero.ledger.best import best
from fedzero.ledger.records import Evaluation
from fedzero.oracles import Metrics


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def pairs(seed: int = 0, rows: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)


CLIENTS = [pairs(seed, 20 + 10 * seed) for seed in range(4)]


def margin(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    return float(outputs.gather(1, labels[:, None]).detach().mean())


def go(out: Path, model: nn.Module | None = None, **changes: Any) -> fedzero.Run:
    given: dict[str, Any] = {"clients": CLIENTS, "loss": F.cross_entropy, "rounds": 8, "evaluate_every": 2}
    given |= {"method": {"kind": "decomfl", "rate": 2.0, "directions": 3}, "progress": False, "test": pairs(9)}
    given |= {"metrics": {"accuracy": fedzero.accuracy, "margin": margin}} | changes
    return fedzero.train(model or mlp(), out=out, **given)


def evaluation(round: int, loss: float, accuracy: float | None = None, **others: float) -> Evaluation:
    return Evaluation(round, b"", Metrics(loss, accuracy, others))


def test_the_best_is_the_first_with_the_best_value() -> None:
    seen = [evaluation(0, 2.0, 0.5, gap=3.0), evaluation(1, 1.0, 0.7, gap=9.0), evaluation(2, 1.5, 0.7, gap=1.0)]
    seen.append(evaluation(3, float("nan"), None))
    assert best(seen).round == 1, "the loss decides between equal accuracies"
    assert best(seen, "accuracy").round == 1 and best(seen, "loss").round == 1
    assert best(seen, "gap", "min").round == 2 and best(seen, "gap", "max").round == 1
    with pytest.raises(FedzeroError, match="whether less or more is better"):
        best(seen, "gap")
    with pytest.raises(FedzeroError, match="there are loss, accuracy, gap"):
        best(seen, "perplexity")
    with pytest.raises(FedzeroError, match="no evaluation yet"):
        best([])


def test_the_best_model_is_loaded_and_the_run_stays_as_it_is(tmp_path: Path) -> None:
    model = mlp()
    run = go(tmp_path / "run", model)
    rounds, values = run.history["round"], run.history["margin"]
    found = run.load_best("margin", mode="min")
    assert (found.round, found.value) == (rounds[values.argmin()], values.min())
    assert found.round != 8, "else nothing is tried"
    assert all(torch.equal(dict(model.named_parameters())[n], t) for n, t in run.replay(found.round).items())
    assert margin(model(pairs(9)[0]), pairs(9)[1]) == pytest.approx(found.value, rel=1e-5)
    run.verify()
    head = run.summary.ledger_head
    again = go(tmp_path / "run", model)
    assert again.summary.ledger_head == head, "the call is repeated, from the weights it began with"
    opened = fedzero.Run.open(tmp_path / "run", model=mlp)
    assert opened.load_best("margin", "min") == found
    assert torch.equal(opened.model[0].weight, run.replay(found.round)["0.weight"])
    with pytest.raises(FedzeroError, match="give it as model"):
        fedzero.Run.open(tmp_path / "run", mlp)  # type: ignore[arg-type]


def test_patches_and_the_command_line_choose_by_the_same_rule(tmp_path: Path, fedzero: Any) -> None:
    run = go(tmp_path / "run")
    found = run.best("margin", "min")
    said = fedzero(
        "replay", str(run.folder), "--best", "margin", "--mode", "min", "--out", str(tmp_path / "best.safetensors")
    )
    assert f"best margin: after {found.round} rounds" in said.out
    assert f"model before round {found.round}" in said.out


def test_any_data_can_be_evaluated_at_any_round(tmp_path: Path) -> None:
    run = go(tmp_path / "run")
    for round, row in zip((0, 4, None), (0, 2, -1), strict=True):
        found = run.evaluate(pairs(9), round=round)
        assert found == {name: pytest.approx(run.history[name][row]) for name in ("loss", "accuracy", "margin")}
    run.load_best()
    assert run.evaluate(pairs(9))["loss"] == run.history["loss"][-1], "that of the ledger, whatever the module holds"
    assert run.evaluate(pairs(9), round="best")["accuracy"] == run.best().value
    with pytest.raises(FedzeroError, match="data: the model and the loss cannot be evaluated"):
        run.evaluate((torch.randn(3, 7), torch.zeros(3).long()))
    with pytest.raises(FedzeroError, match="repeat the call"):
        fedzero.Run.open(run.folder, model=mlp).evaluate(pairs(9))


def test_metrics_by_client_say_who_is_worst(tmp_path: Path) -> None:
    run = go(tmp_path / "run")
    table = run.evaluate_clients()
    assert table["rows"].tolist() == [20, 30, 40, 50]
    losses = [F.cross_entropy(run.model(x), y).item() for x, y in CLIENTS]
    assert table["loss"] == pytest.approx(losses)
    assert table.worst("loss") == (int(np.argmax(losses)), pytest.approx(max(losses)))
    assert table.worst("accuracy")[1] == table["accuracy"].min()
    assert table.mean("loss") == pytest.approx(np.mean(losses)) and table.spread("loss") == pytest.approx(
        np.std(losses)
    )
    assert list(table.to_pandas().columns) == ["client", "rows", "loss", "accuracy", "margin"]
    assert len(repr(table).splitlines()) == 5
    assert run.evaluate_clients([pairs(9)] * 4)["loss"].tolist() == [run.history["loss"][-1]] * 4
    with pytest.raises(FedzeroError, match="each of the 4 clients"):
        run.evaluate_clients([pairs(9)])


@pytest.mark.parametrize("dealt", [False, True])
def test_a_share_for_validation_is_never_trained_on(tmp_path: Path, dealt: bool) -> None:
    whole = pairs(3, 40)
    data: dict[str, Any] = {"clients": whole, "partition": "shards", "count": 4} if dealt else {"clients": CLIENTS}
    run = go(tmp_path / "run", validation=0.25, **data)
    assert {"loss", "accuracy", "margin", "test loss", "test accuracy", "test margin"} <= set(run.history)
    assert run.evaluate(pairs(9))["loss"] == pytest.approx(run.history["test loss"][-1])
    rows = run.evaluate_clients()["rows"].tolist()
    assert rows == ([7] * 4 if dealt else [15, 22, 30, 37])
    (local,) = run.environment.functions.values()
    own, held = (
        [samples.batch(np.arange(len(samples)), torch.device("cpu"))[0] for samples in part]
        for part in (local.clients, local.test)
    )
    for mine, kept in zip(own, held, strict=True):
        assert not (mine[:, None] == kept[None]).all(-1).any()
    assert run.history["loss"][-1] == pytest.approx(
        sum(F.cross_entropy(run.model(x), x[:, :3].argmax(1)).item() * len(x) for x in held) / sum(map(len, held))
    )
    with pytest.raises(FedzeroError, match="data: "):
        go(tmp_path / "run", validation=0.5, **data)


def test_data_for_validation_take_the_place_of_test_data(tmp_path: Path) -> None:
    run = go(tmp_path / "run", validation=pairs(8))
    assert run.history["loss"][-1] == pytest.approx(F.cross_entropy(run.model(pairs(8)[0]), pairs(8)[1]).item())
    alone = go(tmp_path / "alone", validation=pairs(8), test=None)
    assert alone.history["loss"].tolist() == run.history["loss"].tolist() and "test loss" not in alone.history
    for odd in (0, 1.0, -0.1):
        with pytest.raises(FedzeroError, match="validation = "):
            go(tmp_path / "odd", validation=odd)
    with pytest.raises(FedzeroError, match="client 0 has 1 sample: validation"):
        go(tmp_path / "odd", clients=[pairs(1, 1), pairs(2)], validation=0.5)


def test_a_share_is_drawn_by_the_seed_alone() -> None:
    kept, held = held_out(10, 0.25, 1, 0)
    assert sorted([*kept, *held]) == list(range(10)) and len(held) == 3
    assert held.tolist() == held_out(10, 0.25, 1, 0)[1].tolist() != held_out(10, 0.25, 2, 0)[1].tolist()


def test_rows_of_a_table_need_not_have_the_same_names() -> None:
    table = Table.of_rows([{"a": 1, "b": "x"}, {"a": None, "c": 2.0}])
    assert np.isnan(table["a"][1]) and table["b"].tolist() == ["x", None] and table["c"][1] == 2
    with pytest.raises(KeyError, match="the columns are a, b, c"):
        table["d"]
