"""Devices of four kinds, one at each place of a run over sockets.

PyTorch, onnxruntime: `fedzero_client` in a thread, folds by NumPy, losses by this library. core in C: `fedzero-client`
as a process that sees neither fedzero nor PyTorch, folds and losses by the compiled core. tab: the gateway's page in
Chromium, folds and losses by the core as WebAssembly.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fedzero_client import plan as device_plan
from fedzero_client.cli import say, take_part
from fedzero_client.graph import Graph, Term
from fedzero_client.session import Session, Ticket
from fedzero_client.store import Store
from fedzero_client.stream import F32
from fedzero_client.turn import Oracle, Rows
from numpy.typing import NDArray

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import Points
from fedzero.oracles.module import ModuleObjective
from fedzero.tasks.devices import Layers

CLIENT = Path(__file__).resolve().parents[2] / "clients" / "python"
TORCH, CORE, TAB, ONNX = "PyTorch", "core in C", "tab", "onnxruntime"
OVER_CORE = (
    "import sys; from fedzero_client import cli, core; "
    "sys.exit('the core is not compiled' if core.core is None else cli.main(sys.argv[1:]))"
)
PATIENCE = 120.0
"""Seconds, for a device to join and to leave."""


class ByTorch:
    """The perceptron of a plan as runs without devices evaluate it: points side by side, directions of fedzero."""

    whole = False

    def __init__(self, plan: device_plan.Plan):
        module = Layers(plan.task.widths)
        self._params, self._objective = Params.of_module(module), ModuleObjective(module, [])
        self._stream, self._asked = Domain(plan.method.distribution), count()

    def values(
        self, x: Sequence[F32], points: Sequence[Sequence[Term]], rows: NDArray[np.generic], y: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        tensors = zip(self._params.tensors.items(), x, strict=True)
        self._params.load({name: torch.from_numpy(flat).view(tensor.shape) for (name, tensor), flat in tensors})
        terms = [Terms.of([key for key, _ in p], [float(c) for _, c in p], self._stream) for p in points]
        batch = torch.from_numpy(rows), torch.from_numpy(y)
        return self._objective.losses(self._params, Points(next(self._asked), tuple(terms)), [batch])[0]


def compiled(folder: Path) -> Path:
    """A folder with `fedzero_client` over the core, as its wheel has it."""
    command = [sys.executable, "setup.py", "-q", "build", "-b", str(folder)]
    subprocess.run(command, cwd=CLIENT, check=True, capture_output=True)
    (found,) = folder.glob("lib.*")
    return found


class Players:
    """core: see `compiled`; graph: of `fedzero export-oracle`; browser: of playwright, in this thread."""

    def __init__(self, folder: Path, core: Path | None = None, graph: Path | None = None, browser: Any = None):
        self._folder, self._core, self._graph, self._browser = folder, core, graph, browser
        self._threads, self._processes = list[threading.Thread](), list[subprocess.Popen[bytes]]()
        self._tabs, self.failed = list[Any](), list[str]()

    def begin(self, kind: str, where: str, place: int, data: Rows) -> None:
        """where: the address of a ticket."""
        if kind == TAB:
            self._tab(where, self._csv(place, data))
        elif kind == CORE:
            self._process(where, place, data)
        else:
            self._thread(where, place, data, ByTorch if kind == TORCH else self._by_graph)

    def _by_graph(self, plan: device_plan.Plan) -> Oracle:
        assert self._graph is not None
        return Graph(self._graph.read_bytes(), plan, threads=1)

    def _thread(self, where: str, place: int, data: Rows, oracle: Callable[[device_plan.Plan], Oracle]) -> None:
        def play() -> None:
            try:
                with closing(Store(self._folder / f"device-{place}")) as store:
                    take_part(Session(Ticket.of(where), store, data, _quiet, oracle=oracle), "socket", _quiet)
            except BaseException as error:
                self.failed.append(f"place {place}: {error!r}")

        self._threads.append(threading.Thread(target=play, daemon=True))
        self._threads[-1].start()

    def _process(self, where: str, place: int, data: Rows) -> None:
        file = self._folder / f"{place}.npz"
        np.savez(file, x=data.x, y=data.y)
        environment = {"PYTHONPATH": str(self._core), "PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1"}
        rest = ["join", where, "--data", str(file), "--folder", str(self._folder / f"device-{place}")]
        command = [sys.executable, "-c", OVER_CORE, *rest]
        self._processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))

    def _csv(self, place: int, data: Rows) -> Path:
        file = self._folder / f"{place}.csv"
        np.savetxt(file, np.column_stack([data.x, data.y]), fmt="%d", delimiter=",")
        return file

    def _tab(self, where: str, csv: Path) -> None:
        page = self._browser.new_context().new_page()  # a context is a browser of its own: other keys, another place
        page.on("pageerror", lambda error: self.failed.append(f"tab: {error}"))
        page.on("console", lambda m: self.failed.append(f"tab: {m.text}") if m.type == "error" else None)
        page.goto(where)
        page.get_by_role("button", name="Take part").click()
        page.locator("#data").wait_for()
        page.locator("#way-file").click()
        page.set_input_files("#csv", csv)
        page.get_by_role("button", name="Start training").click()
        self._tabs.append(page)

    def joined(self) -> None:
        """Wait until every device has heard of the end."""
        for thread in self._threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self.failed.append("a device of a thread does not end")
        for process in self._processes:
            if process.wait(PATIENCE):
                self.failed.append(f"a process ends with {process.returncode}")
        for page in self._tabs:
            text, end = "", time.monotonic() + PATIENCE
            while "The run has ended" not in (text := str(page.locator("#state").text_content())):
                if time.monotonic() > end:
                    self.failed.append(f"a tab says: {text}")
                    break
                page.wait_for_timeout(50)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for page in self._tabs:
            page.context.close()


def _quiet(text: str) -> None:
    if "refused" in text:
        say(text)
