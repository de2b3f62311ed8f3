"""What `fedzero join` stores: checked before, shown and removed afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedzero.deploy.flare import launch
from fedzero.deploy.flare import project as kits
from fedzero.deploy.site.settings import Settings

pytest.importorskip("nvflare", reason="nvflare is not installed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    kits.provision(folder, ["north"])
    return kits.kit_of(folder, "north")


@pytest.fixture
def kit(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (made / "local" / kits.SETTINGS).unlink(missing_ok=True)
    return made


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Kits that came as far as to be joined with."""
    found: list[Path] = []
    monkeypatch.setattr(launch, "join", lambda kit, *_, **__: found.append(kit))
    return found


def stored(kit: Path) -> Path:
    return kit / "local" / kits.SETTINGS


WRONG = [
    (["--data", "/nowhere"], ["/nowhere", "no such folder"]),
    (["--model", "/nowhere/model"], ["--model", "/nowhere/model"]),
    (["--file", "rows=/nowhere/rows.csv"], ["--file rows", "/nowhere/rows.csv"]),
    (["--file", "rows=./rows.csv"], ["--file rows", "./rows.csv"]),
    (["--secret", "/nowhere"], ["secret", "/nowhere"]),
    (["--task", "nowhere:task"], ["nowhere"]),
    (["--device", "gpu"], ["device", "gpu"]),
    (["--only-method", "decomfll"], ["terms.methods", "did you mean decomfl?"]),
    (["--only-method", "decomfl", "--only-method", "fedkseedd"], ["did you mean fedkseed?"]),
    (["--only-task", "quadratc"], ["terms.tasks", "did you mean quadratic?"]),
    (["--approve", "abc"], ["approved"]),
    (["--forget", "datta"], ["--forget datta", "did you mean data?"]),
    (["--forget", "terms.method"], ["did you mean terms.methods?"]),
]


@pytest.mark.parametrize("before", [None, b'threads = 3\n[terms]\nmethods = ["mezo"]\n'])
@pytest.mark.parametrize(("options", "words"), WRONG)
def test_nothing_wrong_is_stored_and_the_rest_beside_it_is_not_either(
    kit: Path, fedzero, joined, tmp_path: Path, before, options, words
) -> None:
    if before is not None:
        stored(kit).write_bytes(before)
    fedzero("join", kit, "--threads", 2, *options).refused(*words)
    assert (stored(kit).read_bytes() if stored(kit).exists() else None) == before
    assert joined == []


def test_after_a_wrong_option_the_next_join_works(kit: Path, fedzero, joined) -> None:
    fedzero("join", kit, "--data", "/nowhere").refused("/nowhere")
    assert fedzero("join", kit).code == 0
    assert joined == [kit]


def test_what_is_stored_is_shown_and_removed(kit: Path, fedzero, joined, tmp_path: Path) -> None:
    assert "all settings are as by default" in fedzero("join", kit, "--show").out
    rows, other = tmp_path / "rows.csv", tmp_path / "other.csv"
    rows.touch()
    other.touch()
    files = ("--file", f"rows={rows}", "--file", f"a.b={other}")
    fedzero("join", kit, "--data", tmp_path, "--only-method", "decomfl", "--queries-per-day", 9, *files)
    shown = fedzero("join", kit, "--show").out
    for word in (str(stored(kit)), f'data = "{tmp_path}"', '"decomfl"', "queries_per_day = 9", str(rows)):
        assert word in shown
    assert joined == [kit], "--show does not join"
    fedzero("join", kit, "--forget", "only-method", "--forget", "files.a.b", "--show")
    found = Settings.read(stored(kit))
    assert (found.terms.methods, found.terms.queries_per_day, found.files) == ((), 9, {"rows": str(rows)})
    fedzero("join", kit, "--forget", "queries-per-day", "--forget", "file", "--show")
    assert Settings.read(stored(kit)) == Settings(data=str(tmp_path))
    fedzero("join", kit, "--forget", "all", "--threads", 2, "--show")
    assert Settings.read(stored(kit)) == Settings(threads=2)


