"""Past rounds, as engines may ask for them; see `recipe.view.Past`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from fedzero.ledger import checkpoints, replay
from fedzero.ledger.query_log import LedgerLog
from fedzero.recipe.view import CatchUpPart
from fedzero.rounds.server import Server


class PastRounds:
    """The past rounds of a server, once it has reached the end of its ledger."""

    def __init__(self) -> None:
        self._server: Server | None = None

    def attach(self, server: Server) -> None:
        self._server = server

    @property
    def _of(self) -> Server:
        assert self._server is not None, "attach comes before the first round"
        return self._server

    def known(self, client: int) -> int:
        return int(self._of.tracker.known[client])

    def updates(self, first: int, last: int) -> Sequence[bytes]:
        """Recent updates are in memory, older ones on the ledger."""
        server, first = self._of, max(first, 0)
        if server.federation.pull_after is None and first >= server.tracker.oldest:
            return server.tracker.history.between(first, last)
        rounds = server.ledger.rounds(first, last)
        return [record.update for record in rounds if record.update is not None and not record.dense]

    def catch_up(self, part: int) -> Iterator[CatchUpPart]:
        """From the last checkpoint on, in parts of `part` updates: a ledger may have more than memory holds."""
        ledger = self._of.ledger
        kept = checkpoints.own(ledger.path.parent, ledger)
        view = replay.read_from(ledger, kept)
        found, first = replay.checkpoint(ledger, view), 0
        if found is None and kept is not None and kept.state is not None:
            found, first = (kept.state, kept.outline.moved, kept.numbers), kept.outline.done
        updates = replay.updates_of(ledger, view, first=first)
        yield found, list(islice(updates, part))
        while more := list(islice(updates, part)):
            yield None, more

    def memory(self, client: int) -> Sequence[bytes]:
        return self._of.ledger.memory(client, self._of.tracker.turns)

    def limit(self, round: int, exchange: int) -> int:
        return self._of.limit(round, exchange)

    @property
    def queries(self) -> LedgerLog | None:
        meter = self._of.meter
        return None if meter is None else meter.log
