"""A supervisor that stays: plays every recipe that is submitted to a project, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedzero.deploy import queue as submissions
from fedzero.deploy.conduct import conduct
from fedzero.deploy.flare.epochs import WaitPolicy
from fedzero.deploy.flare.launch import service_of
from fedzero.errors import FedzeroError
from fedzero.run.loop import Watch
from fedzero.run.session import LEDGER, Environment

LOOK_EVERY = 0.5


def serve_queue(
    project: Path,
    environment: Environment,
    watch: Callable[[], Watch],
    policy: WaitPolicy,
    deadline: float,
    done: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Until interrupted. What cannot be played is said and taken out of the queue; the next one follows."""
    told = False
    with service_of(project, policy, deadline) as service:
        while True:
            found = submissions.first(project)
            if found is None:
                if not told:
                    policy.say(f"nothing to play: fedzero submit {project} RECIPE")
                told = True
                time.sleep(LOOK_EVERY)
                continue
            told = False
            path, recipe = found
            folder = project / "runs" / recipe.name
            try:
                conduct(recipe, folder, environment, watch(), service)
                done(folder)
            except FedzeroError as error:
                policy.say(f"{recipe.name}: {error}")
            path.unlink(missing_ok=True)


def check_name_free(project: Path, name: str) -> None:
    """A name can be played once: going on with a run is `serve --out`."""
    if (project / "runs" / name / LEDGER).exists() or name in submissions.waiting(project):
        raise FedzeroError(f"{project} has a run {name!r} already: give the recipe another name with --set name=…")
