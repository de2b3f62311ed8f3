"""The open questions of a ledger: if a run is resumed, their clients are asked again."""

from __future__ import annotations

from msgspec import UnsetType

from fedzero.ledger.records import TimedRound
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Ledger
from fedzero.protocol.engine import Clients, Timed
from fedzero.rounds.server import Server


class OpenQuestions:
    """By round, the clients whose answers were open when the ledger was written last, with the simulated seconds at
    which they were asked."""

    def __init__(self, ledger: Ledger, view: LedgerView, oldest: int):
        self._by_round: dict[int, dict[int, float]] = {}
        self._time = view.outline.time or 0.0
        open, done = view.turns.open(), view.outline.done
        for record in ledger.rounds(max(0, done - oldest), done) if open else ():
            if not isinstance(record, TimedRound) or isinstance(record.asked, UnsetType):
                continue
            pairs = zip(record.asked, record.asked_at, strict=True)
            self._by_round[record.round] = {c: at for c, at in pairs if open.get(c) == record.round}

    def ask(self, round: int, server: Server, clients: Clients) -> None:
        """Ask those of a round again; the model of server and clients stands where it stood in it."""
        if not isinstance(clients, Timed):
            return
        for client, at in self._by_round.get(round, {}).items():
            clients.set_time(at)
            server.ask_again(round, clients, [client])
        clients.set_time(self._time)
