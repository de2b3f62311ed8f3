"""Data as people have it: frames, datasets with columns, folders of images, partitioners, samples kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import fedzero
from fedzero.api import tables
from fedzero.api.validation import split
from fedzero.errors import FedzeroError, Invalid
from fedzero.oracles.chunked import pieces
from fedzero.tasks.own import Own
from fedzero.tasks.samples import Dealt, samples

METHOD = {"kind": "decomfl", "rate": 0.1, "directions": 5}


def table(rows: int = 40, seed: int = 0) -> pandas.DataFrame:
    numbers = np.random.default_rng(seed).normal(size=(rows, 3))
    words = np.array(["ant", "bee", "cow"])[numbers.argmax(1)]
    return pandas.DataFrame({"a": numbers[:, 0], "b": numbers[:, 1], "kind": words, "c": numbers[:, 2]})


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


def go(out: Path, clients: Any, model: nn.Module | None = None, **changes: Any) -> fedzero.Run:
    given: dict[str, Any] = {"loss": F.cross_entropy, "method": METHOD, "rounds": 3, "progress": False}
    return fedzero.train(model or linear(), clients, out=out, **(given | changes))


class Listed:
    """A dataset with columns, as `datasets.Dataset` has them."""

    def __init__(self, frame: pandas.DataFrame, **columns: list[Any]):
        self.columns_ = {name: frame[name].tolist() for name in frame.columns} | columns
        self.column_names = list(self.columns_)

    def __len__(self) -> int:
        return len(self.columns_[self.column_names[0]])

    def __getitem__(self, key: Any) -> Any:
        return self.columns_[key] if isinstance(key, str) else {n: c[key] for n, c in self.columns_.items()}


class Halves:
    """A partitioner as Flower Datasets has them."""

    dataset: Any = None
    num_partitions = 2

    def load_partition(self, number: int) -> Any:
        return self.dataset[number::2]


def test_a_frame_a_dataset_with_columns_and_tensors_are_the_same_run(tmp_path: Path) -> None:
    frame = table()
    x = torch.tensor(frame[["a", "b", "c"]].to_numpy(), dtype=torch.float32)
    y = torch.tensor(frame["kind"].map({"ant": 0, "bee": 1, "cow": 2}).to_numpy())
    dealt = {"partition": "dirichlet", "count": 4}
    models = {
        go(tmp_path / str(number), data, name, **dealt, **named).summary.model_sha256
        for number, (data, name, named) in enumerate(
            [
                ((x, y), None, {}),
                (frame, None, {"label": "kind"}),
                (frame.astype({"kind": "category"}), None, {"label": "kind", "features": ["a", "b", "c"]}),
                (Listed(frame), None, {"label": "kind"}),
            ]
        )
    }
    assert len(models) == 1


def test_classes_have_the_same_numbers_everywhere() -> None:
    frame = table()
    parts = [frame[frame.kind != "ant"], frame[frame.kind == "ant"]]
    apart = {"test": frame[frame.kind == "cow"], "validation": [frame[frame.kind == "bee"]]}
    clients, found, _ = tables.opened(parts, apart, None, None, "kind")
    assert [set(y.tolist()) for _, y in clients] == [{1, 2}, {0}]
    assert set(found["test"][1].tolist()) == {2} and set(found["validation"][0][1].tolist()) == {1}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"label": "kid"}, "has no column 'kid': did you mean kind"),
        ({"label": "a"}, "'(ant|bee|cow)' in the column 'kind'.*encode the column"),
        ({"features": ["a"]}, "features are given and no label"),
        ({"features": "a", "label": "kind"}, "features = 'a' is not valid: give a list"),
        ({}, "name its column of targets, label = …"),
        ({"label": "kind", "validation": 1.5}, "validation = 1.5 is not valid"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, named: dict[str, Any], message: str) -> None:
    with pytest.raises(FedzeroError, match=message):
        go(tmp_path / "run", table(), **({"partition": "iid", "count": 2} | named))
    with pytest.raises(FedzeroError, match="nan among the labels"):
        go(tmp_path / "run", [table().assign(kind=[None, *["ant"] * 39])], label="kind")


def test_a_folder_of_images(tmp_path: Path) -> None:
    shades = {"dark": 40, "light": 200}
    for client, names in enumerate((("dark", "light"), ("light",))):
        for name in names:
            for number in range(4):
                place = tmp_path / str(client) / name / f"{number}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (6, 4), (shades[name] + number, 0, 0)).save(place)
    x, y = fedzero.images(tmp_path / "0")
    assert x.shape == (8, 3, 4, 6) and y.tolist() == [0] * 4 + [1] * 4
    assert float(x[5, 0, 0, 0]) == pytest.approx(201 / 255) and not x[:, 1:].any()
    assert fedzero.images(tmp_path / "0", size=2, mode="L")[0].shape == (8, 1, 2, 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 2))
    run = go(tmp_path / "run", [tmp_path / "0", str(tmp_path / "1")], model)
    assert run.summary.complete
    assert set(run.environment.functions["Sequential"].clients[1].columns[1].tolist()) == {1}  # as in the other folder
    Image.new("RGB", (5, 5)).save(tmp_path / "0" / "dark" / "9.png")
    with pytest.raises(FedzeroError, match=r"several sizes, 6 × 4 in .* and 5 × 5 in .*9\.png: scale them"):
        fedzero.images(tmp_path / "0")
    (tmp_path / "0" / "dark" / "9.png").write_bytes(b"no image")
    with pytest.raises(FedzeroError, match=r"9\.png is no image"):
        fedzero.images(tmp_path / "0")
    with pytest.raises(FedzeroError, match="is no folder"):
        go(tmp_path / "other", [tmp_path / "nowhere"])


def test_a_partitioner_of_somebody_else_deals_out(tmp_path: Path) -> None:
    frame, dealer = table(), Halves()
    whole = [frame[::2], frame[1::2]]
    expected = go(tmp_path / "a", whole, label="kind").summary.model_sha256
    assert go(tmp_path / "b", frame, label="kind", partition=Halves()).summary.model_sha256 == expected
    dealer.dataset = frame
    assert go(tmp_path / "c", dealer, label="kind").summary.model_sha256 == expected
    with pytest.raises(FedzeroError, match="the partitioner Halves has not dealt out its dataset: TypeError"):
        go(tmp_path / "d", Halves(), label="kind")


@pytest.mark.parametrize("dealt", [False, True])
def test_a_client_keeps_a_share_of_its_samples(dealt: bool) -> None:
    data = [samples((torch.arange(n)[:, None], torch.arange(n))) for n in (2, 10, 11)]
    clients: Any = Dealt(data[2], [np.arange(5), np.arange(5, 11)]) if dealt else data
    trained, held = split(clients, 0.3, 1)
    for whole, left, kept in zip(clients, trained, held, strict=True):
        parts = [each.batch(np.arange(len(each)), torch.device("cpu"))[1].tolist() for each in (whole, left, kept)]
        assert sorted(parts[1] + parts[2]) == parts[0] and len(parts[2]) == max(1, round(0.3 * len(parts[0])))
    again, other = split(clients, 0.3, 1), split(clients, 0.3, 2)
    assert [part.digest() for part in again[1]] == [part.digest() for part in held]
    assert [part.digest() for part in other[1]] != [part.digest() for part in held]
    with pytest.raises(Invalid, match="client 0 has 1 sample: validation"):
        split([samples((torch.zeros(1, 2), torch.zeros(1)))], 0.5, 0)


def test_evaluations_are_of_what_clients_keep_and_bad_numbers_in_it_are_found(tmp_path: Path) -> None:
    frame = table()
    run = go(tmp_path / "run", frame, label="kind", validation=0.25, partition="shards", count=4)
    task = run.environment.functions["Linear"]
    assert sum(map(len, task.test)) == 12 and sum(map(len, task.clients)) == 28
    model = linear()
    tested = torch.cat([part.batch(np.arange(len(part)), torch.device("cpu"))[0] for part in task.test])
    labels = torch.cat([part.batch(np.arange(len(part)), torch.device("cpu"))[1] for part in task.test])
    assert run.history["loss"][0] == pytest.approx(float(F.cross_entropy(model(tested), labels).detach()), rel=1e-5)
    frames: dict[str, Any] = {"validation": table(9, seed=1), "test": table(6, seed=2)}
    beside = go(tmp_path / "beside", frame, label="kind", partition="iid", count=4, **frames)
    assert beside.history["test loss"][-1] != beside.history["loss"][-1]
    site = fedzero.site_task(linear(), frame, loss=F.cross_entropy, label="kind", **(frames | {"validation": 0.25}))
    assert [sum(map(len, part)) for part in (site.clients, site.test, site.reported)] == [30, 10, 6]
    frame.loc[7, "b"] = np.nan
    for named in ({"partition": "iid", "count": 4}, {}):
        with pytest.raises(FedzeroError, match=r"client \d.*has nan in row 7, x, column 1"):
            go(tmp_path / "odd", frame if named else [frame], label="kind", validation=0.25, **named)


def test_some_samples_at_a_time_give_the_same_up_to_rounding(tmp_path: Path) -> None:
    runs = [
        go(
            tmp_path / f"{method['kind']}-{size}",
            table(),
            label="kind",
            partition="iid",
            count=2,
            batch=13,
            chunk=size,
            method=method,
        )
        for method in (METHOD, {"kind": "fedavg", "rate": 0.1})
        for size in (None, 4)
    ]
    for whole, cut in (runs[:2], runs[2:]):
        np.testing.assert_allclose(cut.history["loss"], whole.history["loss"], rtol=1e-5)
        torch.testing.assert_close(cut.model.state_dict(), whole.model.state_dict(), rtol=1e-4, atol=1e-5)
    assert "chunk" not in msgspec.to_builtins(runs[0].recipe.task)
    assert runs[1].recipe.task == Own(name="Linear", batch=13, chunk=4)


def test_a_site_has_a_frame_or_a_pair_and_keeps_a_share() -> None:
    frame = table()
    pair = torch.zeros(40, 3), torch.zeros(40, dtype=torch.int64)
    for data, named, clients in ((frame, {"label": "kind"}, 1), (pair, {}, 1), ([pair, pair], {}, 2)):
        task = fedzero.site_task(linear(), data, loss=F.cross_entropy, validation=0.25, **named)
        assert [len(part) for part in task.clients] == [30] * clients
        assert [len(part) for part in task.test] == [10] * clients


def test_pieces_of_a_batch() -> None:
    batch = {"x": torch.arange(5), "y": (torch.arange(5), torch.zeros(5, 2))}
    found = list(pieces(batch, 2))
    assert [len(piece["x"]) for piece in found] == [2, 2, 1]
    assert torch.equal(torch.cat([piece["y"][0] for piece in found]), batch["x"])
