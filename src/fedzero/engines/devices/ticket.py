"""A class ticket as an address: whoever opens it may take a place.

    https://HOST:PORT/join#TEXT         base64url, without padding, of 01 ‖ run (16) ‖ ticket (16) ‖ fingerprint (16)

What stands behind # is not sent when the address is opened, so no log of a server or proxy has the ticket.
"""

from __future__ import annotations

import base64

from fedzero.engines.devices.signing import FINGERPRINT

PATH = "/join"


def address(url: str, run: bytes, ticket: bytes, fingerprint: bytes) -> str:
    assert len(fingerprint) == FINGERPRINT
    text = base64.urlsafe_b64encode(b"\x01" + run + ticket + fingerprint).rstrip(b"=").decode()
    return f"{url.rstrip('/')}{PATH}#{text}"
