"""Scenarios, one after the other, and what came of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fedzero.errors import FedzeroError, did_you_mean
from fedzero.testing.devices.scenarios import SCENARIOS, Scenario
from fedzero.testing.devices.subject import Subject
from fedzero.testing.devices.trial import Bench
from fedzero.testing.devices.wrong import Wrong

PAGE = "docs/device-protocol.md"


class Found(Struct, frozen=True):
    """state: passed or wrong. said: what is wrong. section: where the protocol describes how it should be."""

    scenario: str
    about: str
    state: str
    said: str = ""
    section: str = ""
    remarks: tuple[str, ...] = ()
    seconds: float = 0.0


def chosen(names: Collection[str]) -> list[Scenario]:
    """The scenarios of these names; all of them without names."""
    known = {scenario.name: scenario for scenario in SCENARIOS}
    for name in names:
        if name not in known:
            raise FedzeroError(f"there is no scenario {name!r}: {did_you_mean(name, known) or 'see --list'}")
    return [scenario for scenario in SCENARIOS if not names or scenario.name in names]


def played(
    subject: Subject,
    names: Collection[str] = (),
    patience: float = 20.0,
    address: tuple[str, int, str] = ("127.0.0.1", 0, ""),
    keep: Path | None = None,
    begin: Callable[[Scenario], None] = lambda scenario: None,
) -> Iterator[Found]:
    """What came of each scenario. keep: a folder for what the client has and says. begin: is told of each before it."""
    with _folder(keep) as folder:
        for scenario in chosen(names):
            begin(scenario)
            own = folder / scenario.name
            own.mkdir(parents=True)
            at = time.monotonic()
            found = one(scenario, Bench(subject, own, patience, address))
            yield replace(found, seconds=round(time.monotonic() - at, 3))


def one(scenario: Scenario, bench: Bench) -> Found:
    name, about = scenario.name, scenario.about
    try:
        return Found(name, about, "passed", remarks=tuple(scenario.play(bench) or ()))
    except Wrong as wrong:
        return Found(name, about, "wrong", str(wrong), f"{PAGE}#{wrong.section}")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="fedzero-conformance-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
