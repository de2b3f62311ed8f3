"""`[clock]` of a recipe: how long clients take, in a simulation.

    seconds of a turn of client i = turn · exp(spread · z_i) · exp(jitter · z) + bytes down / down_i + bytes up / up_i

z_i are standard normal, drawn once for each client with the keys of the run; z is drawn for each turn. A trace has the
factor and the lines of a device in place of the first and the last ones. What the clock says is on the ledger:
simulated seconds, and when clients were asked.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from fedzero.errors import FedzeroError
from fedzero.model.files import read
from fedzero.model.numbers import NonNegative, Positive, PositiveFraction, ProperFraction
from fedzero.model.value import Checked

F64 = NDArray[np.float64]
SHIPPED = "phones"
"""The name of the trace in the package; tools/phones_trace.py makes it."""
LARGEST = 1 << 24
"""Bytes of a trace."""


class Clock(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Simulated time: how long turns take, and when clients are there."""

    turn: Positive = 1.0
    """Seconds of a turn of the median client, without messages."""
    spread: NonNegative = 0.0
    """σ of the lognormal speeds of clients; 0: all are equally fast."""
    jitter: NonNegative = 0.0
    """σ of the lognormal factor between the turns of a client."""
    trace: str | UnsetType = UNSET
    """A CSV file of devices, one of which every client is (`spread` is not used then); phones: the one that comes with
    fedzero."""
    down: Positive | UnsetType = UNSET
    """Bytes a second to the median client; default: messages take no time, or as the trace says."""
    up: Positive | UnsetType = UNSET
    """Bytes a second from the median client."""
    lines: NonNegative = 0.0
    """σ of the lognormal factor of both between clients."""
    dropout: ProperFraction = 0.0
    """The probability that a turn ends without a reply, at any time of it."""
    day: Positive | UnsetType = UNSET
    """Seconds of a day and a night; default: clients are always there."""
    awake: PositiveFraction = 0.5
    """The part of a day in which a client is there, that is, can be asked."""
    zones: Literal["random", "data"] = "random"
    """When the day of a client begins: at random, or in the order of its mean label, so that who is there at a time has
    similar data."""


@dataclass(frozen=True)
class Device:
    """A line of a trace. share: how frequent it is; factor: of the seconds of a turn; down, up: bytes a second, or
    infinite."""

    share: float
    factor: float
    down: float = math.inf
    up: float = math.inf


def devices_in(trace: str) -> list[Device]:
    """The devices of a trace: a CSV file with the columns share, factor and, perhaps, down and up."""
    try:
        if trace == SHIPPED:
            data = resources.files("fedzero").joinpath(f"data/{SHIPPED}.csv").read_bytes()
        else:
            data = read(Path(trace), LARGEST)
        rows = list(csv.DictReader(io.StringIO(data.decode()), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FedzeroError(f"clock.trace = {trace!r} cannot be read: {error}") from error
    try:
        found = [
            Device(
                float(row["share"]),
                float(row["factor"]),
                float(row.get("down") or math.inf),
                float(row.get("up") or math.inf),
            )
            for row in rows
        ]
    except (KeyError, ValueError, TypeError) as error:
        raise FedzeroError(f"clock.trace = {trace!r}: a line has the numbers share and factor ({error})") from error
    bad = [each for each in found if not (each.share >= 0 and min(each.factor, each.down, each.up) > 0)]
    if bad or not sum(each.share for each in found) > 0 or not all(math.isfinite(d.factor + d.share) for d in found):
        raise FedzeroError(f"clock.trace = {trace!r}: shares and factors are positive numbers, and there is one line")
    return found
