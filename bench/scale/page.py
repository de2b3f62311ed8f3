"""What the page of a run costs: the share of a run's time that following it takes, and how fluid a long one is.

    python -m bench.scale.page follow      a run of 1,000 rounds, its page open in Chromium: processor time of both
    python -m bench.scale.page long        a ledger of 100,000 rounds: size of the page, input to paint in Chromium

Needs the extra `web`, playwright and Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from bench.table import show
from playwright.sync_api import sync_playwright

from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import End, Evaluation, Record, Round
from fedzero.ledger.store import Ledger
from fedzero.model.updates import Seeded, encode_update, pack
from fedzero.oracles import Metrics
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.report import write
from fedzero.results.history import history

ROUNDS, LONG, PASSES = 1_000, 100_000, 5
SETTINGS = ["task.batch=8", "algorithm.directions=5", "algorithm.rate=1e-3", "algorithm.optimizer={kind='sgd'}"]
SLOWEST = """() => new Promise((done) => {
  window.slow = [];
  new PerformanceObserver((list) => { for (const e of list.getEntries()) window.slow.push([e.name, e.duration]); })
    .observe({ type: "event", durationThreshold: 16 });
  done();
})"""


@contextmanager
def tab_of(address: str) -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1180, "height": 900})
        tab.goto(address)
        tab.wait_for_selector("#large svg")
        yield tab
        browser.close()


def processor_time(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def follow(folder: Path) -> None:
    """Two processes, as a user has them: the run, and `fedzero watch --web` with a browser on it."""
    command = [sys.executable, "-m", "fedzero"]
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    began = time.monotonic()
    run = subprocess.Popen(
        [*command, "run", "demo-cnn", "--rounds", str(ROUNDS), *options, "--out", str(folder / "run")],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    watch = subprocess.Popen(
        [*command, "watch", str(folder / "run"), "--web", "--web-at", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    try:
        address = (watch.stdout.readline() if watch.stdout else "").removeprefix("page: ").strip()
        while not (folder / "run" / LEDGER).exists():
            time.sleep(0.1)
        follower, runner = psutil.Process(watch.pid), psutil.Process(run.pid)
        with tab_of(address) as tab:
            first, first_run, since = processor_time(follower), processor_time(runner), time.monotonic()
            ran = first_run
            while run.poll() is None:
                ran = max(ran, processor_time(runner)) if runner.is_running() else ran
                time.sleep(0.5)
            took = time.monotonic() - since
            tab.wait_for_function(
                f"() => Number(document.querySelector('progress').value) === {ROUNDS}", timeout=90_000
            )
            spent = processor_time(follower) - first
    finally:
        watch.terminate()
        watch.wait()
        run.kill()
    show(
        f"Following a run of {ROUNDS:,} rounds",
        [
            ("run: wall-clock seconds while followed", f"{took:.1f}"),
            ("run: processor seconds in that time", f"{ran - first_run:.1f}"),
            ("following: processor seconds", f"{spent:.2f}"),
            ("share of the run's wall-clock time", f"{100 * spent / took:.2f} %"),
            ("share of the run's processor time", f"{100 * spent / (ran - first_run):.2f} %"),
            ("start of the watching process, before the run's page was open", f"{first:.1f} s processor time"),
            ("all of it, imports included", f"{time.monotonic() - began:.0f} s"),
        ],
        ("", "figure"),
    )


def long_ledger(folder: Path) -> None:
    """A ledger of recipe demo-cnn with rounds made up, as a run would have written it."""
    recipe = recipes.load("demo-cnn", rounds=LONG)
    start = prepare(recipe, Environment()).start
    folder.mkdir()
    ledger, rng, records = Ledger.create(folder / LEDGER, start), np.random.default_rng(0), list[Record]()
    for round in range(LONG):
        if round % recipe.evaluate_every == 0:
            records.append(Evaluation(round, bytes(16), metrics_of(round, rng)))
        scalars = rng.normal(0, 2, 20).astype(np.float32)
        cohort = tuple(map(int, rng.choice(20, 10, replace=False)))
        refused = ((cohort[0], "sent NaN"),) if round % 50 == 0 else ()
        update = encode_update(Seeded(round, pack(scalars)))
        loss = 2.3 * np.exp(-round / 2e4) + rng.normal(0, 0.1)
        records.append(Round(round, cohort, update, False, 1030, 1770, 210, float(loss), refused))
        if len(records) > 2000:
            ledger.append(records, round / 10)
            records = []
    ledger.append([*records, Evaluation(LONG, bytes(16), metrics_of(LONG, rng)), End(LONG, bytes(16))], LONG / 10)
    ledger.close()


def metrics_of(round: int, rng: np.random.Generator) -> Metrics:
    noise = float(rng.normal(0, 0.01))
    return Metrics(
        float(2.3 * np.exp(-round / 2e4)) + abs(noise), min(1.0, 0.9 - 0.8 * float(np.exp(-round / 2e4)) + noise)
    )


def long(folder: Path) -> None:
    long_ledger(folder / "run")
    began = time.perf_counter()
    found = history(folder / "run")
    read = time.perf_counter() - began
    began = time.perf_counter()
    file = write([found], folder / "page.html")
    made = time.perf_counter() - began
    with tab_of(file.as_uri()) as tab:
        tab.evaluate(SLOWEST)
        passes = [passed(tab) for _ in range(PASSES)]
    actions, slowest = passes[0][0], sorted(max(found, default=0.0) for _, found in passes)
    durations = sorted(d for _, found in passes for d in found) or [0.0]
    show(
        f"The page of a ledger of {LONG:,} rounds",
        [
            ("ledger read", f"{read:.1f} s"),
            ("page made", f"{made:.1f} s"),
            ("page", f"{file.stat().st_size / 1e6:.2f} MB"),
            ("inputs in Chromium (clicks, keys, pointer moves)", f"{PASSES} × {actions}"),
            ("input to paint, median of those of 16 ms or more", f"{durations[len(durations) // 2]:.0f} ms"),
            ("input to paint, 99th percentile of those", f"{durations[len(durations) * 99 // 100]:.0f} ms"),
            ("input to paint, slowest of the quietest pass", f"{slowest[0]:.0f} ms"),
            ("input to paint, slowest of all", f"{slowest[-1]:.0f} ms"),
            ("processes waiting for a processor meanwhile", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"),
        ],
        ("", "figure"),
    )


def passed(tab: Any) -> tuple[int, list[float]]:
    """Inputs of one pass, and milliseconds from input to paint of those that took 16 or more."""
    tab.evaluate("() => { window.slow = []; }")
    actions = interact(tab)
    tab.wait_for_timeout(500)
    return actions, [duration for _, duration in tab.evaluate("() => window.slow")]


def interact(tab: Any) -> int:
    """What a reader does: every metric on every axis, both scales, the cursor by pointer and by keys."""
    count = 0
    for label in tab.locator("#controls label").all() * 2:
        label.click()
        tab.wait_for_timeout(120)
        count += 1
    box = tab.locator("#large svg").bounding_box()
    for step in range(60):
        tab.mouse.move(box["x"] + 60 + step * (box["width"] - 100) / 60, box["y"] + 100)
        count += 1
    tab.locator("#large").focus()
    for _ in range(40):
        tab.keyboard.press("ArrowRight")
        count += 1
    return count


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        {"follow": follow, "long": long}[sys.argv[1] if len(sys.argv) > 1 else "long"](Path(place))
