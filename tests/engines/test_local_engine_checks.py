"""The checks for engines: ours passes them, and one that breaks the contract is told what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest

from fedzero.engines import Altered, Arrival, Clients, Engine, RunView, local_clients
from fedzero.engines.local import Local
from fedzero.testing import CheckFailed, check_engine
from fedzero.testing import engine_checks as checks


def test_the_local_engine_conforms() -> None:
    check_engine(Local())


class Spoilt(Engine, tag="spoilt-engine"):
    """The local clients, with something between them and the server."""

    def open_with(self, run: RunView, alter) -> Clients:  # type: ignore[no-untyped-def]
        setup, replica = run.built()
        return Altered(local_clients(setup, replica, run.observe, run.past.memory), alter)


class Dropping(Spoilt, tag="dropping-engine"):
    """The first arrival of every exchange is lost."""

    @contextmanager
    def open(self, run: RunView) -> Iterator[Clients]:
        yield self.open_with(run, lambda round, exchange, arrivals: arrivals[1:])


class Twice(Spoilt, tag="twice-engine"):
    """The last arrival of every exchange comes twice."""

    @contextmanager
    def open(self, run: RunView) -> Iterator[Clients]:
        yield self.open_with(run, lambda round, exchange, arrivals: [*arrivals, arrivals[-1]])


class Anonymous(Spoilt, tag="anonymous-engine"):
    """A client that fails says nothing, and the next one is blamed."""

    @contextmanager
    def open(self, run: RunView) -> Iterator[Clients]:
        def blaming(round: int, exchange: int, arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
            failed = [i for i, each in enumerate(arrivals) if isinstance(each.data, Exception)]
            spoilt = list(arrivals)
            for i in failed:
                j = (i + 1) % len(spoilt)
                spoilt[j] = msgspec.structs.replace(spoilt[j], data=spoilt[i].data)
            return spoilt

        yield self.open_with(run, blaming)


@pytest.mark.parametrize(
    ("engine", "check", "why"),
    [
        (Dropping(), checks.writes_the_ledger_of_one_process, "another ledger than that of one process"),
        (Dropping(), checks.says_what_happens, "neither arrive nor leave"),
        (Twice(), checks.says_what_happens, "arrive more than once"),
        (Anonymous(), checks.names_clients_that_fail, "not client 1 alone"),
    ],
)
def test_an_engine_that_does_not_conform_is_told_why(engine: Engine, check: checks.Check, why: str) -> None:
    with pytest.raises(CheckFailed, match=why):
        check_engine(engine, [check])
