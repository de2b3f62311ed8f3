"""LOZO (Chen et al., "Enhancing zeroth-order fine-tuning for language models with low-rank structures").

With z = a bᵀ for every matrix, a is fresh in every step and b is kept for ν rounds. A rank-one stream makes b from the
low 32 bits of a direction's key and a from all 64, so keeping the low half of the key keeps b.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fedzero.methods.rules.contract import Rule, RuleTraits

LOW = (1 << 32) - 1
"""The low half of a key."""


class ReuseFactor(Rule, tag="reuse-factor"):
    """The right factors of rank-one directions are kept for ν rounds."""

    rounds: Annotated[int, Meta(ge=1)]
    """ν"""

    traits = RuleTraits(
        needs={
            "factors": "directions with two factors, of which it keeps one",
            "rounds": "directions that are drawn anew in every round",
            "fresh": "factors that no other rule keeps",
        },
        lacks={"fresh": "reuse-factor keeps them: leave out one of the two"},
    )

    def factors(self, round: int) -> int:
        return round - round % self.rounds


def with_factors(fresh: tuple[int, ...], held: tuple[int, ...]) -> tuple[int, ...]:
    """Keys with the left factors of `fresh` and the right factors of `held`."""
    return tuple((new & ~LOW) | (old & LOW) for new, old in zip(fresh, held, strict=True))
