"""SIGTERM, as `kill`, systemd and a container's end send it: all ends, and nothing is left in temporary folders."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from federation import Federation, refused_in, seconds_until, until

from conftest import ENDLESS


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


@pytest.mark.parametrize(
    "number, said, seconds",
    [
        (signal.SIGTERM, "left the federation", 5.0),
        (signal.SIGINT, "left the federation", 5.0),
        (signal.SIGKILL, "closed its connection", 8.0),
    ],
    ids=["SIGTERM", "SIGINT", "SIGKILL"],
)
def test_the_others_know_at_once_that_a_site_has_ended(
    made: Callable[..., Federation], number: signal.Signals, said: str, seconds: float
) -> None:
    """Not by the deadline, which is a minute. In the middle of a turn; and what is over was not said too early."""
    federation = made(rounds=ENDLESS, deadline=60)
    federation.pace(1.0)
    federation.begin()
    federation.everybody_counts()
    clients, done, ended = federation.clients("west"), len(federation.rounds()), time.monotonic()
    assert "is gone" not in federation.said()
    if number == signal.SIGKILL:
        for process in federation.processes(site="west"):
            process.send(number)
    else:
        federation.started[-1].send_signal(number)
    sentence = f"site west is gone ({said})"
    known = partial(until, 30, lambda: sentence in federation.said(), sentence)
    assert seconds_until(f"{number.name} at a site of three, the others know after", known, ended) < seconds
    since, before = len(federation.rounds()), time.monotonic()
    two_more = partial(federation.reaches, since + 2, 60)
    assert seconds_until("… and two more rounds take", two_more, before) < 20
    later = federation.rounds()[since:]
    assert refused_in(later) == clients
    assert all(record.update is not None for record in federation.rounds()[done:])
