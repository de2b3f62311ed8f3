"""Four kinds of clients in one run, beside the same run by PyTorch alone.

    PYTHONPATH=.:src:clients/python python -m bench.devices.kinds --seeds 0..2 --rounds 300

Eight devices with 200 digits each, all asked in every round: two by PyTorch, two by the core in C, two tabs of Chromium
and two by onnxruntime; then eight by PyTorch with the same rows at the same places and the same seed. Every reply has
the digest of the model that it was computed on, and the ledger names the replies whose digest was not the server's.
Of both runs: `fedzero verify`, `replay`, `patch export`, `patch apply`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.devices.players import CORE, ONNX, TAB, TORCH, Players, compiled
from bench.table import show
from fedzero_client.turn import Rows

from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.signing import Signer
from fedzero.engines.devices.ticket import address
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import metrics_of
from fedzero.ledger.store import Ledger
from fedzero.model.checkpoint import save_model
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs import recorded, session
from fedzero.runs.oracles import export_recipe
from fedzero.runs.patches import apply_patch, export_patch
from fedzero.runs.progress import Silent
from fedzero.tasks import images

KINDS = (TORCH, TORCH, CORE, CORE, TAB, TAB, ONNX, ONNX)
"""By place."""
ROWS, WIDTHS, BATCH = 200, (784, 32, 10), 32
METHOD = {"kind": "decomfl", "rate": 0.01, "directions": 10, "radius": 1e-3, "distribution": "rank1"}
METHOD |= {"optimizer": {"kind": "momentum"}}
PATIENCE = 60.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def recipe_of(seed: int, rounds: int) -> Recipe:
    task = {"kind": "devices", "widths": list(WIDTHS), "test": "mnist", "mean": 33.3, "deviation": 78.6, "batch": BATCH}
    engine = {"kind": "devices", "listen": "127.0.0.1:0", "least": len(KINDS), "merge": False}
    table = {"name": "kinds", "rounds": rounds, "seed": seed, "evaluate_every": rounds, "algorithm": METHOD}
    places = {"clients": len(KINDS), "cohort": len(KINDS)}
    return recipes.decode(table | {"task": task, "engine": engine, "federation": places})


def rows_of(seed: int) -> list[Rows]:
    """By place: digits of the training part, none twice."""
    found = images.load_subset("mnist")
    drawn = np.random.default_rng(seed).permutation(len(found.train_y)).reshape(-1)
    x, y = found.train_x.reshape(len(drawn), -1), found.train_y.astype(np.int64)
    return [Rows(x[own], y[own]) for own in (drawn[p * ROWS : (p + 1) * ROWS] for p in range(len(KINDS)))]


@dataclass(frozen=True)
class Played:
    """refused: replies, which one with another digest than the server's would be; replies: that counted."""

    accuracy: float
    loss: float
    rounds: int
    replies: int
    refused: int
    seconds: float


def play(recipe: Recipe, folder: Path, kinds: Sequence[str], players: Players) -> Played:
    """A run into a new folder by devices of these kinds, and what is checked of it."""
    began, failed = time.monotonic(), players.failed
    registry = Registry(folder)

    def run() -> None:
        try:
            session.start(recipe, folder, Environment(), Silent())
        except BaseException as error:
            failed.append(f"the run: {error!r}")

    thread = threading.Thread(target=run, daemon=True)
    with closing(registry):
        ticket = registry.ticket(len(kinds))
        thread.start()
        _wait(lambda: registry.url, failed)
        where = address(registry.url, registry.run, ticket, Signer(registry.keys).fingerprint)
        for place, (kind, rows) in enumerate(zip(kinds, rows_of(recipe.seed), strict=True)):
            players.begin(kind, where, place, rows)
            _wait(lambda place=place: len(registry.places()) > place, failed)
        while thread.is_alive() and not failed:
            thread.join(0.5)
        players.joined()
        thread.join(PATIENCE)
    if failed:
        raise SystemExit("; ".join(failed))
    return checked(folder, time.monotonic() - began)


def _wait(done: Any, failed: list[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        if failed or time.monotonic() > end:
            raise SystemExit("; ".join(failed) or "a device did not join")
        time.sleep(0.05)


def checked(folder: Path, seconds: float) -> Played:
    """Raises where the ledger is not intact, or the patched first model is not the last one."""
    here = Environment()
    view = recorded.verified(folder, here)
    first, last = (recorded.replayed(folder, here, upto).state.params for upto in (0, None))
    save_model(first, folder / "first.safetensors")
    (folder / "kinds.patch").write_bytes(export_patch(folder, here))
    patched = apply_patch(folder / "kinds.patch", str(folder / "first.safetensors"), folder / "patched.safetensors")
    final = view.evaluations[-1]
    if not patched.matches(final.identity) or not last.matches(final.identity):
        raise SystemExit("the replayed or patched model is not that of the run")
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        records = list(ledger.rounds())
    refused = sum(len(r.refused) for r in records)
    counted = sum(len(r.cohort) for r in records) - refused
    found = metrics_of(final)
    return Played(found["accuracy"], found["loss"], len(records), counted, refused, seconds)


def four_kinds(recipe: Recipe, folder: Path, core: Path, browser: Any) -> Played:
    graph = folder / "perceptron.onnx"
    export_recipe(recipe, Environment(), graph)
    return _played(recipe, folder / "kinds", KINDS, Players(folder, core, graph, browser))


def pytorch_alone(recipe: Recipe, folder: Path) -> Played:
    return _played(recipe, folder / "alone", [TORCH] * len(KINDS), Players(folder / "devices"))


def _played(recipe: Recipe, folder: Path, kinds: Sequence[str], players: Players) -> Played:
    try:
        return play(recipe, folder, kinds, players)
    finally:
        players.close()


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def lines_of(seed: int, both: tuple[Played, Played]) -> list[tuple[str, ...]]:
    lines = list[tuple[str, ...]]()
    for name, p in zip(("four kinds", "PyTorch alone"), both, strict=True):
        counts = f"{p.rounds}", f"{p.replies:,}", f"{p.refused}", f"{p.seconds:.0f}"
        lines.append((f"seed {seed}, {name}", f"{p.accuracy:.3f}", f"{p.loss:.4f}", *counts))
    return lines


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0..2", help="first..last")
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(".."))
    torch.set_num_threads(1)
    lines = list[tuple[str, ...]]()
    with tempfile.TemporaryDirectory() as made, sync_playwright() as driver:
        core = compiled(Path(made) / "core")
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for seed in range(first, last + 1):
            folder, recipe = Path(made) / f"seed-{seed}", recipe_of(seed, given.rounds)
            folder.mkdir()
            both = four_kinds(recipe, folder, core, browser), pytorch_alone(recipe, folder)
            lines += lines_of(seed, both)
            print(*lines[-2:], sep="\n", flush=True)
        browser.close()
    header = ("run", "accuracy", "loss", "rounds", "replies", "refused", "seconds")
    show("eight devices of four kinds, verified, replayed and patched", lines, header)


if __name__ == "__main__":
    main()
