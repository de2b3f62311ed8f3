"""The training loss of a round: the mean of the clients' losses, which no single client can move far.

    m the lower median, s the upper median of |l_i − m|: a loss counts if |l_i − m| ≤ 10 · max(|m|, s)

While fewer than half of the clients lie, m and s stay within the range of honest clients, so f liars move the mean by
at most 10 f max(|m|, s) divided by the number of losses that count. The run itself does not use this mean; people and
`fedzero tune` look at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_high, median_low

from fedzero.links.bounds import FEWEST

HELD = 10.0


def beyond(losses: Mapping[int, float]) -> list[int]:
    """The clients whose loss is far from the others'; none if there are too few clients to tell."""
    if len(losses) < FEWEST:
        return []
    middle = median_low(losses.values())
    spread = median_high(abs(loss - middle) for loss in losses.values())
    reach = HELD * max(abs(middle), spread)
    return sorted(client for client, loss in losses.items() if abs(loss - middle) > reach)
