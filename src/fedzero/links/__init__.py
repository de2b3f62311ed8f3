"""Compression and robustness as links of a chain on what clients send, usable with every method."""

from fedzero.links.chain import NO_FILTERS, Chain, Sent
from fedzero.links.combining import mean
from fedzero.links.contract import Coder, Combine, Combiner, Filter, Mixer, Shaper

__all__ = ["NO_FILTERS", "Chain", "Coder", "Combine", "Combiner", "Filter", "Mixer", "Sent", "Shaper", "mean"]
