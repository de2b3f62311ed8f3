"""Where the page is served: an address, and a socket that listens there."""

from __future__ import annotations

import ipaddress
import socket

from fedzero.errors import FedzeroError

DEFAULT = "127.0.0.1:8747"
NEARBY = 20
"""Ports behind the wanted one that are tried if it is taken."""


def address_of(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise FedzeroError(f"{text!r} is no address to serve the page at: write it as {DEFAULT}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket on the wanted port, or on one of those behind it: after a restart the page is found where it was."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for number in range(port, min(port + NEARBY, 65536)) if port else (0,):
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(64)
            return found
        except OSError as error:
            found.close()
            last = error
    raise FedzeroError(f"the page cannot be served at {host}:{port}: {last}")
