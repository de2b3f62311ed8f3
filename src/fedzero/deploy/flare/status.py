"""How a federation stands, from the files of its project: `fedzero status`."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from fedzero.deploy.flare.project import CONNECTED_SITES, Project
from fedzero.deploy.server import queue
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import ledger_in
from fedzero.model import files
from fedzero.recipe.in_force import recipe_of


class RunStatus(Struct, frozen=True):
    """round: how many are on the ledger."""

    name: str
    folder: str
    round: int
    rounds: int | None
    """None before the run has a ledger"""


class Status(Struct, frozen=True):
    """server: its process, if it runs; sites: whether each is connected; run: the one that is played."""

    server: int | None
    sites: dict[str, bool]
    queue: tuple[str, ...]
    run: RunStatus | None


def status_of(project: Path) -> Status:
    sites, found, here = Project.of(project).sites, queue.supervisor(project), project / CONNECTED_SITES
    connected = files.decoded(here, list[str]) if found is not None and here.exists() else []
    run = None if found is None or found.run is None else _run_in(Path(found.run))
    waiting = tuple(map(queue.name_of, queue.entries(project)))
    if run is not None and waiting[:1] == (run.name,):  # an entry stays until its run has ended
        waiting = waiting[1:]
    return Status(None if found is None else found.pid, {site: site in connected for site in sites}, waiting, run)


def _run_in(folder: Path) -> RunStatus:
    if not (folder / LEDGER).exists():
        return RunStatus(folder.name, str(folder), 0, None)
    with ledger_in(folder) as ledger:
        recipe, rounds = recipe_of(ledger), ledger.done
    return RunStatus(recipe.name, str(folder), rounds, recipe.rounds)
