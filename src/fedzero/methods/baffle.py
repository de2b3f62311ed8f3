"""BAFFLE (Feng et al., "Does federated learning really need backpropagation?"): scalars up, the model down.

    client i:  g_i[p] = (f_i(x + μ z_p; ξ) − f_i(x − μ z_p; ξ)) / 2μ,   p = 1 … P, directions shared by all (or forward)
    server:    x ← x − η (1/P) Σ_p mean_i g_i[p] z_p

The paper sends the model down (`form = "dense"`). `form = "seeded"` sends the scalars down as well and is then DeComFL.
"""

from __future__ import annotations

from dataclasses import replace

from fedzero.methods import (
    Counts,
    Difference,
    Federation,
    Form,
    Method,
    Samples,
    Scale,
    SeededMethod,
    Traits,
    sample_of,
)


class Baffle(SeededMethod, tag="baffle"):
    """Shared directions, scalars up, the model down."""

    directions: Counts = 20
    difference: Difference = "central"
    samples: Samples = "batch"
    form: Form = "dense"

    def sample(self, step: int) -> int:
        return sample_of(self.samples, step)

    def check(self, federation: Federation) -> None:
        SeededMethod.check(self, federation)
        if self.form != "seeded":
            Method.check(self, federation)

    def traits(self, scale: Scale) -> Traits:
        traits = SeededMethod.traits(self, scale)
        few = self.form == "auto" and self.cost(0, scale).replies[0] * scale.clients < scale.size
        return traits if few or self.form == "seeded" else replace(traits, delivery="snapshot")
