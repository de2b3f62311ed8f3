"""The totals of a run, from its ledger."""

from __future__ import annotations

import math
from pathlib import Path

from msgspec import Struct, UnsetType

from fedzero.ledger import query_log, replay, traffic
from fedzero.ledger.store import Ledger, ledger_in
from fedzero.recipe.in_force import in_force


class Summary(Struct, frozen=True, kw_only=True):
    """The totals of a run, as `--json` prints them."""

    name: str
    algorithm: str
    rounds: int
    """made so far"""
    parameters: int
    """d"""
    clients: int
    final_loss: float | None
    """of the last evaluation, if it is finite"""
    estimated: bool
    """for black boxes: the loss is that of points near the model, not of the model itself"""
    final_accuracy: float | None
    bytes_up_per_client: float
    bytes_down_per_client: float
    bytes_up_per_turn: float
    """mean over the turns of all clients; with [privacy] over the expected turns, as all costs are expected ones"""
    bytes_down_per_turn: float
    queries: int
    """evaluations of the objective by all clients"""
    attempts: int
    """for black boxes: attempts on record, retries included"""
    sent: int
    """for black boxes: bytes to services, over HTTP"""
    received: int
    """bytes from services"""
    refused: int | None
    """replies that were not accepted; None with [privacy]: nobody counts them"""
    epsilon: float | None
    """ε of differential privacy against readers of the model and the ledger; None: the recipe has no [privacy]"""
    epsilon_server: float | None
    """ε against the server; None: no bound"""
    bounded: int | None
    """replies that were shortened to federation.bound, or whose loss is not in the round's mean; None with [privacy]"""
    seconds: float
    threads: int | None
    """number of threads that computed the values, if the last bits depend on it; repeat a run with the same number"""
    complete: bool
    reason: str
    """why the run ended before its last round, if it did"""
    diverged: bool
    """the last loss is not finite, above stop.above, or far above the first"""
    ledger_head: str
    model_digest: str
    model_sha256: str
    """empty if the ledger does not have it (releases before 0.2.1)"""


def summary_of(folder: Path) -> Summary:
    """The totals of the run in a folder."""
    with ledger_in(folder) as ledger:
        return summary(ledger)


def summary(ledger: Ledger, before: replay.LedgerView | None = None) -> Summary:
    """The totals of a ledger. before: the part of the ledger that was read already."""
    found, first = replay.read(ledger, before).outline, ledger.start()
    recipe = in_force(first, found.extended)
    model = (found.end or found.evaluations.last or first).identity
    last, up, down, privacy = found.evaluations.last, found.bytes_up, found.bytes_down, recipe.privacy
    turns = privacy.asked(recipe.federation) * found.done if privacy else found.turns
    asked = traffic.total(ledger.path.parent)
    return Summary(
        name=recipe.name,
        algorithm=recipe.algorithm.name,
        rounds=found.done,
        parameters=first.parameters,
        clients=recipe.federation.clients,
        final_loss=last.metrics.loss if last is not None and math.isfinite(last.metrics.loss) else None,
        estimated=last is not None
        and query_log.estimated(ledger, last, recipe.federation.clients, getattr(recipe.task, "evaluate", "")),
        final_accuracy=None if last is None else last.metrics.accuracy,
        bytes_up_per_client=up / recipe.federation.clients,
        bytes_down_per_client=down / recipe.federation.clients,
        bytes_up_per_turn=up / turns if turns else 0.0,
        bytes_down_per_turn=down / turns if turns else 0.0,
        queries=found.queries,
        attempts=query_log.spent(ledger),
        sent=asked.sent,
        received=asked.received,
        refused=None if privacy else found.refused,
        epsilon=None if found.spent is None else found.spent[0],
        epsilon_server=None if found.spent is None else found.spent[1],
        bounded=None if privacy else found.bounded,
        seconds=round(found.seconds, 3),
        threads=None if isinstance(first.threads, UnsetType) else first.threads,
        complete=found.end is not None,
        reason="" if found.end is None else found.end.reason,
        diverged=recipe.stop.diverged(found.evaluations),
        ledger_head=found.chain.hex(),
        model_digest=model.digest.hex(),
        model_sha256=model.sha256.hex(),
    )
