"""Between the supervisor and the server's job: who gets in, what is too long, and how each notices the other's end."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Client
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from fedzero.deploy.flare import bridge, epochs
from fedzero.deploy.flare import project as kits
from fedzero.deploy.flare.bridge import Answered, JobListener, connect, readable, receive, send
from fedzero.deploy.flare.epochs import Epoch, Epochs, WaitPolicy
from fedzero.engines.remote.transport import Pending
from fedzero.errors import FedzeroError
from fedzero.protocol.engine import Interrupted

HELLO = ("job", ("north", "south"), 17)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[JobListener]:
    made = JobListener(tmp_path / "bridge", tmp_path)
    yield made
    made.close()


def test_a_job_arrives_and_both_read_the_end_of_the_other(listener: JobListener, tmp_path: Path) -> None:
    assert (tmp_path / bridge.BRIDGE_FILE).stat().st_mode & 0o77 == 0
    with connect(tmp_path) as job:
        send(job, HELLO)
        supervisor, hello = listener.arrived.get(timeout=60)
        assert hello == HELLO
        send(job, (3, "north", True, b"x" * 100_000))
        assert receive(supervisor, Answered) == (3, "north", True, b"x" * 100_000)
        supervisor.close()
        with pytest.raises(EOFError):
            receive(job, Answered)
    with connect(tmp_path) as job:
        send(job, HELLO)
        supervisor, _ = listener.arrived.get(timeout=60)
    with pytest.raises(EOFError):
        receive(supervisor, Answered)


def test_a_caller_without_the_key_is_turned_away_and_a_silent_one_keeps_nobody_waiting(
    listener: JobListener, tmp_path: Path
) -> None:
    address, key = msgspec.json.decode((tmp_path / bridge.BRIDGE_FILE).read_bytes(), type=tuple[str, bytes])
    with Client(address), pytest.raises(AuthenticationError):  # the first one says nothing at all
        Client(address, authkey=key[::-1])
    with Client(address) as liar:  # does not mind that the other side fails its check
        liar.recv_bytes()
        liar.send_bytes(b"wrong")
        assert liar.recv_bytes() == b"#FAILURE#"
        with pytest.raises(EOFError):
            liar.recv_bytes()
    with Client(address), Client(address, authkey=key), connect(tmp_path) as job:
        send(job, HELLO)
        assert listener.arrived.get(timeout=60)[1] == HELLO
    assert listener.arrived.empty()


def test_a_message_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Pipe()
    monkeypatch.setattr(bridge, "LARGEST", 1000)
    send(one, (1, "north", True, bytes(900)))
    assert len(receive(other, Answered)[3]) == 900
    send(one, (1, "north", True, bytes(1001)))
    with pytest.raises(OSError, match="bad message length"):
        receive(other, Answered)


# ---- a link, with a job that this test plays


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Epochs]:
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    monkeypatch.setattr(epochs, "NOTICE_EVERY", 0.05)
    kits.provision(tmp_path / "project", ["north", "south"])
    found = Epochs(tmp_path / "project")
    found.server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "-m", str(tmp_path), "-s"])
    yield found
    found.close()


def begun(link: Epochs):
    supervisor, job = Pipe()
    link.epoch = Epoch(supervisor, frozenset({"north", "south"}), 0)
    return job


def test_answers_come_as_they_are_and_late_ones_do_not_count(link: Epochs) -> None:
    job = begun(link)
    asked = link.ask({"north": b"a", "south": b"b"}, 5.0, 100)
    send(job, (0, "north", True, b"ping"))
    send(job, (7, "north", True, b"of an earlier order"))
    send(job, (1, "south", True, b"B"))
    send(job, (1, "north", False, b"timeout"))
    site, answer = next(asked)
    assert receive(job, bridge.Orders) == (1, {"north": bytes(7) + b"\1a", "south": bytes(7) + b"\1b"}, 5.0, 100)
    assert (site, answer) == ("south", b"B")
    site, answer = next(asked)
    assert (site, str(answer)) == ("north", "did not answer in 5 s")
    assert list(link.epoch.silent) == ["north"]
    assert next(asked, None) is None
    # It is not asked again before it answers a ping.
    link.epoch.pinged = time.monotonic() - 60
    send(job, (0, "north", True, b"ping"))
    send(job, (2, "south", True, b"C"))
    found = dict(link.ask({"north": b"c", "south": b"c"}, 5.0, 100))
    assert str(found["north"]) == "does not answer"
    assert found["south"] == b"C"
    assert receive(job, bridge.Orders)[:2] == (0, {"north": b"ping"})
    assert receive(job, bridge.Orders)[:2] == (2, {"south": bytes(7) + b"\2c"})
    assert not link.epoch.silent


def test_the_end_of_the_job_ends_the_epoch(link: Epochs) -> None:
    begun(link).close()
    with pytest.raises(Interrupted, match="the server's job ended"):
        list(link.ask({"north": b""}, 600.0, 100))


def test_the_end_of_the_server_ends_the_epoch_while_the_job_is_silent(link: Epochs) -> None:
    job = begun(link)
    link.server.kill()
    with pytest.raises(Interrupted, match="the server's process ended"):
        list(link.ask({"north": b""}, 600.0, 100))
    assert not job.closed


def test_no_epoch_is_going_on(link: Epochs) -> None:
    with pytest.raises(FedzeroError, match="no epoch is going on"):
        next(link.ask({}, 1.0, 100))


def test_who_is_not_waited_for_answers_later(link: Epochs) -> None:
    job = begun(link)
    send(job, (1, "south", True, b"B"))
    ready = Event()
    answers = link.ask({"north": b"a", "south": b"b"}, 3600.0, 100, ready.is_set)
    assert next(answers) == ("south", b"B")
    ready.set()
    site, pending = next(answers)
    assert (site, type(pending)) == ("north", Pending)
    assert list(link.late()) == []
    send(job, (2, "south", True, b"C"))
    send(job, (1, "north", True, b"A"))
    send(job, (1, "north", True, b"again"))
    assert list(link.ask({"south": b"c"}, 5.0, 100)) == [("south", b"C")]
    assert list(link.late()) == [("north", b"A")]
    assert list(link.late()) == []
    # One whose process ends meanwhile is not waited for either, and is silent from then on.
    send(job, (3, "south", True, b"D"))
    supervisor = link.epoch.bridge
    list(link.ask({"north": b"d", "south": b"d"}, 3600.0, 100, lambda: not readable(supervisor, 0)))
    send(job, (3, "north", False, bridge.GONE))
    ((site, gone),) = link.late()
    assert (site, str(gone)) == ("north", "ended its process for the run")
    assert list(link.epoch.silent) == ["north"]


def test_a_site_whose_process_ends_again_and_again_is_left_out_by_name(link: Epochs, monkeypatch) -> None:
    """It answers once in every epoch, which gains it nothing."""
    said: list[str] = []
    link.policy = WaitPolicy(report=said.append)
    for asked in (1, 3, 5):
        job = begun(link)
        send(job, (asked, "north", True, b"ready"))
        send(job, (asked, "south", True, b"ready"))
        list(link.ask({"north": b"", "south": b""}, 5.0, 100))
        send(job, (asked + 1, "south", True, b"reply"))
        send(job, (asked + 1, "north", False, bridge.GONE))
        found = dict(link.ask({"north": b"", "south": b""}, 5.0, 100))
        assert found["south"] == b"reply", "the epoch goes on for the others"
    assert said == [
        "site north failed 2 times in a row (ended its process for the run): it is left out for 10 s",
        "site north failed 3 times in a row (ended its process for the run): it is left out for 20 s",
    ]
    monkeypatch.setattr(link, "_signs", lambda: dict.fromkeys(("north", "south"), time.time()))
    link._session = SimpleNamespace(close=lambda: None)
    assert link._gather() == {"south"}
    assert link.waiting() == []


def test_what_a_killed_supervisor_left_is_removed(tmp_path: Path, monkeypatch) -> None:
    """Its own folder for sockets, and no other that the file might name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, other = tmp_path / f"{epochs.SCRATCH}abc", tmp_path / "other"
    for folder in (left, other):
        folder.mkdir()
        (tmp_path / bridge.BRIDGE_FILE).write_bytes(msgspec.json.encode((str(folder / "bridge"), b"key")))
        epochs._remove_scratch(tmp_path)
    assert not left.exists()
    assert other.exists()


