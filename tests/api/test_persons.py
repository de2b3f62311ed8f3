"""Persons as units of privacy, named by a column: what bounds them, who they are, and that nobody is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from test_data import Listed
from torch import nn

import fedzero
from fedzero.directions import Keys
from fedzero.directions.reference import gaussian
from fedzero.errors import FedzeroError
from fedzero.gatherings.private import central
from fedzero.ledger.store import ledger_in
from fedzero.model.updates import decode_update, unpack
from fedzero.oracles.poisson import drawn_persons
from fedzero.oracles.rows import OfPersons, persons_at_several
from fedzero.recipe.secret import keys_of
from fedzero.recipe.setup import prepare
from fedzero.tasks.partition import Dirichlet, DrawnShards, Iid, Shards
from fedzero.tasks.persons import numbered, split_persons

NAMES = ["Zaphod-11", "Trillian-7", "Marvin-42", "Ford-8", "Eddie-5", "Slarti-3"]
"""Of persons: such as are nowhere else in a file."""
P, C, MU = 4, 3.0, 1e-2
METHOD = {"kind": "decomfl", "rate": 1e-3, "directions": P, "radius": MU, "difference": "central"}


def table(seed: int, names: list[str], rows: int = 30) -> pandas.DataFrame:
    """Rows of these persons, of each a different number; the targets differ in size by person."""
    generator = np.random.default_rng(seed)
    x, who = generator.normal(size=(rows, 2)), np.sort(generator.integers(0, len(names), rows) ** 2 % len(names))
    who[: len(names)] = np.arange(len(names))
    y = x @ [1.0, -2.0] * 2.0 ** (who - 3)
    return pandas.DataFrame({"a": x[:, 0], "who": np.array(names)[who], "y": y, "b": x[:, 1]})


def squared(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output[:, 0], y, reduction="none") / 2


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 1, bias=False)


PRIVACY: dict[str, Any] = {"unit": "person", "person": "who", "sigma": 1.0, "clip": C, "population": 6}


def go(out: Path, clients: Any, **changes: Any) -> fedzero.Run:
    given: dict[str, Any] = {"loss": squared, "label": "y", "method": METHOD, "rounds": 2, "progress": False}
    given |= {"test": table(9, ["nobody", "else"]), "privacy": PRIVACY | {"probability": 1.0}}
    return fedzero.train(linear(), clients, out=out, **(given | changes))


def dictionary(frame: pandas.DataFrame) -> dict[str, Any]:
    return {"x": np.array(frame[["a", "b"]], np.float32), "y": np.array(frame["y"], np.float32), "who": frame["who"]}


def records(run: fedzero.Run) -> list[Any]:
    with ledger_in(run.folder) as ledger:
        return list(ledger.rounds())


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise."""
    monkeypatch.setattr(central, "rounded_gaussian", lambda deviation, count, entropy: np.zeros(count, np.int64))


def by_hand(frames: list[pandas.DataFrame], run: fedzero.Run) -> NDArray[Any]:
    """g = Σ_p v_p min(1, C/‖v_p‖) / n over persons p, with v_p = Σ (w·x − y)(z·x) over a person's rows: the slope of a
    squared error along every z, in float64."""
    method: Any = run.recipe.algorithm
    w = linear().weight.detach().double().numpy()[0]
    z = np.stack([gaussian(key, 0, 2) for key in method.direction_keys(keys_of(run.recipe, None), 0, 0, P)])
    total, clipped = np.zeros(P), set()
    for frame in frames:
        for _, rows in frame.groupby("who"):
            x, y = rows[["a", "b"]].to_numpy(), rows["y"].to_numpy()
            v = ((x @ w - y)[:, None] * (x @ z.T)).sum(0)
            total += v * min(1, C / np.linalg.norm(v))
            clipped.add(bool(np.linalg.norm(v) > C))
    assert clipped == {True, False}, "some persons are clipped, and some are not"
    return total / 6


def test_the_sum_of_a_persons_rows_is_what_is_bounded(tmp_path: Path, silent: None) -> None:
    """Frames, datasets with columns and dictionaries: the same step, which NumPy finds as well."""
    frames = [table(1, NAMES[:3]), table(2, NAMES[3:])]
    runs = [go(tmp_path / "frames", frames), go(tmp_path / "listed", [Listed(frame) for frame in frames])]
    plain = {"test": dictionary(table(9, ["nobody", "else"])), "label": None, "loss": None}
    plain |= {"objective": lambda model, batch: squared(model(batch["x"]), batch["y"])}
    runs.append(go(tmp_path / "plain", [dictionary(frame) for frame in frames], **plain))
    for run in runs:
        found = unpack(decode_update(records(run)[0].update).scalars)
        np.testing.assert_allclose(found, by_hand(frames, run), rtol=2e-3, atol=2e-3)


