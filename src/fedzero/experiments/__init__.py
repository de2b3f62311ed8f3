"""The experiments of the papers, one file each, and what runs them: `fedzero reproduce`."""

from __future__ import annotations

from fedzero.errors import FedzeroError
from fedzero.experiments.contract import Experiment
from fedzero.experiments.e2 import E2
from fedzero.experiments.e8 import E8
from fedzero.experiments.e9 import E9

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (E2(), E8(), E9())}


def experiment(name: str) -> Experiment:
    found = EXPERIMENTS.get(name.lower())
    if found is None:
        raise FedzeroError(f"{name}: no such experiment; there are {', '.join(EXPERIMENTS)}")
    return found
