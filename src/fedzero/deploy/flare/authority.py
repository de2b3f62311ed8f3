"""What the certificate authority of a project keeps.

PROJECT/authority/state/cert.json     FLARE's: the authority's key, and those of the server and the supervisor
PROJECT/authority/issued/NAME.pem     every certificate of a site, as it was issued

FLARE keeps the private keys of sites, too, and hands them out again. Here the only one is in the kit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedzero.model import files

AUTHORITY, KEPT = "authority", "@"
"""`KEPT`: in names of the supervisor, and in no name of a site."""
OWN = {"root_cert", "root_pri_key", "server"}
"""What of FLARE's file belongs to no site."""


def forget(folder: Path) -> None:
    """Sites' private keys are taken out of the state, and their certificates put on file."""
    place = folder / AUTHORITY
    if place.exists():
        place.chmod(0o700)
    path = place / "state" / "cert.json"
    if not path.exists():
        return
    state = files.decoded(path, dict[str, Any])
    sites = [name for name in state if name not in OWN and KEPT not in name]
    for name in sites:
        there, certificate = _issued(folder, name), state.pop(name)["cert"]
        before = there.read_text() if there.exists() else ""
        if certificate not in before:
            files.write(there, before + certificate, durable=True)
    files.write(path, json.dumps(state), durable=True, private=True)


def issued(folder: Path, site: str) -> int:
    """How many certificates a site has been given. Each of them lets its owner in until it expires."""
    there = _issued(folder, site)
    return there.read_text().count("BEGIN CERTIFICATE") if there.exists() else 0


def _issued(folder: Path, site: str) -> Path:
    return folder / AUTHORITY / "issued" / f"{site}.pem"
