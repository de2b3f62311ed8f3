"""fedzero-client join TICKET --data my.npz"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fedzero_client import __version__
from fedzero_client.budget import FILE, READERS, SERVER, Journal, Limit
from fedzero_client.errors import Broken, ClientError
from fedzero_client.packing import pack
from fedzero_client.plan import Plan
from fedzero_client.polling import Polling
from fedzero_client.session import LEAVE, Session, Ticket
from fedzero_client.store import Store
from fedzero_client.turn import Oracle, Rows
from fedzero_client.websocket import WebSocket

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between two attempts to connect."""
LONGEST_LINE = 500
WAYS = {"socket": WebSocket, "poll": Polling}


def say(text: str) -> None:
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text[:LONGEST_LINE])  # a gateway may have said it
    print(f"fedzero-client: {shown}", file=sys.stderr, flush=True)


def take_part(session: Session, way: str, tell: Callable[[str], None] = say) -> None:
    """Until the run has ended; connections that break are made again."""
    pause = FIRST_PAUSE / 2
    while not session.finished:
        before, broken = session.answered, ""
        try:
            _connected(session, way)
        except Broken as reason:
            broken = str(reason)
        if session.finished:
            return
        pause = FIRST_PAUSE if session.answered > before else min(2 * pause, LONGEST_PAUSE)
        if broken:
            tell(f"{broken}; again in {max(pause, session.pause):g} s")
        time.sleep(max(pause, session.pause))
        session.pause = 0.0


def _connected(session: Session, way: str) -> None:
    connection = WAYS[way](session.ticket.url)
    try:
        for frame in session.begin():
            connection.send(frame)
        while not session.finished:
            frames = session.receive(connection.receive())
            if session.hold:
                time.sleep(session.hold)
                session.hold = 0.0
            for frame in frames:
                connection.send(frame)
            if session.pause:
                return
    except KeyboardInterrupt:
        connection.send(pack([LEAVE]))
        raise
    finally:
        connection.close()


def limit_memory(gibibytes: float) -> None:
    """A graph comes from elsewhere, and its intermediate values may be of any size: the process must not take all."""
    try:
        import resource
    except ImportError:  # of Windows, which has another way
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = int(gibibytes * (1 << 30))
    if resource.RLIM_INFINITY in (soft, hard) or wanted < soft:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def _add_privacy(join: argparse.ArgumentParser) -> None:
    join.add_argument("--epsilon", type=_positive, help="The most privacy budget of all turns; refused beyond it.")
    join.add_argument(
        "--against",
        choices=(READERS, SERVER),
        default=READERS,
        help="Whom the figure is about; 'server' refuses runs whose server adds the noise.",
    )
    join.add_argument("--journal", type=Path, help="A file that counts all runs on the same data; one of the folder.")


def _positive(text: str) -> float:
    found = float(text)
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError("a number above 0")
    return found


def main(arguments: Sequence[str] | None = None, oracle: Callable[[Plan], Oracle] | None = None) -> int:
    """oracle: see `Session`."""
    parser = argparse.ArgumentParser(prog="fedzero-client", description="A device of a federated run.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True)
    join = commands.add_parser("join", help="Take part in a run, until it has ended.")
    join.add_argument("ticket", help="The whole address of the ticket, in quotes.")
    join.add_argument("--data", type=Path, required=True, help="An .npz file with x, rows of numbers, and y, labels.")
    join.add_argument(
        "--folder", type=Path, default=Path("fedzero-device"), help="Key, answers and model of the device."
    )
    join.add_argument("--way", choices=sorted(WAYS), default="socket", help="A web socket, or polling.")
    join.add_argument(
        "--memory", type=float, default=4.0, help="GiB of address space at most; a graph that asks for more fails."
    )
    _add_privacy(join)
    given = parser.parse_args(arguments)
    limit_memory(given.memory)
    try:
        store, limit = Store(given.folder), Limit(given.epsilon, given.against)
        journal = Journal(given.journal or given.folder / FILE, limit)
        try:
            ticket, rows = Ticket.of(given.ticket), Rows.of(given.data)
            take_part(Session(ticket, store, rows, say, limit, journal, oracle=oracle), given.way)
        finally:
            journal.close()
            store.close()
    except ClientError as reason:
        say(str(reason))
        return 2
    except KeyboardInterrupt:
        say("stopped; the same command goes on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
