"""The clients of a run on the clock of its recipe."""

from __future__ import annotations

from fedzero.engines.simulated import SimulatedClients
from fedzero.engines.simulated_time import times_of
from fedzero.errors import FedzeroError
from fedzero.methods.contract import Federation
from fedzero.methods.contract.schedule_config import BufferedConfig
from fedzero.plugins import tag_of
from fedzero.protocol.engine import Clients
from fedzero.recipe.clock import Clock
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import Setup
from fedzero.rounds.schedule import check_several_steps
from fedzero.tasks.labels import labels_in


def oldest_of(federation: Federation) -> int:
    """Replies to questions of up to so many rounds before may count."""
    return federation.schedule.oldest if isinstance(federation.schedule, BufferedConfig) else 0


def expect_engine(recipe: Recipe, place: str) -> None:
    """Refuse a schedule that depends on times, and a clock, where clients do not answer in simulated time."""
    if recipe.federation.timed or recipe.clock:
        what = "[clock]" if recipe.clock else "this federation.schedule"
        raise FedzeroError(f"{what} works with engine.kind = 'local', where time is simulated, not with {place}")


def expect_clock(setup: Setup) -> None:
    """Refuse a recipe whose schedule or clock cannot be had, before anything is written."""
    recipe, federation = setup.recipe, setup.recipe.federation
    metered = setup.problem.metered is not None
    if not recipe.engine.answers_at_once:
        expect_engine(recipe, f"{tag_of(type(recipe.engine))!r}")
    if (recipe.clock or federation.timed) and metered:
        raise FedzeroError("queries of black boxes take the time that they take: leave out [clock] and schedule")
    if oldest_of(federation):
        check_several_steps(setup.plan, federation.server_model, metered)


def on_clock(clients: Clients, setup: Setup, oldest: int) -> Clients:
    """The clients of a recipe, on its clock. A schedule that depends on times has one with equal speeds if the recipe
    has none."""
    recipe = setup.recipe
    if not recipe.clock and not recipe.federation.timed:
        return clients
    clock = recipe.clock or Clock()
    labels = labels_in(setup.problem.shards) if clock.zones == "data" else None
    return SimulatedClients(clients, times_of(clock, setup.keys, recipe.federation.clients, labels), oldest)
