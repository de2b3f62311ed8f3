"""NVIDIA FLARE as a transport: machines of their own, mutual TLS, long-lived sites.

    supervisor ── unix socket ── server's job ══ mutual TLS ══ site's job ── fedzero.deploy.site.site
    (ledger)     (bridge.py)     (relay.py)                    (executor.py)

A FLARE job is an epoch and no more: it ends when a site's job process crashes, and no site joins it late. The
supervisor owns the ledger, begins the next epoch when one is over, and nothing is lost but the round that was going on.
The server's job only relays; no code travels with a job, sites run the package they have installed.

`nvflare` is imported in this package alone: project.py (provisioning), server.py (its server, patched), relay.py and
executor.py (the two ends of a job), and epochs.py (the supervisor's session).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedzero.engines.remote.transport import Program, Report, Transport
from fedzero.model.numbers import NonNegative, Positive, PositiveInt

if TYPE_CHECKING:
    from fedzero.deploy.flare.epochs import Epochs


class Flare(Transport, tag="flare"):
    """Sites of a federation, by NVIDIA FLARE; `fedzero serve` uses it. What sites run is their own."""

    project: str
    """Folder that `fedzero provision` made."""
    minimum: PositiveInt = 1
    """Sites without which no epoch begins."""
    patience: NonNegative = 30.0
    """Seconds to wait for sites that were there before."""
    deadline: Positive = 60.0
    """Seconds a site may take for one exchange."""

    @contextmanager
    def open(self, program: Program, report: Report) -> Iterator[Epochs]:
        from fedzero.deploy.flare.epochs import Epochs, WaitPolicy  # needs an extra

        epochs = Epochs(Path(self.project), WaitPolicy(self.minimum, self.patience, self.deadline, report))
        try:
            yield epochs
        finally:
            epochs.close()
