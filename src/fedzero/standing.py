"""A supervisor that stays: plays every recipe that is submitted to a project, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedzero import submissions
from fedzero.engines.nvflare.epochs import Manner
from fedzero.errors import FedzeroError
from fedzero.federating import service_of
from fedzero.playing import Watch
from fedzero.serving import conduct
from fedzero.session import LEDGER, Surroundings

LOOK_EVERY = 0.5


def stand(
    project: Path,
    around: Surroundings,
    watch: Callable[[], Watch],
    manner: Manner,
    deadline: float,
    done: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Until interrupted. What cannot be played is said and taken out of the queue; the next one follows."""
    told = False
    with service_of(project, manner, deadline) as service:
        while True:
            found = submissions.first(project)
            if found is None:
                if not told:
                    manner.say(f"nothing to play: fedzero submit {project} RECIPE")
                told = True
                time.sleep(LOOK_EVERY)
                continue
            told = False
            path, recipe = found
            folder = project / "runs" / recipe.name
            try:
                conduct(recipe, folder, around, watch(), service)
                done(folder)
            except FedzeroError as error:
                manner.say(f"{recipe.name}: {error}")
            path.unlink(missing_ok=True)


def expect_place(project: Path, name: str) -> None:
    """A name can be played once: going on with a run is `serve --out`."""
    if (project / "runs" / name / LEDGER).exists() or name in submissions.waiting(project):
        raise FedzeroError(f"{project} has a run {name!r} already: give the recipe another name with --set name=…")
