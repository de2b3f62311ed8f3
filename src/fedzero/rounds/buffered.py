"""Steps that wait for nobody: m clients at work, and a step of the next K reports (`[federation] schedule`).

    x_{v+1} = x_v − (η_v / P) Σ_a Σ_p c_a[p] z(a, p),   c_a[p] = (1/K) Σ_{j asked at a} w(v − a) g_j[p]

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (FedBuff), AISTATS 2022, buffers changes of
stale models; here a report says numbers along directions that everybody can still make, so it is exact about its age.

Who is asked next is drawn with a key of (step, number of asks in the step so far) among the clients that are free: if
reports arrive in the same order, the run is the same. A client has one report in a step at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import UnsetType

from fedzero.directions import Keys
from fedzero.methods.contract.schedule_config import BufferedConfig, SynchronousConfig
from fedzero.recipe.plan import Plan
from fedzero.rounds.schedule import Schedule, StepSoFar

Present = Callable[[], Sequence[int] | None]
"""The clients that can be asked now, sorted; None: all."""


def everybody() -> None:
    return None


def schedule_of(plan: Plan, present: Present = everybody) -> Schedule | None:
    """The schedule of a recipe; None: it names none that differs from the synchronous one."""
    config = plan.federation.schedule
    if isinstance(config, BufferedConfig):
        return Buffered(config, plan, present)
    if isinstance(config, SynchronousConfig) and not config.plain:
        return Selected(config, plan, present)
    return None


@dataclass(frozen=True)
class Buffered:
    config: BufferedConfig
    plan: Plan
    present: Present = everybody

    @property
    def oldest(self) -> int:
        return self.config.oldest

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        if self.made(now):
            return ()
        places = self.plan.federation.at_work - sum(not self._expired(now, client) for client in now.awaited)
        asked = sum(step == now.step for step in now.asked.values())
        purpose, numbers = ("ask", (now.step, asked)) if asked else ("cohort", (now.step,))
        return drawn(self.plan.keys, purpose, numbers, places, self._free(now))

    def _free(self, now: StepSoFar) -> Sequence[int]:
        present = self.present()
        if present is None:
            return Others(self.plan.federation.clients, sorted(now.asked))
        return [client for client in present if client not in now.asked]

    def _expired(self, now: StepSoFar, client: int) -> bool:
        lease = self.config.lease
        return not isinstance(lease, UnsetType) and now.time >= now.since.get(client, now.time) + lease

    def made(self, now: StepSoFar) -> bool:
        if len(now.replies) >= self.config.buffer:
            return True
        over = now.time >= self._end(now)
        return over and len(now.replies) >= self.config.fewest

    def _end(self, now: StepSoFar) -> float:
        longest = self.config.longest
        return math.inf if isinstance(longest, UnsetType) else now.began + longest

    def until(self, now: StepSoFar) -> float:
        lease, ends = self.config.lease, [self._end(now)]
        if not isinstance(lease, UnsetType):
            ends += [now.since[client] + lease for client in now.awaited if client in now.since]
        return min((end for end in ends if end > now.time), default=math.inf)

    def discount(self, age: int) -> float:
        return self.config.weight.weight(age)

    def share(self, replies: int) -> float:
        """A step that `longest` ended is divided by K like the others."""
        return replies / self.config.buffer


@dataclass(frozen=True)
class Selected:
    """Synchronous rounds with over-selection and a deadline: more clients are asked than needed, the first count."""

    config: SynchronousConfig
    plan: Plan
    present: Present = everybody
    oldest: int = 0

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        if now.asked:
            return ()
        federation, here = self.plan.federation, self.present()
        free = range(federation.clients) if here is None else here
        return drawn(self.plan.keys, "cohort", (now.step,), federation.cohort + self.config.extra, free)

    def made(self, now: StepSoFar) -> bool:
        if not now.asked:
            return False
        enough = len(now.replies) >= self.plan.federation.cohort
        return enough or not now.awaited or (bool(now.replies) and now.time >= self._end(now))

    def _end(self, now: StepSoFar) -> float:
        deadline = self.config.deadline
        return math.inf if isinstance(deadline, UnsetType) else now.began + deadline

    def until(self, now: StepSoFar) -> float:
        end = self._end(now)
        return end if end > now.time else math.inf

    def discount(self, age: int) -> float:
        return 1.0

    def share(self, replies: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Others(Sequence[int]):
    """The clients 0 … N − 1 without some, which are sorted: no list of a million."""

    clients: int
    without: Sequence[int]

    def __len__(self) -> int:
        return self.clients - len(self.without)

    def __getitem__(self, place: int) -> int:  # type: ignore[override]
        """The client with `place` free clients before it: place + the number of those left out before it."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        low, high = 0, len(self.without)
        while low < high:
            middle = (low + high) // 2
            if self.without[middle] - middle <= place:
                low = middle + 1
            else:
                high = middle
        return place + low


def drawn(keys: Keys, purpose: str, numbers: tuple[int, ...], places: int, free: Sequence[int]) -> tuple[int, ...]:
    """Clients for so many places among those that are free, sorted; the cohort of the plan if all are free."""
    count = min(places, len(free))
    if count <= 0:
        return ()
    chosen = keys.generator(purpose, *numbers).choice(len(free), count, replace=False, shuffle=False)
    return tuple(sorted(free[place] for place in chosen.tolist()))
