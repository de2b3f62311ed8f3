"""Several seeds and settings: one command, one call, a folder for each, means over seeds."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import fedzero
from fedzero.errors import FedzeroError
from fedzero.results.folders import runs_in
from fedzero.runs import grids

TABLE: dict[str, Any] = {
    "name": "bowl",
    "rounds": 4,
    "evaluate_every": 2,
    "algorithm": {"kind": "decomfl", "rate": 0.01, "directions": 3},
    "task": {"kind": "quadratic", "dimension": 8},
    "federation": {"clients": 3, "cohort": 2},
}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3,3e-3", ["1e-3", "3e-3"]),
        ("5", ["5"]),
        ("[1,2]", ["[1,2]"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ('"a,b"', ['"a,b"']),
        ('"a,b","c"', ['"a,b"', '"c"']),
        ("iid,shards", ["iid", "shards"]),
        ("true,false", ["true", "false"]),
        ("{kind='a',x=1}", ["{kind='a',x=1}"]),
        ("{kind='a',x=1},{kind='b'}", ["{kind='a',x=1}", "{kind='b'}"]),
        ("one, two", ["one, two"]),
        ("Is it {a}, or not?", ["Is it {a}, or not?"]),
        ("1,", ["1,"]),
        ("[1,2", ["[1,2"]),
    ],
)
def test_a_comma_separates_values_where_the_whole_is_no_value(text: str, values: list[str]) -> None:
    assert grids.pieces(text) == values


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()), min_size=2))
def test_numbers_survive_a_list_of_values(values: list[Any]) -> None:
    words = [str(value).lower() for value in values]
    assert grids.pieces(",".join(words)) == words


def test_seeds_are_numbers_and_ranges() -> None:
    assert grids.seeds_of("0..3,7,2") == [0, 1, 2, 3, 7] and grids.seeds_of("5") == [5]
    for odd in ("", "a", "3..1", "0..99999999", "1,,2", "-1"):
        with pytest.raises(FedzeroError, match="--seeds"):
            grids.seeds_of(odd)


def test_every_combination_has_a_name_of_its_own() -> None:
    settings = grids.combinations({"algorithm.rate": [1e-3, 0.003], "seed": [0, 1]})
    assert list(grids.named(settings)) == [
        "rate=0.001,seed=0",
        "rate=0.001,seed=1",
        "rate=0.003,seed=0",
        "rate=0.003,seed=1",
    ]
    assert list(grids.named(grids.combinations({"a.rate": [1], "b.rate": [2]}))) == ["a.rate=1,b.rate=2"]
    odd = list(grids.named([{"task.text": "../x y"}, {"task.text": "../x/y"}, {"task.text": "z" * 300}]))
    assert len(set(odd)) == 3 and all("/" not in name and len(name) <= grids.LONGEST for name in odd)
    with pytest.raises(FedzeroError, match="given twice"):
        grids.named(grids.combinations({"a": [1, 1]}))
    with pytest.raises(FedzeroError, match="too many"):
        grids.combinations({"a": range(1000), "b": range(1000)})


def test_a_sweep_of_a_recipe(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    runs = fedzero.sweep(TABLE, {"algorithm.rate": [0.01, 0.02]}, seeds=range(3), out=out)
    alone = fedzero.run(TABLE, set={"algorithm.rate": 0.02}, seed=1, out=tmp_path / "alone", progress=False)
    assert runs[4].summary.ledger_head == alone.summary.ledger_head
    assert runs[4].folder == out / "rate=0.02,seed=1"
    losses = np.array([run.history["loss"][-1] for run in runs]).reshape(2, 3)
    table = runs.mean("loss")
    assert table["algorithm.rate"].tolist() == [0.01, 0.02] and table["runs"].tolist() == [3, 3]
    assert table["loss"] == pytest.approx(losses.mean(1))
    assert table["error"] == pytest.approx(losses.std(1, ddof=1) / np.sqrt(3))
    assert runs.mean("loss", round=0)["loss"][0] == pytest.approx(runs.mean("loss", round=0)["loss"][1])
    assert runs.best("loss").history["loss"][-1] == losses.min()
    assert runs.table["seed"].tolist() == [0, 1, 2] * 2 and len(runs.table.to_pandas()) == 6
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    again = fedzero.sweep(TABLE, {"algorithm.rate": [0.01, 0.02]}, seeds=[0, 1, 2, 3], out=out)
    assert len(again) == 8 and all(path.stat().st_mtime_ns == at for path, at in before.items()), "those are kept"
    page = runs.report(tmp_path / "page.html").read_text("utf-8")
    assert "mean of 3 seeds" in page
    with pytest.raises(FedzeroError, match="another recipe"):
        fedzero.sweep(TABLE, {"algorithm.rate": [0.01]}, seeds=[0], rounds=6, out=out)


def test_a_sweep_that_was_killed_goes_on(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def dies(**run: Any) -> fedzero.Run:
        if run["seed"] == 1 and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise Killed
        return fedzero.run(TABLE, **run)

    with pytest.raises(Killed):
        fedzero.sweep(dies, seeds=[0, 1], out=tmp_path / "s", progress=False)
    runs = fedzero.sweep(dies, seeds=[0, 1], out=tmp_path / "s", progress=False)
    whole = fedzero.sweep(TABLE, seeds=[0, 1], out=tmp_path / "whole")
    assert [run.summary.ledger_head for run in runs] == [run.summary.ledger_head for run in whole]


def test_a_sweep_of_a_model_that_is_made_anew(tmp_path: Path) -> None:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    once = torch.nn.Linear(3, 2)

    def trained(model: torch.nn.Module, rate: float, **run: Any) -> fedzero.Run:
        method, data = fedzero.DeComFL(rate=rate, directions=2), [(x, (x[:, 0] > 0).long())]
        return fedzero.train(model, data, loss=F.cross_entropy, method=method, rounds=3, **run)

    def anew(rate: float, seed: int, **run: Any) -> fedzero.Run:
        torch.manual_seed(seed)
        return trained(torch.nn.Linear(3, 2), rate, seed=seed, **run)

    runs = fedzero.sweep(anew, {"rate": [0.1, 0.2]}, seeds=[0, 1], out=tmp_path / "anew", progress=False)
    assert runs.mean()["runs"].tolist() == [2, 2] and runs[0].model is not runs[1].model
    with pytest.raises(FedzeroError, match="make the model anew"):
        fedzero.sweep(
            lambda **given: trained(once, **given), {"rate": [0.1, 0.2]}, out=tmp_path / "once", progress=False
        )
    with pytest.raises(FedzeroError, match="return the run"):
        fedzero.sweep(lambda **given: None, {"rate": [0.1]}, out=tmp_path / "none")
    with pytest.raises(FedzeroError, match="'rate': give a list"):
        fedzero.sweep(anew, {"rate": 0.1}, out=tmp_path / "none")


def test_the_command(tmp_path: Path, tiny: Path, fedzero: Any) -> None:
    out = str(tmp_path / "s")
    arguments = [
        "run",
        str(tiny),
        "--seeds",
        "0..1",
        "--set",
        "algorithm.rate=0.01,0.02",
        "--rounds",
        "3",
        "--out",
        out,
    ]
    said = fedzero(*arguments, "--json")
    totals = json.loads(said.out.splitlines()[-1])
    assert list(totals) == [f"rate=0.0{rate},seed={seed}" for rate in (1, 2) for seed in (0, 1)]
    assert "rate 0.01, mean of 2 seeds" in " ".join(said.err.split())
    page = tmp_path / "page.html"
    assert "report: " in fedzero("report", out, "--out", str(page)).out and "2 seeds" in page.read_text("utf-8")
    assert [run.name for run in runs_in(tmp_path / "s")] == list(totals)


def test_folders_of_runs_are_found_and_sorted_by_number(tmp_path: Path) -> None:
    for name in ("rate=10", "rate=9", "deep/rate=1e-3"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "ledger.db").touch()
    assert [str(run.relative_to(tmp_path)) for run in runs_in(tmp_path)] == ["deep/rate=1e-3", "rate=9", "rate=10"]
    assert runs_in(tmp_path / "rate=9" / "ledger.db") == [tmp_path / "rate=9"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedzeroError, match="holds no run"):
        runs_in(tmp_path / "empty")


FILTER = """
const input = { value: "b 2" }, item = () => ({ hidden: false }), legend = [item(), item(), item()];
const rows = [2, 0, 1].map((row) => ({ ...item(), dataset: { row } }));
globalThis.document = { getElementById: (id) => (id === "filter" ? input : null),
  querySelectorAll: (of) => (of.startsWith(".legend") ? legend : rows) };
page.data = { curves: ["a (seed 2)", "B (seed 2)", "B (seed 1)"].map((name, index) => ({ name, index })) };
filterRuns();
console.log(JSON.stringify([[...page.filtered], legend.map((l) => l.hidden), rows.map((r) => r.hidden)]));
"""


def test_the_filter_of_a_page_keeps_runs_with_all_words(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("needs node")
    source = resources.files("fedzero.report").joinpath("explorer.js").read_text("utf-8")
    done = subprocess.run(["node", "-e", source + FILTER], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[0, 2], [True, False, True], [True, True, False]]


def test_a_page_of_many_runs_has_a_filter(tmp_path: Path) -> None:
    runs = fedzero.sweep(TABLE, {"algorithm.rate": [0.01, 0.02, 0.03, 0.04, 0.05]}, out=tmp_path, progress=False)
    assert 'id="filter"' in runs.report(tmp_path / "five.html").read_text("utf-8")
    assert 'id="filter"' not in runs[0].report(tmp_path / "one.html").read_text("utf-8")
