"""The server's half of a gathering: its phases with the hosts of an exchange, and the tally of their outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedzero.errors import FedzeroError, Refused
from fedzero.lines import LONGEST_SAID, printable
from fedzero.links.contract import Replies
from fedzero.links.gathering import MOST_PHASES, Gathering, ServerContext, Total
from fedzero.oracles.ranges import strange_loss
from fedzero.protocol.engine import Clients
from fedzero.recipe.plan import Plan
from fedzero.rounds.tally import RoundInProgress

MISSING = "is not in what the gathering left"


def gather(
    plan: Plan, round: int, exchange: int, clients: Clients, tally: RoundInProgress, weights: Mapping[int, int]
) -> None:
    """Put the outcome of a gathering into the tally. Clients that are not in it are refused, and out of the round."""
    gathering = plan.chain.gathering
    if gathering is None or not (tally.replies or gathering.hides_clients):
        return
    hosts: dict[str, list[int]] = {}
    for client in sorted(tally.replies):
        hosts.setdefault(tally.hosts[client], []).append(client)
    if gathering.idle:
        hosts |= {host: [] for host in clients.hosts() if host not in hosts}
    given = {host: tuple(mine) for host, mine in sorted(hosts.items())}
    context = ServerContext(round, exchange, plan.cost(round).replies[exchange], weights)
    lost: dict[str, str] = {}
    try:
        left = _played(gathering, given, context, clients, tally, lost)
        if isinstance(left, Total):
            _check(left, context, tally, gathering.hides_clients)
        else:
            _check_replies(left, context, tally)
    except Refused as why:
        for host, mine in given.items():
            said = f"failed: {lost[host]}" if host in lost else printable(str(why), LONGEST_SAID)
            tally.refused |= dict.fromkeys(mine, said)
        tally.replies = {}
        return
    if isinstance(left, Total):
        tally.totals.append(left)
        stay = {client: tally.replies[client] for client in left.clients}
    else:
        stay = {client: replace(tally.replies[client], values=values) for client, values in left.values.items()}
        tally.refused |= left.refused
    for host, mine in given.items():
        for client in set(mine) - stay.keys():
            tally.refused.setdefault(client, f"failed: {lost[host]}" if host in lost else MISSING)
    tally.replies = stay


def _played(
    gathering: Gathering,
    hosts: Mapping[str, tuple[int, ...]],
    context: ServerContext,
    clients: Clients,
    tally: RoundInProgress,
    lost: dict[str, str],
) -> Replies | Total:
    """Play all phases. lost: is filled with the reasons why hosts did not answer."""
    phases, answers = gathering.at_server(hosts, context), dict[str, bytes | Exception]()
    limit = gathering.limit(context.numbers, len(context.weights))
    for phase in range(MOST_PHASES + 1):
        try:
            bodies = phases.send(answers) if phase else next(phases)
        except StopIteration as done:
            left: Replies | Total = done.value
            return left
        except Exception as error:
            if not phase or isinstance(error, Refused):
                raise
            # Hosts wrote what was being read: the round is lost, not the run.
            raise Refused(f"the gathering could not read what hosts answered ({error!r})") from error
        if phase == MOST_PHASES or bodies.keys() - hosts.keys():
            break
        found = clients.phase(context.round, context.exchange, phase, bodies)
        answers = {host: _within(found.get(host), limit) for host in sorted(bodies)}
        for host, answer in answers.items():
            if isinstance(answer, bytes):
                tally.bytes_up += len(answer)
            else:
                lost[host] = printable(str(answer), LONGEST_SAID)
        tally.bytes_down += sum(map(len, bodies.values()))
    raise FedzeroError(f"gathering {gathering.name!r} asks hosts that have no part in it, or in too many phases")


def _within(answer: bytes | Exception | None, limit: int) -> bytes | Exception:
    if answer is None:
        return FedzeroError("did not answer")
    if isinstance(answer, bytes) and len(answer) > limit:
        return Refused(f"answered a phase with {len(answer)} bytes where at most {limit} were expected")
    return answer


def _check(total: Total, context: ServerContext, tally: RoundInProgress, empty: bool) -> None:
    """Refuse a total that cannot be a sum of these clients' values. empty: it may be a sum of nobody's."""
    clients = set(total.clients)
    if not (clients or empty) or len(clients) < len(total.clients) or clients - tally.replies.keys():
        raise Refused("the gathering left a sum of others than the clients that were asked")
    _expect_numbers(total.values, context)
    if not (math.isfinite(total.weight) and total.weight > 0):
        raise Refused(f"the gathering left a sum of weight {total.weight:g}")
    with np.errstate(over="ignore"):
        mean = total.mean()
    if not np.isfinite(mean).all():
        raise Refused("the sum is NaN or infinite")


def _check_replies(replies: Replies, context: ServerContext, tally: RoundInProgress) -> None:
    """Refuse replies that cannot be those of the clients that were asked."""
    if others := (replies.values.keys() | replies.refused.keys()) - tally.replies.keys():
        raise Refused(f"the gathering left a reply of client {min(others)}, which was not asked")
    for client, values in replies.values.items():
        _expect_numbers(values, context, f" of client {client}")


def _expect_numbers(values: NDArray[Any], context: ServerContext, whose: str = "") -> None:
    if values.shape != (context.numbers,):
        raise Refused(
            f"the gathering left numbers{whose} of shape {values.shape}, where {context.numbers} were expected"
        )
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        raise Refused(f"the numbers{whose} that the gathering left are NaN or infinite")


def loss_of(tally: RoundInProgress, least: float) -> float | None:
    """The mean loss at the start of a round, from its first gathering; None if no client counted or it is not
    credible."""
    found = tally.totals[0].mean_loss if tally.totals and tally.replies else None
    return None if found is None or strange_loss(found, least) else found
