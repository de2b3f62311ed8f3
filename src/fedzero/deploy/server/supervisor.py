"""A supervisor that keeps running: runs every recipe that is submitted to a project, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedzero.deploy.server import queue
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.engine import Service
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER
from fedzero.model import files
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.rounds.loop import Watch

LOOK_EVERY = 0.5


def serve_queue(
    project: Path,
    environment: Environment,
    watch: Callable[[], Watch],
    service: Service,
    done: Callable[[Path], None] = lambda folder: None,
    playing: Callable[[Path | None], None] = lambda folder: None,
) -> None:
    """Play the recipes in the queue until interrupted. A recipe that cannot be run is reported and removed. playing: is
    called with the folder of each run, and with None when the queue is empty."""
    idle = False
    while True:
        entry = next(iter(queue.entries(project)), None)
        if entry is None:
            if not idle:
                service.report(f"the queue is empty: fedzero submit {project} RECIPE")
                playing(None)
            idle = True
            service.idle()
            time.sleep(LOOK_EVERY)
            continue
        idle, folder = False, project / "runs" / queue.name_of(entry)
        playing(folder)
        try:
            run_at_sites(
                recipes.from_canonical(files.read(entry, recipes.LARGEST)), folder, environment, watch(), service
            )
            done(folder)
        except FedzeroError as error:
            service.report(f"{queue.name_of(entry)} was taken out of the queue: {error}")
        entry.unlink(missing_ok=True)


def check_name_free(project: Path, name: str) -> None:
    """A name stands for one run: `serve --out` resumes it."""
    if (project / "runs" / name / LEDGER).exists() or name in map(queue.name_of, queue.entries(project)):
        raise FedzeroError(f"{project} already has a run {name!r}: give the recipe another name with --set name=…")
