"""What is played to a device under test: sessions, turns, orders, recovery, the end. Each scenario is a run of its own.

sessions      enrolment, sessions, who is believed
turns         the profile: what a turn computes
orders        what an order may be, and what is done twice
recovery      updates and checkpoints
endings       connections that break, errors, Wait, Finish
"""

from __future__ import annotations

from fedzero.testing.devices.scenarios import endings, orders, recovery, sessions, turns
from fedzero.testing.devices.scenarios.contract import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *sessions.SCENARIOS,
    *turns.SCENARIOS,
    *orders.SCENARIOS,
    *recovery.SCENARIOS,
    *endings.SCENARIOS,
)

__all__ = ["SCENARIOS", "Scenario"]
