"""`fedzero doctor`: what is missing for what."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedzero.cli import app, doctor


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("FEDZERO_DATA", raising=False)
    monkeypatch.setattr(doctor, "SPACE", 0)

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(app, ["doctor", "--json", *options])
        found = json.loads(done.stdout)
        return done.exit_code, {f"{each['topic']} {each['name']}": (each["state"], each["said"]) for each in found}

    return run


def test_a_machine_that_has_everything(look: Any) -> None:
    code, found = look()
    assert code == 0 and all(state != "wrong" for state, _ in found.values())
    assert found["packages torch"] == ("ok", metadata.version("torch")) and "folders cache" in found
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


def test_what_is_missing_old_or_broken_is_said(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["numpy>=99", "nothing-like-it>=1", "rich>=13", 'no-ray>=2; extra == "ray"', 'no-dev; extra == "dev"']
    needed += ['no-triton; sys_platform == "nowhere" and extra == "gpu"']
    monkeypatch.setattr(metadata, "requires", lambda name: needed)

    def broken(name: str) -> Any:
        raise ImportError("no such symbol")

    monkeypatch.setattr(doctor, "import_module", broken)
    code, found = look()
    assert code == 1
    assert found["packages numpy"][0] == "wrong" and "fedzero needs numpy>=99" in found["packages numpy"][1]
    assert found["packages nothing-like-it"] == ("wrong", "not installed: pip install 'nothing-like-it>=1'")
    assert found["packages rich"][1].endswith("cannot be imported: ImportError: no such symbol")
    said = "no-ray for workers on many cores and machines: pip install 'fedzero[ray]'"
    assert found["extras ray"] == ("absent", said)
    assert found["extras gpu"][0] == "ok" and not any("no-dev" in said for _, said in found.values())


def test_folders_and_ports(look: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "file" / "below"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(doctor, "PAGE", taken.getsockname()[1])
        code, found = look("--data", str(tmp_path / "nowhere"))
    assert code == 1 and found["folders data"][0] == "wrong"
    assert found["folders cache"][0] == "wrong" and "set FEDZERO_CACHE" in found["folders cache"][1]
    assert found["ports page"][0] == "absent" and found["ports loopback"][0] == "ok"
    monkeypatch.setattr(doctor, "SPACE", 1 << 60)
    assert look()[1]["folders temporary"][0] == "wrong"
