"""Clipping on the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fedzero.links.bounds import norm_of, shortened
from fedzero.links.contract import F32, Mixer
from fedzero.model.numbers import Positive


class ServerClip(Mixer, tag="server-clip"):
    """Norm clipping by the server (Sun et al., "Can you really backdoor federated learning?", 2019).

        v_i ← v_i · min(1, norm/‖v_i‖₂)

    `clip` does the same on the clients, which then know the values that the server reads; `federation.bound` derives
    the norm from the round.
    """

    norm: Positive
    """the largest norm of a contribution"""

    compares: ClassVar[bool] = False

    def mix(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> dict[int, F32]:
        return {client: shortened(values, norm_of(values), self.norm) for client, values in contributions.items()}
