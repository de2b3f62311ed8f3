"""What every method must do, whatever it computes. No check knows a method by name."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.engine import Service
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.folder import LEDGER
from fedzero.links.coders import Plain
from fedzero.methods.contract import Cost, Federation, Method, State
from fedzero.model.params import Params
from fedzero.model.updates import Dense
from fedzero.protocol.messages import Reply, decode_reply, encode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup, prepare
from fedzero.rounds import guard
from fedzero.rounds.schedule import Synchronous
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.runs.summary import Summary
from fedzero.tasks.quadratic import Quadratic
from fedzero.testing.engines import Change, Changing, Counting, LocalSites, Replies
from fedzero.testing.trial import Check, Trial, expect, federation_for, recipe_of, run_checks, trial

SEEDED_ROUNDS, DENSE_ROUNDS = 7, 13
"""Of a run: past the checkpoint that a dense run writes after ten; a seeded run has none."""


def check_method(method: Method, checks: Sequence[Check] | None = None) -> None:
    """Play small federations with a method, and raise `CheckFailed` with what does not hold.

    Checks: the recipe survives the ledger; a run replays to the same bits, at once and round by round; replicas of
    their own agree with a shared one; queries, bytes and numbers are what `cost` says; interrupted runs resume to the
    same ledger; sites give the ledger of one process; so do federations of every kind it accepts; bad clients leave no
    trace; 16-bit models replay; who is drawn twice counts twice; extreme numbers stop nobody; a strongly convex
    quadratic is solved.
    """
    run_checks(type(method), method, CHECKS if checks is None else checks)


def survives_the_ledger(method: Method, folder: Path) -> None:
    recipe = recipe_of(method)
    found = recipes.from_canonical(recipes.canonical(recipe))
    expect(found == recipe, f"the recipe comes back from the ledger as {found.algorithm}, not as {method}")


def bits(state: State) -> tuple[bytes, Any]:
    """All that a state holds."""
    return state.to_bytes(), state.numbers


def replays_and_counts(method: Method, folder: Path, merge: bool = False, **options: Any) -> None:
    """A run on one model for all clients, beside one on models of their own with replies in another order."""
    federation, secret = federation_for(method, **options), b"secret" if options.get("private") else None
    shared = trial(folder / "shared", recipe_of(method, federation, merge=merge), secret)
    real = trial(folder / "real", recipe_of(method, federation, replicas=True), secret)
    shared.engine.objective = counting = Counting(shared.engine.objective)
    shared.engine = passed = Changing(shared.engine)
    real.engine = Changing(real.engine, lambda replies, round, _: replies[round % 3 :][::-1] + replies[: round % 3])
    digests, states, new = [], {bits(shared.replica.state)}, set(range(shared.setup.recipe.federation.clients))
    rounds = _rounds(shared.setup)
    for round in range(rounds):
        digests.append(shared.replica.digest())
        before = counting.evaluations
        shared.play(1)
        states.add(bits(shared.replica.state))
        record, cost = shared.records[-1], shared.server.cost(round)
        clients = set(record.cohort)
        queries = len(clients) * cost.queries + cost.first_queries * len(clients & new)
        new -= clients
        expect(not record.refused, f"round {round}: {record.refused}")
        made = counting.evaluations - before
        expect(record.queries == made == queries, f"round {round}: {made} queries were made, cost() says {queries}")
        for exchange, numbers in enumerate(cost.replies):
            sent, size = passed.sizes.get((round, exchange), set()), shared.setup.plan.traits.coder.length(numbers)
            said = f"cost() says {numbers} numbers, hence {size} bytes"
            expect(sent == {size}, f"round {round}: replies of {sorted(sent)} bytes of numbers, {said}")
        expect((round, len(cost.replies)) not in passed.sizes, "there are more exchanges than cost() says")
    _expect_bytes(shared, passed)
    expect(len(states) == rounds + 1, "there are rounds that do not change the state")
    if not merge:
        real.play(rounds)
        expect(
            shared.records == real.records, "clients with models of their own send other numbers (apply or delivery)"
        )
        expect(bits(shared.replica.state) == bits(real.replica.state), "models of their own end elsewhere")
    _expect_replays(shared, digests)


def _rounds(setup: Setup) -> int:
    return SEEDED_ROUNDS if setup.plan.traits.seeded else DENSE_ROUNDS


def _expect_bytes(run: Trial, passed: Changing) -> None:
    up, down = sum(r.bytes_up for r in run.records), sum(r.bytes_down for r in run.records)
    expect(
        (up, down) == (passed.up, passed.down), f"{up} and {down} bytes on record, {passed.up} and {passed.down} passed"
    )


def _expect_replays(run: Trial, digests: Sequence[bytes]) -> None:
    """From the ledger, in one pass and one round at a time; where updates are kept, any round."""
    whole, view = run.replayed(), replay.read(run.ledger)
    expect(bits(whole.state) == bits(run.replica.state), "the ledger replays to other bits than the run's")
    expect(whole.round == run.replica.round, "the ledger replays to another round")
    seeded = run.server.plan.traits.seeded
    for round in (0, len(digests) - 2) if seeded else (10, 11):
        then = run.replayed(round)
        same = (then.round, then.digest()) == (round, digests[round])
        expect(same, f"the ledger replays to another model before round {round}, or to one of another round")
    if seeded:
        single = run.prepared().replica()
        for update in replay.updates_of(run.ledger, view):
            expect(not isinstance(update, Dense), "traits() says seeded, but an update is dense")
            single.follow([update])
        same = bits(single.state) == bits(run.replica.state)
        expect(same, "apply gives other bits for one update at a time than for all of them at once")


class _Stopped(Exception):
    """The process dies between two rounds."""


class _StopAt(Silent):
    def __init__(self, stop: int):
        self.stop = stop

    def round(self, record: Any) -> None:
        if record.round == self.stop:
            raise _Stopped


def resumes(method: Method, folder: Path, filters: Sequence[Any] = (), federation: Federation | None = None) -> None:
    """However often a run is interrupted, it ends in the ledger of one that was not.

    Clients are refused every other round, and twice nobody answers, once just before a checkpoint.
    """
    rounds = _rounds(prepare(recipe_of(method, federation, filters=filters), Environment()))
    stops = (4, 10) if rounds == DENSE_ROUNDS else (4,)
    recipe = recipe_of(method, federation, rounds=rounds, replicas=True, filters=filters)

    def play(name: str, stop: int | None = None) -> Summary:
        if (folder / name / LEDGER).exists():
            ledger, setup = recorded.reopen(folder / name, Environment(), writable=True)
        else:
            setup = prepare(recipe, Environment())
            ledger = session.create(folder / name, setup.start)
        watch = Silent() if stop is None else _StopAt(stop)
        with session.opened(setup, Environment(), watch) as found:
            spoilt = replace(found, clients=Changing(found.clients, _trouble(setup.plan.cost(0))))
            return session.run_to_end(spoilt, ledger, folder / name, watch)

    whole = play("whole")
    for stop in stops:
        try:
            play("stopped", stop)
        except _Stopped:
            continue
        expect(False, f"the run ended before round {stop}")
    resumed = play("stopped")
    for name in ("model_digest", "ledger_head"):
        after, right = getattr(resumed, name), getattr(whole, name)
        expect(after == right, f"resumed: {name} {after}; undisturbed: {right}")
    recorded.verified(folder / "stopped", Environment())


def _trouble(cost: Cost) -> Change:
    """Nobody answers in rounds 3 and 9; in other odd rounds the first reply to one exchange is of another round."""

    def change(replies: Replies, round: int, exchange: int) -> Replies:
        if round in (3, 9):
            return []
        if round % 2 and exchange == (round // 2) % len(cost.replies):
            return first_replaced(late)(replies, round, exchange)
        return replies

    return change


def altered(reply: Reply, **changes: Any) -> bytes:
    return encode_reply(msgspec.structs.replace(reply, **changes))


def late(reply: Reply, data: bytes) -> list[bytes | Exception]:
    return [altered(reply, round=reply.round + 1)]


def failed(reply: Reply, data: bytes) -> list[bytes | Exception]:
    return [RuntimeError("out of memory")]


def too_long(reply: Reply, data: bytes) -> list[bytes | Exception]:
    return [altered(reply, values=reply.values + bytes(1))]


def not_a_number(reply: Reply, data: bytes) -> list[bytes | Exception]:
    values = np.frombuffer(reply.values, "<f4").copy()
    values[0] = np.nan
    return [altered(reply, values=values.tobytes())]


Bad = Callable[[Reply, bytes], list[bytes | Exception]]


def first_replaced(by: Bad) -> Change:
    """What the first client sends is replaced by what is made of it."""

    def change(replies: Replies, round: int, exchange: int) -> Replies:
        (client, data), *rest = replies
        assert isinstance(data, bytes)
        return [*((client, sent) for sent in by(decode_reply(data, 1 << 30), data)), *rest]

    return change


FEDERATIONS: dict[str, dict[str, Any]] = {
    "sync": {"sync": True},
    "pull": {"pull_after": 1},
    "no server model": {"server_model": False},
    "private": {"private": True, "server_model": False},
}


def serves_the_federations_it_accepts(method: Method, folder: Path) -> None:
    """Outcomes sent at once, models pulled, servers without a model, directions that the server cannot make."""
    digests = set()
    for name, options in FEDERATIONS.items():
        try:
            federation = federation_for(method, **options)
            recipe = recipe_of(method, federation)
            prepare(recipe, Environment(secret=b"x"))
        except (FedzeroError, AssertionError):
            continue  # refused, in a sentence
        replays_and_counts(method, folder / name, **options)
        if not federation.private:
            runs_at_sites(method, folder / name, **options)
        for secret in (b"one", b"two") if federation.private else ():
            run = trial(folder / f"{name}-{secret!r}", recipe, secret)
            run.play(4)
            digests.add(run.replica.digest())
    expect(len(digests) != 1, "two secrets of the clients lead to the same model")


def runs_at_sites(method: Method, folder: Path, **options: Any) -> None:
    """At three sites whose link breaks in the middle of rounds: the ledger of the local engine."""
    recipe = recipe_of(method, federation_for(method, **options), rounds=9)
    sites = ["north", "south", "west"]
    here = session.start(recipe, folder / "here", Environment(), Silent())
    remembers = prepare(recipe, Environment()).plan.traits.remembers
    for forgetful in (False,) if remembers else (False, True):  # what clients remember is at the sites alone
        link = LocalSites(folder / f"sites-{forgetful}", sites, {3, 5, 8, 23, 41, 60, 61}.__contains__, forgetful)
        target = folder / f"there-{forgetful}"
        there = run_at_sites(recipe, target, Environment(), Silent(), Service(link, lambda: sites))
        expect(link.epochs > 1, "the link never broke")
        same = (there.ledger_head, there.model_digest) == (here.ledger_head, here.model_digest)
        expect(
            same, "sites end in another ledger than one process" + (", if they lose their folders" if forgetful else "")
        )
        recorded.verified(target, Environment())


def refuses_bad_clients(method: Method, folder: Path, ways: Sequence[Bad] = (not_a_number, failed)) -> None:
    """Who sends nonsense is refused by name, and nothing else is as if it had not been there."""
    recipe, during = recipe_of(method, replicas=True), range(2, 4)
    plan = prepare(recipe, Environment()).plan
    if not isinstance(plan.traits.coder, Plain):  # there may be no way to write NaN
        ways = [too_long if way is not_a_number else way for way in ways]
    for exchange in range(len(plan.cost(0).replies)):
        found = []
        for number, bad in enumerate((lambda reply, data: [], *ways)):
            run = trial(folder / f"{exchange}-{number}", recipe)
            run.engine = Changing(run.engine, first_replaced(bad), exchange, during)
            run.play(6)
            who = tuple(tuple(client for client, _ in r.refused) for r in run.records)
            expect(
                [len(names) for names in who] == [r in during for r in range(6)], f"exchange {exchange}: refused {who}"
            )
            updates = tuple((r.update, r.queries, r.loss, r.remembered) for r in run.records)
            found.append((run.replica.digest(), who, updates, run.memories()))
        same = all(outcome == found[0] for outcome in found)
        expect(same, f"exchange {exchange}: a reply that is refused changes what comes after")


def replays_short_floats(method: Method, folder: Path, kinds: Sequence[torch.dtype] = (torch.bfloat16,)) -> None:
    """Several tensors of 16 bits: live, replayed and on replicas of their own the same."""

    def recast(params: Params) -> Params:
        x = params.vector()
        return Params({"a": x[:33].to(kind), "b": x[33:].to(kind)})

    for kind in kinds:
        runs = [
            trial(folder / f"{kind}-{replicas}", recipe_of(method, replicas=replicas), recast=recast)
            for replicas in (False, True)
        ]
        for run in runs:
            run.play(5)
        expect(runs[0].records == runs[1].records, f"with {kind} models of their own lead to other numbers")
        ends = [bits(run.replica.state) for run in runs] + [bits(runs[0].replayed().state)]
        expect(ends[0] == ends[1] == ends[2], f"with {kind} the run, its replay and replicas end in other bits")


def weighs_who_is_drawn_twice(method: Method, folder: Path, filters: Sequence[Any] = ()) -> None:
    """Sampling with replacement: who is drawn twice works once and counts twice."""
    try:
        federation = federation_for(method, replacement=True)
    except AssertionError:
        return  # the method samples nobody
    if not 1 < federation.cohort < federation.clients:
        return
    runs = [
        trial(folder / str(own), recipe_of(method, federation, filters=filters, replicas=own)) for own in (False, True)
    ]
    for run in runs:
        run.play(5)
    expect(any(len(set(r.cohort)) < len(r.cohort) for r in runs[0].records), "nobody was drawn twice")
    expect(runs[0].records == runs[1].records, "replicas of their own lead to other numbers")
    digests = {run.replica.digest() for run in runs} | {runs[0].replayed().digest()}
    expect(len(digests) == 1, "replicas of their own, or the replay, end in another model")
    uneven = next((r for r in runs[0].records if 1 < len(set(r.cohort)) < len(r.cohort)), None)
    if uneven is None or filters:
        return
    even = trial(folder / "even", recipe_of(method, federation))
    even.play(uneven.round)
    even.server.schedule = Synchronous(lambda step: tuple(sorted(set(uneven.cohort))))
    even.play(1)
    expect(even.records[-1].update != uneven.update, "who is drawn twice counts as if it had been drawn once")


def survives_extreme_numbers(method: Method, folder: Path) -> None:
    """Numbers at the edge of float32, from everybody: rounds that would make the model infinite do not count, and the
    run goes on."""

    def huge(replies: Replies, *_: int) -> Replies:
        changed: Replies = []
        for client, data in replies:
            assert isinstance(data, bytes)
            reply = decode_reply(data, 1 << 30)
            values = np.full(len(reply.values) // 4, 3.4e38, "<f4")
            values[::2] *= -1
            changed.append((client, altered(reply, values=values.tobytes(), loss=struct.pack("<f", 1.0))))
        return changed

    run = trial(folder, recipe_of(method))
    run.play(2)
    run.engine = Changing(run.engine, huge)
    with np.errstate(all="ignore"):
        run.play(10)
        expect(guard.finite(run.replica.state), "the model is not finite any more")
        expect(run.replayed().digest() == run.replica.digest(), "the ledger replays to another model")


def runs_with_a_rate_of_zero(method: Method, folder: Path) -> None:
    """A rate that falls to zero: runs to its end and replays, or is refused before it begins."""
    falling = {"kind": "piecewise", "points": [[0, 2e-3], [3, 0.0]]}
    try:
        tuned = recipes.method(msgspec.to_builtins(method) | {"rate": falling})
        run = trial(folder, recipe_of(tuned, federation_for(method)))
    except FedzeroError as refusal:
        expect("algorithm.rate" in str(refusal), f"the refusal does not name algorithm.rate: {refusal}")
        return
    except msgspec.ValidationError:
        return  # its rate is a constant, or it has none
    run.play(6)
    expect(not any(record.refused for record in run.records), "clients are refused")
    expect(run.replayed().digest() == run.replica.digest(), "the ledger replays to another model")


def solves_a_quadratic(method: Method, folder: Path, filters: Sequence[Any] = (), left: float = 0.02) -> None:
    """Within 2 % of the starting gap in at most 1,500 rounds, at one of four rates; one that gets nowhere is left."""
    gaps = []
    for rate in (0.1, 2e-2, 5e-3, 1e-3) if "rate" in method.__struct_fields__ else (None,):
        tuned = method if rate is None else msgspec.structs.replace(method, rate=rate)
        task = Quadratic(dimension=20, condition=3.0, spread=0.2)
        run = trial(folder / str(rate), recipe_of(tuned, task=task, filters=filters, merge=True))
        start = run.engine.evaluate()[1].loss
        gap, best = 1.0, (1.0, 0)
        while left < gap < 10 and len(run.records) < min(1500, best[1] + 75):
            run.play(5)
            gap = run.engine.evaluate()[1].loss / start
            best = min(best, (gap, len(run.records)))
        gaps.append(gap)
        if gap <= left:
            return
    expect(False, f"left of the starting gap at the rates that were tried: {gaps}")


CHECKS: tuple[Check, ...] = (
    survives_the_ledger,
    replays_and_counts,
    resumes,
    runs_at_sites,
    serves_the_federations_it_accepts,
    refuses_bad_clients,
    replays_short_floats,
    weighs_who_is_drawn_twice,
    survives_extreme_numbers,
    runs_with_a_rate_of_zero,
    solves_a_quadratic,
)
