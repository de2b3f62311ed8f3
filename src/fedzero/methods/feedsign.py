"""FeedSign (Cai et al., "FeedSign: robust full-parameter federated fine-tuning of large models with extremely low
communication overhead of one bit"): one shared direction, one bit up, one bit down.

    client i:   b_i = sign(f_i(x + μ z) − f_i(x − μ z))
    server:     b = sign(Σ_i b_i)
    everybody:  x ← x − η b z

With P directions, each has a bit of its own and x ← x − (η/P) Σ_p b[p] z_p; with K local steps a client walks by its
own signs. A slope of 0 counts as positive. A tie of the votes is decided by a coin that follows from the run's key and
the round, since one bit has no room for "neither".

What travels is a bit a direction, packed: K·P bits are ⌈K·P/8⌉ bytes, so that the single bit of the paper is a byte in
a reply of some 25 (round, digest of the model, loss, queries), where a float32 would be four. The update is such a byte
too, on the ledger and down. A client cannot move the model further than any other, whatever it sends.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from fedzero.methods import (
    F32,
    Answer,
    Ask,
    Bits,
    Counts,
    Dense,
    Difference,
    FedzeroError,
    Method,
    Params,
    Scale,
    Seeded,
    SeededMethod,
    StepInputs,
    Traits,
    Update,
    count_at,
    of_one_round,
)

BITS = Bits()


class FeedSign(SeededMethod, tag="feedsign"):
    """Signs of slopes up, the majority's signs down."""

    directions: Counts = 1
    difference: Difference = "central"

    def traits(self, scale: Scale) -> Traits:
        vote = "its signs are a vote on one round's directions"
        return replace(SeededMethod.traits(self, scale), reads_state=vote, coder=BITS)

    def slopes_at(self, base: Params, keys: tuple[int, ...], step: int) -> Generator[Ask, Answer, tuple[F32, float]]:
        g, loss = yield from SeededMethod.slopes_at(self, base, keys, step)
        if not np.isfinite(g).all():
            raise FedzeroError("a slope is NaN or infinite: its sign means nothing")
        return np.where(g < 0, -1, 1).astype(np.float32), loss

    def aggregate(self, gathered: StepInputs) -> Update:
        votes = gathered.mean()
        coins = gathered.keys.generator("vote", gathered.round).integers(2, size=votes.size)
        votes = np.where(votes == 0, 2 * coins - 1, votes).astype(np.float32)
        return Seeded(gathered.round, BITS.encode(votes, _no_draw)[1])

    def decode_update(self, update: Update) -> F32:
        """±1, as many as the round has."""
        update = of_one_round(update)
        if isinstance(update, Dense):
            return Method.decode_update(self, update)
        expected = self.local_steps * count_at(self.directions, update.round)
        if len(update.scalars) != BITS.length(expected):
            raise FedzeroError(
                f"round {update.round} has {len(update.scalars)} bytes of signs where {self.name} has "
                f"{BITS.length(expected)}"
            )
        return BITS.decode(b"", update.scalars, expected)


def _no_draw() -> np.random.Generator:
    raise AssertionError("bits are not drawn")
