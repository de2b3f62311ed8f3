"""A link as privacy will need them, for tests: noise from the private source, and no loss that travels exactly."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from fedzero.links import Link, LinkTraits
from fedzero.links.contract import ClientContext, Contribution


class Noise(Link, tag="test-noise"):
    """v ← v + N(0, σ²); the loss is left out, or noised as well."""

    deviation: float = 0.01
    loss: Literal["hidden", "noised"] = "hidden"

    traits = LinkTraits(hides_loss=True, draws_privately=True)

    def on_client(self, mine: Contribution, client: ClientContext) -> Contribution:
        generator = client.private()
        values = mine.values + self.deviation * generator.standard_normal(len(mine.values))
        loss = None if self.loss == "hidden" or mine.loss is None else mine.loss + generator.standard_normal()
        return msgspec.structs.replace(mine, values=values.astype(np.float32), loss=loss)
