"""A link that reads single rows, for tests: clips every unit and adds up, without noise."""

from __future__ import annotations

import msgspec
import numpy as np

from fedzero.links import Link, LinkTraits
from fedzero.links.contract import ClientContext, Contribution
from fedzero.oracles import Poisson


class Clipped(Link, tag="test-rows"):
    """g = (1/B) Σ_u v_u min(1, C/‖v_u‖)"""

    most: float = 1.0
    rate: float = 1.0
    persons: bool = False
    expected: float = 1.0
    """B"""

    @property
    def traits(self) -> LinkTraits:
        return LinkTraits(rows=Poisson(self.rate, self.persons))

    def on_client(self, mine: Contribution, client: ClientContext) -> Contribution:
        assert mine.rows is not None and mine.loss is None and not mine.values.any()
        norms = np.linalg.norm(mine.rows.astype(np.float64), axis=1, keepdims=True)
        total = (mine.rows * np.minimum(1, self.most / np.maximum(norms, 1e-30))).sum(0) / self.expected
        return msgspec.structs.replace(mine, values=total.astype(np.float32), rows=None)