@pytest.mark.parametrize(
    ("half", "rest", "ready", "ends"),
    [(50, 100, 20, 100), (50, 10**6, 10, 150), (1, 29, 20, 29), (1, 10**6, 10, 30), (10**6, 10**6, 0, 300)],
)
def test_sites_are_waited_for_by_what_half_of_them_took(monkeypatch, half, rest, ready, ends) -> None:
    """0.1: 30 s for all of 20."""
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    from fedzero.deploy.flare import relay

    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 0.5

    monkeypatch.setattr(relay, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    job = relay.Relay.__new__(relay.Relay)
    job._targets, job._gone = {f"site-{i}": "" for i in range(20)}, {}
    comes = {site: half if i < 10 else rest for i, site in enumerate(job._targets)}
    job._call = lambda site, *_: (now[0] >= comes[site], b"")
    found = job._ready(SimpleNamespace(map=map), SimpleNamespace(triggered=False))
    assert len(found) == ready
    assert ends <= now[0] <= ends + 1


@pytest.mark.parametrize(
    "field, value, said",
    [
        ("minimum", 0, "minimum = 0 "),
        ("minimum", -1, "minimum = -1 "),
        ("minimum", 1.5, "minimum = 1.5 "),
        ("minimum", "2", "minimum = '2' "),
        ("minimum", True, "minimum = True "),
        ("patience", -1, "patience = -1 "),
        ("patience", math.nan, "patience = nan "),
        ("patience", math.inf, "patience = inf "),
        ("patience", None, "patience = None "),
        ("deadline", 0, "deadline = 0 "),
        ("deadline", -3.0, "deadline = -3.0 "),
        ("deadline", math.inf, "deadline = inf "),
        ("deadline", "60", "deadline = '60' "),
    ],
)
def test_how_long_to_wait_is_checked_where_it_is_said(field: str, value: object, said: str) -> None:
    with pytest.raises(FedzeroError, match=f"^{re.escape(said)}is not valid: "):
        WaitPolicy(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "field, value, becomes", [("patience", 0, 0.0), ("deadline", 3, 3.0), ("minimum", np.int64(2), 2)]
)
def test_how_long_to_wait_has_the_type_that_it_says(field: str, value: object, becomes: object) -> None:
    found = getattr(WaitPolicy(**{field: value}), field)  # type: ignore[arg-type]
    assert (found, type(found)) == (becomes, type(becomes))
