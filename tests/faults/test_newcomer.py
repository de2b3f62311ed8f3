"""A site that nobody had heard of when the run began."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from federation import SITE_JOB, Federation, seconds_until


def test_a_site_is_provisioned_and_joins_in_mid_run(made: Callable[..., Federation]) -> None:
    """It takes over a client of another site, and the run becomes what it would have been without it."""
    federation = made(sites=["north", "south"], rounds=600, server_model=False)
    federation.pace(0.1)
    federation.begin()
    command = ["provision", str(federation.folder / "project"), "--site", "west"]
    subprocess.run([sys.executable, "-m", "fedzero", *command], check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert not federation.clients("west")
    federation.join("west")

    def takes_part() -> None:
        federation.round_where(lambda r: bool(federation.clients("west")), "a client at the new site")
        federation.everybody_counts()

    seconds_until("a new site started, it takes part after", takes_part)
    assert len(federation.rounds()) < 600
    assert len(federation.clients("west")) == 1
    assert federation.processes(SITE_JOB, "west")
    before = len(federation.rounds())
    summary = federation.finish()
    assert summary["ledger_head"] == federation.undisturbed().ledger_head
    assert before < summary["rounds"]
