"""The participants of a federation, and its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from fedzero.errors import FedzeroError
from fedzero.methods.contract.schedule_config import LEAST_COMPARED, BufferedConfig, ScheduleConfig, SynchronousConfig
from fedzero.model.numbers import NonNegative
from fedzero.model.value import Checked

MOST_CLIENTS = 10_000_000
"""The largest federation: the server keeps two numbers per client, from the first round on."""


class Federation(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The clients that take part, and the holder of the model."""

    clients: Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]
    """N"""
    cohort: Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]
    """m, sampled uniformly each round"""
    replacement: bool = False
    """Sample with replacement: a client drawn twice takes part once and weighs twice."""
    private: bool = False
    """Derive directions from a secret that the clients share and the server does not know."""
    server_model: bool = True
    """False: the server averages scalars and holds no model; only the clients do."""
    sync: bool = False
    """Send the update of a round to its cohort at once, not only before a client's next turn."""
    pull_after: Annotated[int, Meta(ge=1)] | None = None
    """A client that missed more rounds than this is sent the whole model instead of the updates."""
    bound: NonNegative = 0.0
    """Numbers of a client are scaled down to a norm of at most so many times the median of its round (of 3 clients or
    more); 0: never. A recipe without this key has 1.5."""
    schedule: ScheduleConfig | UnsetType = UNSET
    """When a step is made, and of which replies; default: synchronous, of the whole cohort."""

    @property
    def timed(self) -> bool:
        """Whether steps depend on when replies arrive."""
        schedule = self.schedule
        return bool(schedule) and not (isinstance(schedule, SynchronousConfig) and schedule.plain)

    @property
    def at_work(self) -> int:
        """m, the most clients that are asked at a time and count."""
        found = self.schedule.at_work if isinstance(self.schedule, BufferedConfig) else UNSET
        return self.cohort if isinstance(found, UnsetType) else found

    @property
    def replies(self) -> int:
        """The number of replies of a step, if as many come."""
        return self.schedule.buffer if isinstance(self.schedule, BufferedConfig) else self.cohort

    def check_schedule(self) -> None:
        """Refuse a schedule that these clients cannot serve."""
        if not self.timed:
            return
        self.expect("federation.schedule asks a client once at a step", replacement=False)
        if isinstance(self.schedule, SynchronousConfig):
            if (asked := self.cohort + self.schedule.extra) > self.clients:
                raise FedzeroError(f"schedule.extra: a step would ask {asked} of {self.clients} clients: use fewer")
            return
        assert isinstance(self.schedule, BufferedConfig)
        buffer, fewest = self.schedule.buffer, self.schedule.fewest
        for name, value in (("at_work", self.at_work), ("buffer", buffer)):
            if value > self.clients:
                raise FedzeroError(f"schedule.{name} = {value} exceeds federation.clients = {self.clients}")
        if fewest > buffer:
            raise FedzeroError(f"schedule.least = {fewest} exceeds schedule.buffer = {buffer}")
        if isinstance(self.schedule.longest, UnsetType) and not isinstance(self.schedule.least, UnsetType):
            raise FedzeroError("schedule.least is for steps that `longest` ends: give schedule.longest, too")
        if self.bound and fewest < LEAST_COMPARED:
            raise FedzeroError(
                f"federation.bound compares a client with the median of its step, which takes {LEAST_COMPARED} "
                f"replies, and schedule allows {fewest}: use a larger buffer (or `least`), or bound = 0"
            )

    def expect(self, why: str, **wanted: Any) -> None:
        """Refuse a federation whose fields differ from `wanted`; `why` begins the sentence."""
        for name, value in wanted.items():
            found = getattr(self, name)
            if found != value:
                remedy = f"leave out federation.{name}" if value is None else f"set federation.{name} = {_toml(value)}"
                raise FedzeroError(f"{why}: {remedy} (not {_toml(found)})")


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Scale:
    """The size of a federation: d numbers in the model, N clients."""

    size: int
    clients: int
