"""MeZO (Malladi et al., "Fine-tuning language models with just forward passes"): zeroth-order SGD in one place.

    g = (f(x + μz) − f(x − μz)) / 2μ;   x ← x − η g z          (averaged over P directions where P > 1)

The original perturbs weights in place by +μz, −2μz, +μz, which leaves rounding drift; a view leaves none.
"""

from __future__ import annotations

from fedzero.methods import Counts, Difference, Federation, SeededMethod


class MeZO(SeededMethod, tag="mezo"):
    """One party, central difference, one direction a step: the single-machine reference."""

    directions: Counts = 1
    difference: Difference = "central"

    def check(self, federation: Federation) -> None:
        SeededMethod.check(self, federation)
        federation.expect("MeZO trains in one place", clients=1)
