"""A run in a forked process, overheard as `fedzero.testing.non_interference.played` does it, with the task
`test-slopes`, private randomness that is given, and a bug."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from plants import PLANTS
from slopes import Slopes

from entropy import given_entropy
from fedzero import plugins
from fedzero.runs import progress
from fedzero.testing import overheard


def go(recipe: str, place: str, data: str, given: Mapping[str, bytes], plant: str) -> None:
    os.chdir(place)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    Path("messages").touch()
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.environ["SLOPES"] = data
    plugins.register(Slopes)
    progress.QUIET_SECONDS = 3600.0  # on a slow machine there would be lines in between
    sys.argv = ["fedzero", "messages", "run", recipe, "--out", "run"]
    with given_entropy(**given), PLANTS[plant]():
        overheard.main()
