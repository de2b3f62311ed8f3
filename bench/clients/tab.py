"""Points in a tab of Chromium beside PyTorch's rank-one evaluation, in the same run.

    PYTHONPATH=src:. python -m bench.clients.tab [repetitions]

40 points of rank one (20 central pairs) of the demo's perceptron on 320 rows, by the page's own modules in a worker,
rows gathered and keys set included. The clock, since a tab has no other: the ways take turns, and of each the least of
all runs counts. Then the bytes of the page.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from bench.clients.core import KEYS, NUMBERS, ROWS, X, Y, start
from bench.table import show
from playwright.sync_api import sync_playwright

from fedzero.directions import Domain, Terms
from fedzero.engines.devices.join_page import page
from fedzero.model.params import Params
from fedzero.oracles.contract import Points
from fedzero.oracles.module import ModuleObjective
from fedzero.tasks.models import Perceptron

HERE = Path(__file__).resolve().parent
WIDTHS, REPEATS, ORIGIN = (784, 200, 10), 60, "http://localhost:9"


def plan() -> dict[str, Any]:
    """As the page's plan.js reads it."""
    shapes = [list(shape) for i, o in pairwise(WIDTHS) for shape in ((o, i), (o,))]
    tensors = [{"shape": s, "scale": 1, "label": [], "count": s[0] * (s[1] if len(s) > 1 else 1)} for s in shapes]
    method = {"distribution": 4, "rule": 0, "rate": 0.1, "hypers": [], "radius": 1e-3, "directions": 20, "steps": 1}
    method |= {"difference": 2, "clip": 0, "batch": ROWS, "samples": 1}
    return {"root": [0] * 32, "tensors": tensors, "method": method, "task": {"widths": list(WIDTHS)}}


class OfTab:
    """A tab whose files come from the tree; points(): a worker's milliseconds."""

    def __init__(self, browser: Any):
        self._tab = browser.new_page()
        self._tab.route(f"{ORIGIN}/**", self._file)
        self._tab.goto(f"{ORIGIN}/empty.html")

    def _file(self, route: Any) -> None:
        name = route.request.url.rsplit("/", 1)[1]
        if name == "empty.html":
            route.fulfill(body="", content_type="text/html")
        elif name == "tab.js":
            text = (HERE / "tab.js").read_text().replace("PAGE/", "./page/")
            route.fulfill(body=text, content_type="text/javascript")
        else:
            route.fulfill(body=page().files[name].content, content_type=page().files[name].kind)

    def points(self) -> dict[str, float]:
        script = (
            "([plan, repeats]) => new Promise((ok, no) => {"
            "plan.root = Uint8Array.from(plan.root);"
            "for (const each of plan.tensors) each.label = new Uint8Array();"
            "const worker = new Worker('./tab.js', { type: 'module' });"
            "worker.onmessage = ({ data }) => { worker.terminate(); ok(data); };"
            "worker.onerror = (e) => no(new Error(e.message)); worker.postMessage({ plan, repeats }); })"
        )
        found: dict[str, float] = self._tab.evaluate(script, [plan(), REPEATS])
        return found


def of_torch() -> dict[str, float]:
    module = Perceptron()
    module.load_state_dict({name: torch.from_numpy(x) for name, x in start().items()})
    params, objective = Params.of_module(module), ModuleObjective(module, [])
    asked = Points("bench", tuple(Terms.of([k], [c], Domain.RANK1) for k, c in zip(KEYS, NUMBERS, strict=True)))
    batch = torch.from_numpy(X), torch.from_numpy(Y).long()
    times, losses = [], None
    for _ in range(5 + REPEATS):
        began = time.perf_counter()
        losses = objective.losses(params, asked, [batch])
        times.append(1e3 * (time.perf_counter() - began))
    assert losses is not None
    return {"points": min(times[5:]), "loss": float(losses[0, 0])}


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"])
        tab = OfTab(browser)
        for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
            for name, measured in (("PyTorch", of_torch), ("a tab of Chromium", tab.points)):
                now = measured()
                found[name] = {what: min(value, found.get(name, now)[what]) for what, value in now.items()}
        version = browser.version
        browser.close()
    base = found["PyTorch"]["points"]
    rows = [(n, f"{f['points']:.1f}", f"{base / f['points']:.2f}", f"{f['loss']:.6f}") for n, f in found.items()]
    show(f"40 points of rank one, {ROWS} rows, 784-200-10, Chromium {version}", rows, ("", "ms", "× torch", "loss"))
    files = page().files
    sizes = [(name, f"{len(file.content):,}", f"{len(file.packed):,}") for name, file in files.items()]
    total = ("all", *(f"{sum(len(getattr(f, kind)) for f in files.values()):,}" for kind in ("content", "packed")))
    show("Bytes of the page", [*sizes, total], ("", "as they are", "as they are sent"))


if __name__ == "__main__":
    main()
