"""The page over HTTP: who may look, what is sent while a ledger grows, is resumed and is replaced."""

from __future__ import annotations

import html
import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

import fedzero as fedzero_package
from fedzero.engines.remote.assignment import SiteAssignment
from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.web import following, serving
from fedzero.web.address import address_of, is_loopback
from fedzero.web.following import Following

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


def start(folder: Path, rounds: int = 6, stop_after: int | None = None, seed: int = 0, overwrite: bool = False) -> None:
    """A run, or the beginning of one: what watches it interrupts it."""
    table = {
        "name": "tiny", "rounds": rounds, "evaluate_every": 2, "algorithm": {"kind": "decomfl", "rate": 0.01},
        "task": {"kind": "quadratic", "dimension": 8}, "federation": {"clients": 3, "cohort": 2}, "seed": seed,
    }  # fmt: skip
    watch = Interrupting(stop_after)
    try:
        session.start(recipes.decode(table), folder, Environment(), watch, overwrite)
    except KeyboardInterrupt:
        assert stop_after is not None


class Interrupting(Silent):
    def __init__(self, after: int | None):
        self._after = after

    def round(self, record) -> None:
        if self._after is not None and record.round + 1 >= self._after:
            raise KeyboardInterrupt


class Client:
    """Requests to a served page."""

    def __init__(self, address: str):
        self.parts = urlsplit(address)

    def get(self, path: str = "/", host: str | None = None) -> tuple[int, str, http.client.HTTPMessage]:
        connection = self._asked(path, host)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers

    def events(self, path: str = "/events") -> Iterator[str]:
        """Pages as they are sent."""
        answer = self._asked(path).getresponse()
        assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
        end = time.monotonic() + 20
        for line in answer:
            assert time.monotonic() < end, "what was waited for never came"
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    def _asked(self, path: str, host: str | None = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.parts.port, timeout=20)
        connection.request("GET", path, headers={"Host": host} if host else {})
        return connection


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PAUSE", 0.05)
    monkeypatch.setattr(following, "SHARE", 1.0)


def progress(text: str) -> tuple[int, int]:
    done, planned = re.findall(r"round (\d+) of (\d+)", text)[0]
    return int(done), int(planned)


def test_the_page_follows_a_run_that_is_interrupted_resumed_and_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with serving(folder, "127.0.0.1:0") as address:
        client = Client(address)
        assert "has not begun yet" in client.get()[1]
        start(folder, rounds=6, stop_after=3)
        status, text, headers = client.get()
        assert (status, progress(text)) == (200, (3, 6))
        assert headers["cache-control"] == "no-store" and "connect-src 'self'" in html.unescape(text)
        events = client.events()
        first = next(events)
        assert progress(first) == (3, 6)
        assert "<style" not in first and first.count("<script") == 1  # its data alone
        session.resume(folder, Environment(), Silent())
        assert progress(last_of(events, 6)) == (6, 6)
        start(folder, rounds=8, stop_after=1, seed=5, overwrite=True)
        assert progress(last_of(events, 1)) == (1, 8)
    with pytest.raises(OSError):
        client.get()


def last_of(events: Iterator[str], done: int) -> str:
    return next(text for text in events if progress(text)[0] == done)


def test_the_last_state_is_sent_before_the_server_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    start(folder, rounds=6, stop_after=3)
    with serving(folder, "127.0.0.1:0") as address:
        events = Client(address).events()
        assert progress(next(events)) == (3, 6)
        monkeypatch.setattr(following, "PAUSE", 60.0)
        Client(address).get()
        session.resume(folder, Environment(), Silent())
    assert [progress(text) for text in events][-1] == (6, 6)


class Visiting(Silent):
    """Looks at the page in the middle of a run, at the address that was printed."""

    def __init__(self, printed: Callable[[], str]):
        self._printed, self.seen = printed, ""

    def round(self, record) -> None:
        if record.round == 3:
            self.seen = Client(self._printed().split("page: ")[1].split()[0]).get()[1]


def test_train_serves_its_page_while_it_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    watch = Visiting(lambda: capsys.readouterr().err)
    fedzero_package.train(
        torch.nn.Linear(3, 1), [(x[i::2], x[i::2, :1]) for i in range(2)], loss=torch.nn.functional.mse_loss, rounds=6,
        method=fedzero_package.DeComFL(rate=0.01), out=tmp_path / "run", progress=watch, web="127.0.0.1:0",
    )  # fmt: skip
    assert progress(watch.seen) == (4, 6)


