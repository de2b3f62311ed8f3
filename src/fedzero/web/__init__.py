"""The report of a run as a page that is served while the run goes, and follows it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from fedzero.errors import FedzeroError
from fedzero.web.address import DEFAULT, address_of, is_loopback, listen
from fedzero.web.channel import Settings

__all__ = ["DEFAULT", "serving", "serving_if"]


@contextmanager
def serving_if(folder: Path, web: bool | str, say: Callable[[str], None], several: bool = False) -> Iterator[None]:
    """Serve the page while something else goes on. web: whether, or at which HOST:PORT; say: is told the address;
    several: runs will be in folders of this one."""
    if web is False:
        yield
        return
    with serving(folder, DEFAULT if web is True else web, say, several) as address:
        say(f"page: {address}")
        yield


@contextmanager
def serving(
    folder: Path, at: str = DEFAULT, say: Callable[[str], None] = lambda text: None, several: bool = False
) -> Iterator[str]:
    """Serve the page of a run, which may not have begun yet, or of a folder of runs, by a process of its own; the value
    is its address.

    say: is told if that process ends before its time.
    """
    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise FedzeroError("the page needs starlette and uvicorn: pip install 'fedzero[web]'")
    from fedzero.web.answering import Answering  # reads ledgers; the process that serves does not
    from fedzero.web.folders import FollowingFolder, holds_runs
    from fedzero.web.following import Following

    host, port = address_of(at)
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    with listen(host, port) as listening:
        port = listening.getsockname()[1]
        settings = Settings(token, ("localhost", "127.0.0.1", "[::1]", host, f"[{host}]"))
        try:
            following = FollowingFolder(folder) if several or holds_runs(folder) else Following(folder)
            answering = Answering(following, listening, settings, say)
        except OSError as error:
            raise FedzeroError(f"the page cannot be served: {error}") from error
        shown = f"[{host}]" if ":" in host else host
        try:
            yield f"http://{shown}:{port}/" + ("" if token is None else f"?token={token}")
        finally:
            answering.close()
