"""Files that somebody else sent: names and sizes in them, and links beside them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from test_hostile_files import rewritten

from fedzero.errors import FedzeroError
from fedzero.ledger.records import Evaluation, Record, Start
from fedzero.model import files
from fedzero.model.checkpoint import load_base, save_tensors
from fedzero.recipe import recipe
from fedzero.recipe.environment import Environment
from fedzero.results import measures
from fedzero.results.history import history
from fedzero.runs import recorded, session

CODE = "=cmd|' /C calc'!A0"
NAMES = (CODE, "+1", "-1\n=2", "@x\x1b[31m\u202eRTL\x07", "</script><script>alert(1)</script>", "a" * 10**6, "plain")


@pytest.fixture
def run(tiny: Path, tmp_path: Path, run_recipe) -> Path:
    run_recipe(tiny, tmp_path / "run")
    return tmp_path / "run"


def measuring(names: Callable[[int], list[str]]) -> Callable[[Record], Record]:
    def change(record: Record) -> Record:
        if not isinstance(record, Evaluation):
            return record
        others = dict.fromkeys(names(record.round), 1.0)
        return msgspec.structs.replace(record, metrics=msgspec.structs.replace(record.metrics, others=others))

    return change


def test_names_of_measures_steer_no_spreadsheet_terminal_or_page(fedzero, run: Path, tmp_path: Path) -> None:
    rewritten(run, measuring(lambda round: list(NAMES)))
    said = fedzero("export", run).out
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", said)
    heading = next(csv.reader(io.StringIO(said)))
    assert not [name for name in heading if name.startswith(("=", "+", "-", "@")) or len(name) > 501]
    assert f"'{CODE}" in heading and "plain" in heading and len(heading) == 8 + len(NAMES)
    assert "plain" in json.loads(fedzero("export", run, "--json").out)[0]["others"]
    page = tmp_path / "page.html"
    assert fedzero("report", run, "--out", page).code == 0
    text = page.read_text()
    assert "<script>alert" not in text and len(text) < 10**6 and not re.search("[\x1b\x07\u202e]", text)


def test_there_are_not_too_many_measures(fedzero, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 names in each evaluation took a report more than a minute."""
    monkeypatch.setattr(measures, "MOST", 50)
    rewritten(run, measuring(lambda round: [f"{round} {i}" for i in range(40)]))
    assert len({name for point in history(run).points for name in point.others}) == 50
    assert len(next(csv.reader(io.StringIO(fedzero("export", run).out)))) == 8 + 50


def test_a_fact_of_megabytes_is_not_printed(fedzero, run: Path) -> None:
    def change(record: Record) -> Record:
        return (
            msgspec.structs.replace(record, facts={"x" * 10**6: "y" * 10**7}) if isinstance(record, Start) else record
        )

    rewritten(run, change)
    outcome = fedzero("verify", run)
    outcome.refused("this run was started with x")
    assert len(outcome.err) < 2_000


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("what", ["file", "nothing"])
def test_a_link_in_the_place_of_a_draft_is_not_followed(tmp_path: Path, private: bool, what: str) -> None:
    """A folder that is sent can have one for every number of a process."""
    mine = tmp_path / "mine"
    if what == "file":
        mine.write_text("mine")
        mine.chmod(0o640)
    folder = tmp_path / "sent"
    folder.mkdir()
    for name in (".x", ".model.safetensors"):
        (folder / f"{name}.{os.getpid()}.new").symlink_to(mine)
        (folder / f"{name}.{os.getpid()}.new.mode").symlink_to(mine)
    files.write(folder / "x", "theirs", durable=True, private=private)
    save_tensors({"x": torch.zeros(2)}, folder / "model.safetensors")
    assert (folder / "x").read_text() == "theirs" and not (folder / "x").is_symlink()
    assert ((folder / "x").stat().st_mode & 0o077 == 0) == private
    assert mine.exists() == (what == "file")
    if what == "file":
        assert mine.read_text() == "mine" and mine.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("order", ["[" * 10**5, '"x"', '{"x": 1}', "[1]", '["y"]', "[]", "9" * 5000])
def test_the_order_of_a_base(tmp_path: Path, order: str) -> None:
    save_tensors({"x": torch.zeros(2)}, tmp_path / "base.safetensors", {"order": order})
    with pytest.raises(FedzeroError) as caught:
        load_base(tmp_path / "base.safetensors", torch.device("cpu"))
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("dimension", [10**18, 10**30])
def test_a_size_beyond_all_machines(fedzero, run: Path, dimension: int) -> None:
    def change(record: Record) -> Record:
        if not isinstance(record, Start):
            return record
        table = msgspec.json.decode(record.recipe)
        table["task"]["dimension"] = dimension
        return msgspec.structs.replace(record, recipe=json.dumps(table).encode())

    rewritten(run, change)
    fedzero("verify", run).refused("dimension")
    with pytest.raises(FedzeroError):
        recorded.replayed(run, Environment(), None)


def test_a_patch_without_sha256_says_so(fedzero, tiny: Path, tmp_path: Path, quiet) -> None:
    save_tensors({"x": torch.linspace(-1, 1, 16)}, tmp_path / "base.safetensors")
    session.start(
        recipe.load(str(tiny), [f"base={tmp_path / 'base.safetensors'}"]), tmp_path / "run", Environment(), quiet
    )
    patch, base = tmp_path / "a.patch", tmp_path / "base.safetensors"
    assert fedzero("patch", "export", tmp_path / "run", "--out", patch).code == 0
    assert "64-bit" not in fedzero("patch", "apply", patch, "--base", base, "--out", tmp_path / "out.safetensors").out
    stripped = without_sha256(patch.read_bytes())
    patch.write_bytes(stripped)
    outcome = fedzero("patch", "apply", patch, "--base", base, "--out", tmp_path / "out.safetensors")
    assert outcome.code == 0 and "64-bit sum only" in outcome.out


def without_sha256(content: bytes) -> bytes:
    """A patch as 0.2.0 wrote it."""
    import hashlib

    body = msgspec.msgpack.decode(content[32:])
    kept = {name: value for name, value in body.items() if not name.endswith("_sha256")}
    assert len(kept) == len(body) - 2
    encoded = msgspec.msgpack.encode(kept)
    return hashlib.sha256(encoded).digest() + encoded
