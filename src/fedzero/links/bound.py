"""`federation.bound`: a limit on the influence of a single client on a round; see `bounds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedzero.links.bounds import beyond, norms_of, shortened
from fedzero.links.contract import Link, Replies
from fedzero.model.numbers import Positive

FAR = 1000.0
"""Clients whose norm is more than so many times the round's median are refused: if they cannot be shortened, because
they keep account of the numbers they sent; and if the round would have made the model infinite."""


class Bound(Link):
    """v_i ← v_i · min(1, factor · M / ‖v_i‖), M the median norm of the round; shortened clients are marked.

    accounts: clients keep account of the numbers they sent, and their accounts must agree with the server's. So they
    cannot be shortened; instead they are refused, but only if their norm is more than `FAR` times the median.
    """

    factor: Positive
    accounts: bool = False

    def on_server(self, replies: Replies) -> Replies:
        norms = norms_of(replies.values)
        if self.accounts:
            refused = too_far(norms, max(self.factor, FAR), "more than a client may send")
            values = {client: own for client, own in replies.values.items() if client not in refused}
            return replace(replies, values=values, refused={**replies.refused, **refused})
        longest, outside = beyond(norms, self.factor)
        short = {client: shortened(replies.values[client], norms[client], longest) for client in outside}
        return replace(replies, values={**replies.values, **short}, bounded=replies.bounded | set(outside))


def too_far(norms: Mapping[int, float], factor: float, why: str) -> dict[int, str]:
    """Clients whose norm is more than `factor` times the round's median, each with a sentence."""
    longest, outside = beyond(norms, factor)
    return {c: f"sent numbers of norm {norms[c]:.3g}, {why}: at most {longest:.3g} this round" for c in outside}
