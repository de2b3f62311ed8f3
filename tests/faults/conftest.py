"""Processes are really killed here: `make test-faults`, not `make test`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from federation import FIGURES, Federation

ENDLESS = 100_000
"""Rounds of a run that nobody waits to end."""


class Running:
    """A federation that one test after the other finds running, as long as they leave it well."""

    def __init__(self, folder: Path):
        self.folder, self.well, self.made = folder, False, 0
        self.federation: Federation | None = None

    def get(self) -> Federation:
        if self.federation is None or not self.well:
            self.close()
            self.made += 1
            self.federation = Federation(self.folder / str(self.made), rounds=ENDLESS)
            self.federation.pace(0.1)
            self.federation.begin()
        self.well = False  # until the test has passed
        return self.federation

    def close(self) -> None:
        if self.federation is not None:
            self.federation.__exit__()
            self.federation = None


@pytest.fixture(scope="session")
def one_after_the_other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("running"))
    yield running
    running.close()


@pytest.fixture
def running(one_after_the_other: Running) -> Iterator[Federation]:
    """A run in the middle of its rounds with three sites. A test that passes leaves it with everybody in it."""
    federation = one_after_the_other.get()
    federation.everybody_counts()
    yield federation
    federation.expect_well()
    one_after_the_other.well = True


@pytest.fixture
def made(tmp_path: Path, one_after_the_other: Running) -> Iterator[Callable[..., Federation]]:
    """made(sites=…, rounds=…): a federation of this test's own, nothing started yet."""
    one_after_the_other.close()
    with ExitStack() as own:
        yield lambda **options: own.enter_context(Federation(tmp_path / "own", **options))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Those that share a federation come first: it is not to run beside others."""
    items.sort(key=lambda item: "running" not in getattr(item, "fixturenames", ()))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in FIGURES:
        terminalreporter.write_line(line)
