"""The participants of a federation, and its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from fedzero.errors import FedzeroError
from fedzero.model.numbers import NonNegative
from fedzero.model.value import Checked

MOST_CLIENTS = 10_000_000
"""The largest federation: the server keeps two numbers per client, from the first round on."""


class Federation(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The clients that take part, and the holder of the model."""

    clients: Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]
    """N"""
    cohort: Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]
    """m, sampled uniformly each round"""
    replacement: bool = False
    """Sample with replacement: a client drawn twice takes part once and weighs twice."""
    private: bool = False
    """Derive directions from a secret that the clients share and the server does not know."""
    server_model: bool = True
    """False: the server averages scalars and holds no model; only the clients do."""
    sync: bool = False
    """Send the update of a round to its cohort at once, not only before a client's next turn."""
    pull_after: Annotated[int, Meta(ge=1)] | None = None
    """A client that missed more rounds than this is sent the whole model instead of the updates."""
    bound: NonNegative = 0.0
    """Numbers of a client are scaled down to a norm of at most so many times the median of its round (of 3 clients or
    more); 0: never. A recipe without this key has 1.5."""

    def expect(self, why: str, **wanted: Any) -> None:
        """Refuse a federation whose fields differ from `wanted`; `why` begins the sentence."""
        for name, value in wanted.items():
            found = getattr(self, name)
            if found != value:
                remedy = f"leave out federation.{name}" if value is None else f"set federation.{name} = {_toml(value)}"
                raise FedzeroError(f"{why}: {remedy} (not {_toml(found)})")


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Scale:
    """The size of a federation: d numbers in the model, N clients."""

    size: int
    clients: int