def test_what_has_become_wrong_is_shown_named_and_removed(kit: Path, fedzero, joined, tmp_path: Path) -> None:
    """Also what 0.2 stored without a look."""
    stored(kit).write_text('data = "/nowhere"\n[terms]\nmethods = ["decomfll"]\n')
    fedzero("join", kit).refused("/nowhere", str(stored(kit)), "--forget")
    assert "decomfll" in fedzero("join", kit, "--show").out
    assert fedzero("join", kit, "--forget", "data", "--show").code == 0, "one after the other"
    fedzero("join", kit).refused("did you mean decomfl?", "--forget")
    assert fedzero("join", kit, "--forget", "terms.methods").code == 0
    assert joined == [kit]


def test_paths_are_stored_in_full_and_names_of_models_as_they_are(kit: Path, fedzero, tmp_path, monkeypatch) -> None:
    """The site's process works in another folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    fedzero("join", kit, "--model", "base", "--file", "tokens=lab/tokenizer", "--show")
    found = Settings.read(stored(kit))
    assert (found.model, found.files) == (str(tmp_path / "base"), {"tokens": "lab/tokenizer"})


# ---- where the server is

BAD_HOSTS = {
    "a_b.example": "letters, digits and hyphens",
    "fl example": "letters, digits and hyphens",
    "x" * 64 + ".org": "1 to 63 characters",
    ".".join(["x" * 60] * 5): "at most 253 characters",
    "fl..example": "1 to 63 characters",
    "-fl.example": "letters, digits and hyphens",
    "fl.example.": "1 to 63 characters",
    "fl\n.example": "letters, digits and hyphens",
    "ünï.example": "letters, digits and hyphens",
    "": "no name",
    "localhost:99999": "--port",
    "::1": "--port",
    "300.1.1.1": "four numbers",
    "1.2.3": "four numbers",
    "https://fl.example": "--port",
}


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_bad_host_is_refused_in_one_sentence_everywhere(
    tmp_path: Path, fedzero: Callable[..., Any], host: str, made: Path
) -> None:
    words = BAD_HOSTS[host], "the server cannot be at"
    outcome = fedzero("provision", tmp_path / "new", "--site", "north", "--host", host)
    outcome.refused(*words)
    assert len(outcome.err) < 700
    assert not (tmp_path / "new").exists()
    fedzero("join", elsewhere(made, tmp_path, f"{host}:8002")).refused(*words)
    (tmp_path / kits.PROJECT).write_bytes(msgspec.json.encode(kits.Project(host, 8002, ("north",))))
    for command in ("serve", "status"):
        fedzero(command, tmp_path).refused(*words)


@pytest.mark.parametrize("port", [0, 99999, -1])
def test_a_bad_port_is_refused_in_one_sentence(tmp_path: Path, fedzero, made: Path, port: int) -> None:
    fedzero("join", elsewhere(made, tmp_path, f"localhost:{port}")).refused("ports are numbers from 1 to 65535")
    (tmp_path / kits.PROJECT).write_bytes(msgspec.json.encode(kits.Project("localhost", port, ("north",))))
    fedzero("serve", tmp_path).refused("ports are numbers from 1 to 65535")


def test_a_host_that_cannot_be_found(tmp_path: Path, fedzero, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.invalid` is no domain, by RFC 2606. Such a project can be made: sites may know more names than this machine."""
    kits.provision(tmp_path, ["north"], host="fl.invalid")
    words = "does not find the server's host fl.invalid", "check the name"
    fedzero("join", kits.kit_of(tmp_path, "north")).refused(*words)
    fedzero("serve", tmp_path).refused(*words)


def elsewhere(kit: Path, folder: Path, target: str) -> Path:
    """The kit with another server in it."""
    copy = folder / kit.name
    shutil.copytree(kit, copy)
    start = copy / "startup" / "fed_client.json"
    found = json.loads(start.read_text())
    found["servers"][0]["service"]["target"] = target
    start.write_text(json.dumps(found))
    return copy