def test_nothing_of_the_column_is_kept_or_learned(tmp_path: Path) -> None:
    """Not a byte of a name in the folder; with other names the same facts; the module has two inputs, not three."""
    frames = [table(1, NAMES[:3]), table(2, NAMES[3:])]
    run = go(tmp_path / "run", frames)
    with ledger_in(run.folder) as ledger:
        facts = ledger.start().facts
    said = b"\0".join(path.read_bytes() for path in run.folder.rglob("*") if path.is_file())
    said += run.privacy.encode() + repr(run).encode() + run._repr_html_().encode()
    for name in NAMES:
        assert name.encode() not in said
    other = [frame.assign(who=frame["who"] + "-other") for frame in frames]
    with ledger_in(go(tmp_path / "other", other).folder) as ledger:
        assert ledger.start().facts == facts
    assert run.privacy.unit == "person" and run.privacy.q == 1.0


def test_coins_are_of_persons(tmp_path: Path) -> None:
    """Of 40 persons with 1 to 4 rows each is in 0.3 of 200 batches by a coin of its own, with all rows or none."""
    generator = np.random.default_rng(0)
    who = np.repeat(np.arange(40), generator.integers(1, 5, 40))
    shards = OfPersons(DrawnShards([np.arange(len(who))], 8, lambda rows: rows), numbered([who], "who"))
    ids, present = shards.persons(0), np.zeros((200, 40))
    for round in range(200):
        places = drawn_persons(generator.bytes(32), ids, 0.3)
        found, counts = np.unique(who[shards.taken(0, places)], return_counts=True)
        assert (counts == np.bincount(who)[found]).all(), "a person comes with all rows"
        present[round, found] = 1
    sizes, q, n = present.sum(1), 0.3, 40
    assert abs(sizes.mean() - n * q) < 5 * np.sqrt(n * q * (1 - q) / 200)
    assert abs(sizes.var() / (n * q * (1 - q)) - 1) < 5 * np.sqrt(2 / 200)
    assert (abs(present.mean(0) - q) < 5 * np.sqrt(q * (1 - q) / 200)).all()


def test_a_person_at_two_clients_is_refused_and_not_named(tmp_path: Path) -> None:
    frames = [table(1, NAMES[:4]), table(2, NAMES[2:])]
    with pytest.raises(FedzeroError, match="2 of 6 persons have rows at several clients") as refusal:
        go(tmp_path / "run", frames)
    assert not any(name in str(refusal.value) for name in NAMES)
    assert not (tmp_path / "run" / "ledger.db").exists()
    numbers, words = ([np.array([7, 7, 9]), np.array([9, 3])], [np.array(["7", "7", "9"]), np.array(["9", "3"])])
    rows = DrawnShards([np.arange(3), np.arange(2)], 8, lambda rows: rows)
    for ids in (numbers, words, [numbers[0], words[1]]):
        assert persons_at_several(OfPersons(rows, ids)).startswith("1 of 3 persons")
    assert persons_at_several(OfPersons(rows, [np.array([7, 7, 9]), np.array([8, 3])])) == ""


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(), Shards()])
def test_a_partition_deals_out_persons(partition: Any) -> None:
    generator = np.random.default_rng(3)
    who, labels = generator.integers(0, 50, 400), generator.integers(0, 3, 400)
    parts = split_persons(partition, labels, who, 5, Keys.of_seed(1))
    assert sorted(np.concatenate(list(parts)).tolist()) == list(range(400))
    owners = [set(who[part].tolist()) for part in parts]
    assert all(not (a & b) for i, a in enumerate(owners) for b in owners[:i]) and all(owners)
    with pytest.raises(FedzeroError, match="more clients"):
        split_persons(partition, labels, who, 51, Keys.of_seed(1))


def test_a_frame_is_dealt_out_by_person(tmp_path: Path) -> None:
    run = go(tmp_path / "run", pandas.concat([table(1, NAMES[:3]), table(2, NAMES[3:])]), partition="iid", count=3)
    assert run.summary.complete
    local: Any = run.environment.functions["Linear"]
    assert [len(np.unique(ids)) for ids in local.persons] == [2, 2, 2]
    assert sum(map(len, local.persons)) == 60


