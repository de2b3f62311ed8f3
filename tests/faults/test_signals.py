"""SIGTERM, as `kill`, systemd and a container's end send it: all ends, and nothing is left in temporary folders."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from federation import Federation, until


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("how", ["federate", "serve"])
def test_sigterm_leaves_nothing_behind(
    made: Callable[..., Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    federation = made(sites=["site-1", "site-2"], rounds=100_000)
    federation.pace(0.1)
    if how == "federate":
        federation.federate(federation.recipe, "--sites", "2")
    else:
        federation.serve()
        for site in federation.sites:
            federation.join(site)
    federation.reaches(2, 180)
    assert [path.name for path in temporary.glob("fedzero-*")]
    for process in federation.started:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in federation.started] == [130] * len(federation.started)
    until(30, lambda: not federation.processes(), "the end of all that it started")
    assert left_in(temporary) == []
    assert "resumes from the last completed round" in (federation.folder / "serve.txt").read_text()


def test_what_a_killed_supervisor_left_is_removed_by_the_next(
    made: Callable[..., Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    federation = made(sites=["site-1"])
    federation.serve()
    first = until(120, lambda: [path.name for path in temporary.glob("fedzero-*")], "its folder")
    until(120, lambda: "starting the server" in (federation.folder / "serve.txt").read_text(), "its server")
    assert federation.supervisor is not None
    federation.supervisor.kill()
    federation.supervisor.wait(10)
    assert [path.name for path in temporary.glob("fedzero-*")] == first
    until(30, lambda: not federation.processes(), "the end of its server")
    federation.serve()
    until(120, lambda: first != [path.name for path in temporary.glob("fedzero-*")], "another folder")
    until(120, lambda: len(list(temporary.glob("fedzero-*"))) == 1, "only one")
