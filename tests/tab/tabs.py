"""Tabs of a browser as devices of a small run, a network between them and the gateway that can fail, and the page's
modules without a browser."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fedzero_client import plan as device_plan

from devices.fleet import Here, data_of, ticket_of
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices.join_page import FOLDER
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.signing import Signer
from fedzero.engines.devices.ticket import address
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.view import RunView
from fedzero.runs import session
from fedzero.runs.progress import Silent

HERE = Path(__file__).parent
PATIENCE = 30_000
"""Milliseconds."""


def wait_for(done: Callable[[], Any], what: str = "what was waited for") -> Any:
    end = time.monotonic() + PATIENCE / 1000
    while not (found := done()):
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.02)
    return found


# ---- the page's modules


def needs_node() -> str:
    program = shutil.which("node")
    if program is None:
        pytest.skip("needs node")
    return program


def modules(folder: Path) -> Path:
    """A copy of the page in which node takes files for modules."""
    target = folder / "page"
    if not target.exists():
        shutil.copytree(FOLDER, target)
        (target / "package.json").write_text('{"type": "module"}')
    return target


class Node:
    """asked.mjs as a process."""

    def __init__(self, folder: Path):
        command = [needs_node(), str(HERE / "asked.mjs"), str(modules(folder))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, ask: str, **how: Any) -> Any:
        """What it found; raises `ValueError` with the name of the error and its sentence."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"ask": ask, **how}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise ValueError(f"{answer['error']}: {answer['text']}")
        return answer.get("found")

    def close(self) -> None:
        self._process.communicate()


# ---- data of places


def csv_of(folder: Path, place: int) -> Path:
    """The rows of `data_of`; nine digits say which float32 is meant."""
    x, y = data_of(place)
    path = folder / f"{place}.csv"
    path.write_text("".join(",".join(f"{v:.9g}" for v in row) + f",{label}\n" for row, label in zip(x, y, strict=True)))
    return path


class Turning:
    """The turns of a tab's place, by node."""

    def __init__(self, node: Node, plan: bytes, rates: plans.Rates, csv: Path, place: int):
        self._node, self._plan, self._rates, self._csv, self._place = node, plan, rates, csv, place

    def reply(self, model: Any, round: int, exchange: int, rate: float) -> bytes:
        state, pairs = model.to_bytes().hex(), self._rates.of([round]).hex()
        how = {"plan": self._plan.hex(), "csv": str(self._csv), "state": state, "round": round, "pairs": pairs}
        return bytes.fromhex(self._node.ask("reply", place=self._place, **how))


def with_tabs(node: Node, folder: Path, tabs: tuple[int, ...]) -> Callable[[RunView], Here]:
    """The run without a gateway in which these places are tabs; the others are fedzero-client."""

    def here(run: RunView) -> Here:
        found = Here(run)
        data = plans.encode(plans.plan_of(run.built()[0]))
        assert device_plan.read(data) == found.plan
        for place in tabs:
            found.workers[place] = Turning(node, data, found.rates, csv_of(folder, place), place)  # type: ignore[assignment]
        return found

    return here


# ---- a network that fails


class Network:
    """A proxy of the gateway. closed: connections are cut and refused; mute: what devices send does not arrive; deaf:
    it is mute from the next bytes of the gateway on."""

    def __init__(self, to: int):
        self._to, self.closed, self.mute, self.deaf = to, False, False, False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self.closed = True
        for pair in self._pairs:
            for each in pair:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        self.cut()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                inner, _ = self._listening.accept()
                if self.closed:
                    inner.close()
                    continue
                outer = socket.create_connection(("127.0.0.1", self._to))
                self._pairs.append((inner, outer))
                for source, sink, up in ((inner, outer, True), (outer, inner, False)):
                    threading.Thread(target=self._pass, args=(source, sink, up), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.mute |= self.deaf and not up
                while up and self.mute and not self.closed:
                    time.sleep(0.01)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


# ---- a run and its tabs


class Run:
    """A run in a thread of its own, with a ticket."""

    def __init__(self, recipe: Recipe, folder: Path, uses: int = 9):
        self.folder = folder
        self.registry: Registry
        self.registry, self._ticket = ticket_of(folder, uses)
        self.failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._go, args=(recipe,), daemon=True)
        self._thread.start()
        wait_for(lambda: self.registry.url or self.failed, "the gateway")
        assert not self.failed, self.failed
        self.port = int(self.registry.url.rpartition(":")[2])

    def _go(self, recipe: Recipe) -> None:
        try:
            session.start(recipe, self.folder, Environment(), Silent())
        except BaseException as error:
            self.failed.append(error)

    def ticket(self, port: int | None = None) -> str:
        url = f"http://127.0.0.1:{port or self.port}"
        return address(url, self.registry.run, self._ticket, Signer(self.registry.keys).fingerprint)

    def joined(self) -> None:
        """Wait for the end."""
        self._thread.join(PATIENCE / 1000)
        assert not self._thread.is_alive() and not self.failed, self.failed

    @property
    def places(self) -> int:
        return len(self.registry.places())


@contextmanager
def running(recipe: Recipe, folder: Path) -> Iterator[Run]:
    run = Run(recipe, folder)
    try:
        yield run
    finally:
        run.registry.close()


class Tab:
    """A tab in a browser of its own (a context), unless it is given one. Errors on its console fail the test."""

    def __init__(self, browser: Any, context: Any = None, width: int = 1180, scheme: str = "light"):
        how = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "accept_downloads": True}
        self.context = context or browser.new_context(**how)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.allowed: tuple[str, ...] = ()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)

    def open(self, where: str) -> Tab:
        self.page.goto(where)
        return self

    def take_part(self) -> Tab:
        self.page.get_by_role("button", name="Take part").click()
        self.page.locator("#data").wait_for(timeout=PATIENCE)
        return self

    def give(self, csv: Path) -> Tab:
        if self.page.locator("#way-file").is_visible():
            self.page.locator("#way-file").click()
        self.page.set_input_files("#csv", csv)
        return self

    def start(self) -> Tab:
        self.page.get_by_role("button", name="Start training").click()
        return self

    def text(self, id: str) -> str:
        return str(self.page.locator(f"#{id}").text_content())

    def until(self, id: str, words: str) -> Tab:
        wait_for(lambda: self.page.wait_for_timeout(20) or words in self.text(id), f"{words!r} in #{id}")
        return self

    def place(self) -> int:
        return int(self.text("who").split()[1])

    def quiet(self) -> None:
        """Nothing was said on the console, but for what is allowed."""
        said = [text for text in self.errors if not any(each in text for each in self.allowed)]
        assert said == [], said
