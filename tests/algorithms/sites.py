"""Sites in this process behind a link that breaks when told to: all of the remote engine but the network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedzero.deploy.site import Settings, Site
from fedzero.errors import Refused
from fedzero.protocol.engine import Interrupted


class Here:
    """A link to sites in this process, made anew in every epoch as a site's job process is.

    breaks(asked): whether the epoch ends after so many answers of all epochs; wants: sites that wait, asked before
    every round. `forgetful` sites have no folder to come back to.
    """

    def __init__(
        self,
        folder: Path,
        names: Collection[str],
        breaks: Callable[[int], bool] = lambda asked: False,
        forgetful: bool = False,
    ):
        self.folder, self.names, self.breaks, self.forgetful = folder, list(names), breaks, forgetful
        self.epochs, self.asked, self.seen = 0, 0, {}
        self.sites: dict[str, Site] = {}
        self.spoil: Callable[[str, bytes], bytes] = lambda site, answer: answer
        self.wants: set[str] = set()

    def begin(self) -> Collection[str]:
        for site in self.sites.values():
            site.leave()
        self.epochs += 1
        keep = f"{self.epochs}" if self.forgetful else "kept"
        self.sites = {name: Site(Settings(device="cpu"), self.folder / keep / name) for name in self.names}
        self.wants.clear()
        return list(self.sites)

    def ask(self, orders: Mapping[str, bytes], seconds: float, limit: int) -> Iterator[tuple[str, Any]]:
        for name, order in orders.items():
            self.asked += 1
            if self.breaks(self.asked):
                raise Interrupted("the link broke")
            answer = self.spoil(name, self.sites[name].answer(order))
            yield (
                name,
                answer if len(answer) <= limit else Refused(f"sent {len(answer)} bytes, at most {limit} expected"),
            )

    def waiting(self) -> Collection[str]:
        return self.wants
