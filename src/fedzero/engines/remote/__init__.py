"""Clients in other processes: what is said to their sites, and an engine that says it, whatever carries the bytes."""

from fedzero.engines.remote.engine import Own, RemoteEngine, Run
from fedzero.engines.remote.link import Interrupted, Link

__all__ = ["Interrupted", "Link", "Own", "RemoteEngine", "Run"]