def test_numbers_and_words_of_the_same_person_are_one(tmp_path: Path) -> None:
    first, second = numbered([[7, 7, 9], [7.0, "9", "x"]], "who")
    assert first[0] == first[1] == second[0] and first[2] == second[1] and len({*first, *second}) == 3
    for odd, said in (([1, None], "1 of 2 rows"), ([float("nan")], "1 of 1"), (["", "a", pandas.NA], "2 of 3")):
        with pytest.raises(FedzeroError, match=f"{said}.* have nobody") as refusal:
            numbered([["Zaphod"], odd], "who")
        assert "client 1" in str(refusal.value) or "of client 1" in str(refusal.value)
    with pytest.raises(FedzeroError, match="values of type list"):
        numbered([[["a"]]], "who")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": PRIVACY | {"probability": 1.0, "person": "whom"}}, "no column privacy.person = 'whom'"),
        ({"label": "who"}, "is a feature or the label"),
        ({"features": ["a", "who"]}, "is a feature or the label"),
    ],
)
def test_what_names_no_person_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FedzeroError, match=said) as refusal:
        go(tmp_path / "run", [table(1, NAMES[:3]), table(2, NAMES[3:])], **changes)
    assert not any(name in str(refusal.value) for name in NAMES)


def test_data_without_columns_are_refused(tmp_path: Path) -> None:
    pair = (np.zeros((4, 2), np.float32), np.zeros(4, np.float32))
    with pytest.raises(FedzeroError, match="data without columns"):
        go(tmp_path / "run", [pair, pair], label=None, test=pair)
    private = {"privacy": PRIVACY | {"probability": 0.1}, "rounds": 1}
    with pytest.raises(FedzeroError, match="no such column"):
        fedzero.run("demo-private", set=private, out=tmp_path / "digits", progress=False)


def said(count: int, who: list[str]) -> list[dict[str, Any]]:
    """Rows of texts, with somebody who said each."""
    words = ("terrible mess", "great fun", "a terrible story", "so great")
    return [{"sentence": words[i % 4], "label": i % 2, "who": who[i % len(who)]} for i in range(count)]


def tuned(out: Path, folder: Path, **changes: Any) -> fedzero.Run:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    given: dict[str, Any] = {"prompt": "{sentence} It was", "answers": {0: "terrible", 1: "great"}}
    given |= {"method": METHOD | {"directions": 2}, "rounds": 2, "progress": False, "test": said(4, ["nobody"])}
    given |= {"privacy": PRIVACY | {"probability": 0.5}, "train": {"kind": "layers", "first": -1}}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return fedzero.finetune(model, tokenizer, out=out, **(given | changes))


def test_rows_of_texts_have_persons(tmp_path: Path, small_model: Any) -> None:
    """Of a program and of files: dealt out by person, of whom no file of the run has a name."""
    folder = small_model("smollm")
    rows = said(24, NAMES)
    run = tuned(tmp_path / "dealt", folder, clients=rows, count=3)
    clients = run.environment.functions["given:"].clients
    assert [len({row["who"] for row in client}) for client in clients] == [2, 2, 2]
    responses = {"answers": None, "completion": "{label} stars"}
    run = tuned(tmp_path / "given", folder, clients=[rows[::2], rows[1::2]], **responses)
    files = b"".join(path.read_bytes() for path in run.folder.rglob("*") if path.is_file())
    assert run.summary.complete and not any(name.encode() in files for name in NAMES)
    with pytest.raises(FedzeroError, match="6 of 6 persons have rows at several clients"):
        tuned(tmp_path / "both", folder, clients=[rows, rows])
    with pytest.raises(FedzeroError, match=r"is a field of task\.text, too"):
        tuned(tmp_path / "seen", folder, clients=[rows[::2], rows[1::2]], prompt="{who}: {sentence} It was")
    with pytest.raises(FedzeroError, match="24 of 24 rows of client 0 have nobody"):
        tuned(tmp_path / "none", folder, clients=rows, count=3, privacy=PRIVACY | {"probability": 0.5, "person": "id"})


def test_files_of_a_recipe_have_persons(tmp_path: Path, small_model: Any) -> None:
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, said(40, NAMES))))
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, said(4, ["nobody"]))))
    text = {"prompt": "{sentence} It was", "answers": {"0": "terrible", "1": "great"}}
    text |= {part: str(tmp_path / f"{part}.jsonl") for part in ("train", "test")}
    model = {"kind": "language", "model": str(small_model("smollm")), "train": {"kind": "layers", "first": -1}}
    table = {"name": "texts", "rounds": 2, "algorithm": METHOD | {"directions": 2}, "task": model | {"text": text}}
    table |= {"federation": {"clients": 3, "cohort": 3}, "privacy": PRIVACY | {"probability": 0.5}}
    run = fedzero.run(table, out=tmp_path / "run", progress=False)
    assert run.summary.complete and run.privacy.unit == "person"
    shards: Any = prepare(run.recipe, run.environment).problem.shards
    assert sorted(len(np.unique(shards.persons(client))) for client in range(3)) != [6, 6, 6]
    assert persons_at_several(shards) == ""
