"""The experiments of the papers, one file each, and what runs them: `fedzero reproduce`."""

from __future__ import annotations

from fedzero.errors import FedzeroError
from fedzero_papers.experiments.contract import Experiment
from fedzero_papers.experiments.e1 import E1
from fedzero_papers.experiments.e2 import E2
from fedzero_papers.experiments.e3 import E3
from fedzero_papers.experiments.e4 import E4
from fedzero_papers.experiments.e5 import E5
from fedzero_papers.experiments.e6 import E6
from fedzero_papers.experiments.e7 import E7
from fedzero_papers.experiments.e8 import E8
from fedzero_papers.experiments.e9 import E9

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (E1, E2, E3, E4, E5, E6, E7, E8, E9)}


def find(name: str) -> Experiment:
    found = EXPERIMENTS.get(name.lower())
    if found is None:
        raise FedzeroError(f"{name}: no such experiment; there are {', '.join(EXPERIMENTS)}")
    return found