def test_the_command_line_serves_the_page(fedzero: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    done = fedzero("run", tiny, "--out", tmp_path / "run", "--web-at", "127.0.0.1:0")
    assert done.code == 0 and re.search(r"page: http://127\.0\.0\.1:\d+/\n", done.err)
    fedzero("run", tiny, "--out", tmp_path / "other", "--web-at", "nonsense").refused("write it as 127.0.0.1:8747")


def test_sites_are_named_with_their_last_answers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start(folder)
    SiteAssignment("r", {"north": (0, 2), "<b>south</b>": (1,)}).write(folder)
    with serving(folder, "127.0.0.1:0") as address:
        text = Client(address).get()[1]
    assert '<td data-label="who">north</td><td data-label="clients" class="number">2</td>' in text
    assert "&lt;b&gt;south&lt;/b&gt;" in text and "client 0" not in text


def test_on_loopback_only_requests_that_name_it_are_answered(tmp_path: Path) -> None:
    start(tmp_path / "run")
    with serving(tmp_path / "run", "127.0.0.1:0") as address:
        client, port = Client(address), urlsplit(address).port
        assert "token" not in address
        assert client.get(host=f"localhost:{port}")[0] == 200
        for path in ("/", "/events"):
            status, text, _ = client.get(path, host=f"rebound.example:{port}")
            assert (status, text) == (403, "not allowed\n")
        assert client.get("/ledger.db")[0] == 404


def test_elsewhere_the_address_has_a_token(tmp_path: Path) -> None:
    start(tmp_path / "run")
    with serving(tmp_path / "run", "0.0.0.0:0") as address:
        client, token = Client(address), urlsplit(address).query
        assert len(token) > 32
        for path in ("/", "/events", "/?token=", "/?token=wrong", "/events?token=wr%C3%B6ng"):
            assert client.get(path)[0] == 403
        assert client.get(f"/?{token}")[0] == 200
        assert progress(next(client.events(f"/events?{token}"))) == (6, 6)
    with serving(tmp_path / "run", "0.0.0.0:0") as again:
        assert urlsplit(again).query != token


def test_a_taken_port_gives_the_next_one(tmp_path: Path) -> None:
    with serving(tmp_path, "127.0.0.1:18747") as first, serving(tmp_path, "127.0.0.1:18747") as second:
        assert urlsplit(first).port != urlsplit(second).port
    with pytest.raises(FedzeroError, match=r"write it as 127.0.0.1:8747"):
        address_of("8747")
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "x")] == [True] * 3 + [
        False
    ] * 3


def test_nothing_is_read_again_that_did_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    start(folder, rounds=40, stop_after=20)
    seen = Following(folder)
    assert seen.look(at_once=True) == 1
    reads: list[int] = []
    read = following.Ledger.entries

    def counting(ledger, *places):
        for entry in read(ledger, *places):
            reads.append(entry.seq)
            yield entry

    monkeypatch.setattr(following.Ledger, "entries", counting)
    assert seen.look(at_once=True) == 1 and not reads
    with pytest.raises(KeyboardInterrupt):
        session.resume(folder, Environment(), Interrupting(21))
    reads.clear()
    assert seen.look(at_once=True) == 2
    assert len(reads) == 2  # an evaluation and a round


def test_looks_are_as_rare_as_their_cost_demands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Following may take a hundredth of the time: after an update that took t, nothing is read for 100 t."""
    folder = tmp_path / "run"
    start(folder, rounds=10, stop_after=5)
    now, spent = [1000.0], [0.0]
    monkeypatch.setattr(following, "SHARE", 0.01)
    monkeypatch.setattr(following.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(following.time, "thread_time", lambda: spent[0])
    original = following.history_of

    def dear(*arguments):
        spent[0] += 0.2
        return original(*arguments)

    monkeypatch.setattr(following, "history_of", dear)
    seen = Following(folder)
    assert seen.look() == 1
    session.resume(folder, Environment(), Silent())
    now[0] += 19.9
    assert seen.look() == 1
    now[0] += 0.2
    assert seen.look() == 2


def test_a_folder_of_runs_is_followed_while_they_come(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    with serving(folder, "127.0.0.1:0", several=True) as address:
        client = Client(address)
        assert "has not begun yet" in client.get()[1]
        start(folder / "seed=0", seed=0)
        start(folder / "seed=1", rounds=6, stop_after=3, seed=1)
        sent = client.events()
        assert "seed=0" in client.get()[1] or "2 seeds" in next(sent)
        start(folder / "rate", rounds=4, seed=5)
        assert any("rounds 4" in html.unescape(page) for page in sent)
    with serving(folder, "127.0.0.1:0") as address:
        assert "What differs" in Client(address).get()[1], "a folder that holds runs is known as one"
