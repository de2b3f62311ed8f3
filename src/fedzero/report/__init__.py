"""The report: what runs cost and what they learned, as one HTML page that needs nothing else, or as a table.

`fedzero.report.page` is the module; its function of the same name, which returns the page as text, stays in it.
"""

from __future__ import annotations

from fedzero.report.compare import Comparison, compare, sentence
from fedzero.report.history import History, Point
from fedzero.report.page import write
from fedzero.report.tables import rows, terminal_table
from fedzero.report.units import human_bytes

__all__ = ["Comparison", "History", "Point", "compare", "human_bytes", "rows", "sentence", "terminal_table", "write"]
