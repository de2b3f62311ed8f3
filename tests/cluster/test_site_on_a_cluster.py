"""A site whose clients are on the workers of a cluster of its own, behind a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.pipe import Pipe
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.testing.engines import SiteProgram

METHOD = {"kind": "scaffold-zo", "rate": 2e-3, "directions": 4, "type": "II", "local_steps": 2, "form": "seeded"}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_ledger_is_that_of_one_process(recipe, tmp_path: Path, workers: int) -> None:
    """Also what clients remember, which is at the workers and in the site's folder."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedzero[ray]'")
    made = recipe(METHOD)
    here = session.start(made, tmp_path / "here", Environment(), Silent())
    with Pipe(hosts=1).open(SiteProgram(tmp_path / "sites", f"ray:{workers}"), print) as link:
        service = Service(link, lambda: ["host-0"], report=print)
        there = run_at_sites(made, tmp_path / "there", Environment(), Silent(), service)
    assert (there.ledger_head, there.model_digest) == (here.ledger_head, here.model_digest)
