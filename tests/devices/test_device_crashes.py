"""kill -9 of a device and of the server in the middle of a run: the ledger has the same head as if nothing happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.killed_devices import SERVER, Kill, wrong


@pytest.mark.slow
def test_a_device_and_the_server_are_killed(tmp_path: Path) -> None:
    kills = [Kill(10, 1), Kill(20, 1, 0.1), Kill(20, SERVER), Kill(20, SERVER, 0.2)]
    assert wrong(tmp_path, 150, kills) == ([], 4)
