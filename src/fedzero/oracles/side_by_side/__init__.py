"""A module at many points of rank-one directions, in one pass and with one set of weights."""

from fedzero.oracles.side_by_side.grouped import GroupedLosses
from fedzero.oracles.side_by_side.module import SideBySide
from fedzero.oracles.side_by_side.trial import agree, trials, warn_one_by_one

__all__ = ["GroupedLosses", "SideBySide", "agree", "trials", "warn_one_by_one"]
