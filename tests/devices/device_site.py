"""A site whose clients are devices, as what the host of a transport runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedzero.deploy.site.settings import Settings
from fedzero.deploy.site.site import Site


@dataclass(frozen=True)
class DeviceSite:
    """folder: of all sites; test: held-out rows, under the name that the recipe has for them."""

    folder: Path
    test: str
    engine: tuple[tuple[str, Any], ...]

    def __call__(self, name: str) -> Site:
        settings = Settings(device="cpu", threads=1, engine=dict(self.engine), files={self.test: self.test})
        return Site(settings, self.folder / name)
