"""Links change contributions on their way from client to model. They form a chain that works with every method."""

from fedzero.links.chain import NO_FILTERS, Chain, Sent
from fedzero.links.combining import mean
from fedzero.links.contract import Coder, Combine, Combiner, Filter, Link, LinkTraits, Mixer, Shaper
from fedzero.links.gathering import Gathering, Total

__all__ = [
    "NO_FILTERS",
    "Chain",
    "Coder",
    "Combine",
    "Combiner",
    "Filter",
    "Gathering",
    "Link",
    "LinkTraits",
    "Mixer",
    "Sent",
    "Shaper",
    "Total",
    "mean",
]
