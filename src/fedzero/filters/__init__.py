"""Compression and robustness as links of a chain on what clients send, usable with every method."""

from fedzero.filters.chain import NO_FILTERS, AnyFilter, Chain, Sent
from fedzero.filters.combiners import Combine, mean

__all__ = ["NO_FILTERS", "AnyFilter", "Chain", "Combine", "Sent", "mean"]
