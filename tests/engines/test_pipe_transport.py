"""Hosts over pipes: a run is that of one process, also where hosts are killed."""

from __future__ import annotations

from fedzero.engines.remote.pipe import Pipe
from fedzero.testing import check_transport


def test_pipes_conform() -> None:
    check_transport(Pipe())
