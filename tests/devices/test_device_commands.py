"""`fedzero devices`: wrong folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outcome import Outcome


@pytest.mark.parametrize(
    ("command", "why"), [("ticket", "start the run, or give --url"), ("list", "makes the first ticket")]
)
def test_a_wrong_name_does_not_become_a_folder(
    fedzero: Callable[..., Outcome], tmp_path: Path, command: str, why: str
) -> None:
    done = fedzero("devices", command, tmp_path / "nowhere")
    assert done.code == 2 and why in done.err
    assert not (tmp_path / "nowhere").exists()


def test_a_ticket_before_the_run_needs_an_address(fedzero: Callable[..., Outcome], tmp_path: Path) -> None:
    done = fedzero("devices", "ticket", tmp_path / "run", "--url", "https://example.org", "--no-qr")
    assert done.code == 0 and done.out.startswith("https://example.org/join#")
    assert (tmp_path / "run" / "devices.db").stat().st_mode & 0o077 == 0
