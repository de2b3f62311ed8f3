"""Where the server of a project is: names of hosts that people write, checked before anything relies on them."""

from __future__ import annotations

import ipaddress
import re
import socket

from fedzero.errors import FedzeroError

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE | re.ASCII)
LONGEST = 253
"""Characters of a host name."""
LOCAL = "localhost", "127.0.0.1"


def check(host: str, port: int) -> None:
    """Refuse what cannot be the address of a server, whether or not this machine can find it."""
    why = _not_a_host(host) or ("" if 1 <= port <= 65535 else f"ports are numbers from 1 to 65535, not {port}")
    if why:
        raise FedzeroError(f"the server cannot be at {host[:LONGEST]!r}, port {port}: {why}")


def _not_a_host(host: str) -> str:
    *_, last = labels = host.split(".")
    if not host:
        return "the host has no name"
    if ":" in host:
        return "give the name of a host, or its IPv4 address, and the port apart from it (--port)"
    if len(host) > LONGEST:
        return f"a host name has at most {LONGEST} characters"
    if last.isdigit():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return "an IPv4 address is four numbers from 0 to 255"
        return ""
    if not all(map(LABEL.fullmatch, labels)):
        return "a host name has letters, digits and hyphens, in parts of 1 to 63 characters with dots between them"
    return ""


def reachable(host: str) -> str:
    """The host as processes of this machine connect to it."""
    return LOCAL[1] if host == LOCAL[0] else host


def resolve(host: str) -> None:
    """Refuse a name that this machine cannot find now."""
    try:
        socket.getaddrinfo(reachable(host), None, socket.AF_INET)
    except OSError as error:
        raise FedzeroError(
            f"this machine does not find the server's host {host} ({error.strerror}): check the name, and the network "
            "of this machine; for another name, provision a project with --host"
        ) from None
