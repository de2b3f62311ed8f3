"""What a scenario is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedzero.testing.devices.trial import Bench

Play = Callable[[Bench], Sequence[str] | None]
"""Raises `Wrong`; may return remarks."""


@dataclass(frozen=True)
class Scenario:
    """name: of one word or several with hyphens. about: what a device has to do, in a sentence."""

    name: str
    about: str
    play: Play
