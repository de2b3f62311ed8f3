"""The report of a run as a page that is served while the run goes, and follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedzero.web.server import DEFAULT, serving

__all__ = ["DEFAULT", "beside", "serving"]


@contextmanager
def beside(folder: Path, web: bool | str, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the page while something else goes on. web: whether, or at which HOST:PORT; say: is told the address."""
    if web is False:
        yield
        return
    with serving(folder, DEFAULT if web is True else web) as address:
        say(f"page: {address}")
        yield
