"""Whether an answer is right, and if it is not, which mistake explains it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from fedzero.directions import Rule
from fedzero.directions.terms import F32
from fedzero.engines.devices import messages as m
from fedzero.engines.devices import statements
from fedzero.engines.devices.session import Asked
from fedzero.engines.devices.signing import Verifier
from fedzero.errors import Refused
from fedzero.protocol.messages import Reply, decode_reply
from fedzero.testing.devices import model as models
from fedzero.testing.devices import turn as turns
from fedzero.testing.devices.settings import Run
from fedzero.testing.devices.wrong import Wrong, shortest

if TYPE_CHECKING:
    from fedzero.testing.devices.trial import Trial

LAST = 8
"""Places of a number that are shown."""


def judge_digest(run: Run, found: bytes, name: str) -> None:
    """The digest of the server's model; of another one, say which."""
    right = run.replica.digest()
    if found == right:
        return
    plan = run.plan
    begun = models.state_of(plan, run.first)
    if run.round and found == models.digest(plan, begun):
        why = "it is that of the first model: the updates were not folded"
    elif found == right[::-1]:
        why = "its bytes are in reverse"
    else:
        why = _or(why for mistake, why in models.FOLDING.items() if digest_with(run, mistake) == found)
    if not why:
        why = next((f"it lacks the update of round {r}" for r in range(run.round) if _without(run, r) == found), "")
    if not why and run.round:
        twice = models.followed(plan, begun, [*run.history(), run.history()[-1]])
        why = "the last update was folded twice" if models.digest(plan, twice) == found else ""
    known = why or ("that of no mistake that is known here" if run.round else "the first model is another one")
    section = "updates-and-recovery" if run.round else "the-plan"
    raise Wrong(f"{name} of round {run.round} has the digest {found.hex()}, not {right.hex()}: {known}", section)


def _or(found: Iterable[str]) -> str:
    """Mistakes that have the same result cannot be told apart."""
    return "; or ".join(found)


def digest_with(run: Run, mistake: str) -> bytes:
    if mistake.startswith(("no momentum", "β′", "M begins", "momentum")) and run.plan.method.rule != Rule.MOMENTUM:
        return b""
    return models.digest(
        run.plan, models.followed(run.plan, models.state_of(run.plan, run.first), run.history(), mistake)
    )


def _without(run: Run, round: int) -> bytes:
    some = [update for update in run.history() if update[0] != round]
    return models.digest(run.plan, models.followed(run.plan, models.state_of(run.plan, run.first), some))


def judge_answer(trial: Trial, asked: Asked, answer: m.Answer) -> Reply:
    """Numbers, encoding, digest, queries, values and loss of the answer to an order."""
    run, numbers = trial.run, (answer.round, answer.exchange, answer.attempt)
    if numbers != (asked.round, asked.exchange, asked.attempt):
        raise Wrong(f"the answer has the numbers {numbers}, and the order {asked.round, 0, asked.attempt}", "frames")
    judge_signature(trial, asked, answer)
    shortest(answer.body, "the reply")
    try:
        reply = decode_reply(answer.body, asked.limit)
    except Refused as error:
        raise Wrong(f"the body of the answer is no reply: {error}", "a-turn") from None
    if (reply.round, reply.exchange) != (asked.round, 0):
        raise Wrong(f"the reply has round {reply.round}, exchange {reply.exchange}, not {asked.round}, 0", "a-turn")
    judge_digest(run, reply.digest, "the reply")
    method = run.plan.method
    count = method.steps * method.directions
    if len(reply.values) != 4 * count or len(reply.loss) != 4:
        what = f"the reply has {len(reply.values)} bytes of values and {len(reply.loss)} of the loss"
        raise Wrong(f"{what}, not {4 * count} and 4", "a-turn")
    if reply.memory:
        raise Wrong("the reply has the digest of a memory: a device has none", "a-turn")
    judge_values(run, trial.place, reply)
    return reply


def judge_signature(trial: Trial, asked: Asked, answer: m.Answer) -> None:
    """The gateway verifies it, too; here wrong statements are tried, to say which one was signed."""
    run, place, verify = trial.desk.run, trial.place, Verifier(trial.algorithm, trial.key)
    numbers = asked.round, asked.exchange, asked.attempt
    if verify(statements.answer(run, place, *numbers, asked.body, answer.body), answer.signature):
        return
    hashed, little = sha256(asked.body).digest(), struct.pack("<QII", *numbers)
    whole = m.encode(m.Order(*numbers, asked.body, bytes(64)))
    make: Callable[[bytes], bytes] = lambda payload: statements.statement("answer", run, place, payload)  # noqa: E731
    tried = {
        "without the SHA-256 of the order": make(little + answer.body),
        "with the body of the order itself, not its SHA-256": make(little + asked.body + answer.body),
        "with the SHA-256 of the answer's body, not of the order's": make(
            little + sha256(answer.body).digest() + answer.body
        ),
        "with the SHA-256 of the whole Order, not of its body": make(little + sha256(whole).digest() + answer.body),
        "with the SHA-256 of the answer's body behind that of the order": make(
            little + hashed + sha256(answer.body).digest()
        ),
        "with numbers that are big-endian": make(struct.pack(">QII", *numbers) + hashed + answer.body),
        "with the place 0": statements.answer(run, 0, *numbers, asked.body, answer.body),
        "without its domain": statements.answer(run, place, *numbers, asked.body, answer.body)[
            len(statements.DOMAIN) :
        ],
        "of the kind order": statements.statement("order", run, place, little + hashed + answer.body),
    }
    why = next((f"it is {how}" for how, statement in tried.items() if verify(statement, answer.signature)), "")
    raise Wrong(f"the signature of the answer is wrong{f': {why}' if why else ''}", "signatures")


# ---- numbers


def judge_values(run: Run, place: int, reply: Reply) -> None:
    plan, values = run.plan, np.frombuffer(reply.values, "<f4").astype(np.float32)
    (loss,) = struct.unpack("<f", reply.loss)
    state = models.state_of(plan, run.replica.state.to_bytes())
    rate, own = run.rate(run.round), None if run.setting.exact or plan.method.clip else values

    def made(mistake: str) -> turns.Turn:
        return turns.turn(plan, state, (run.x, run.y), place, run.round, rate, own, mistake)

    right = made(models.RIGHT)
    if reply.queries != right.queries:
        what = f"the reply counts {reply.queries} queries, and {right.queries} evaluations make the turn"
        other = "the other difference"
        why = f": {turns.TURNS[other]}" if made(other).queries == reply.queries else ""
        raise Wrong(what + why, "a-turn")
    if not np.isfinite(values).all() or not math.isfinite(loss):
        raise Wrong("the reply has NaN or infinity", "a-turn")
    exact = run.setting.exact
    if _agrees(right, values, loss, exact):
        return
    known = {**turns.TURNS, **models.FOLDING}
    why = _or(why for mistake, why in known.items() if _agrees(made(mistake), values, loss, exact))
    raise Wrong(f"{_difference(right, values, loss, exact)}: {why or 'no mistake that is known here'}", "a-turn")


def _agrees(turn: turns.Turn, values: F32, loss: float, exact: bool) -> bool:
    wanted = turn.values.astype(np.float32)
    if exact:
        return bool((wanted == values).all()) and float(np.float32(turn.loss)) == loss
    near = abs(values - turn.values) <= turn.error
    return bool(near.all()) and abs(loss - turn.loss) <= turn.loss_error + turns.U * abs(turn.loss)


def _difference(turn: turns.Turn, values: F32, loss: float, exact: bool) -> str:
    wanted = turn.values.astype(np.float32)
    far = wanted != values if exact else abs(values - turn.values) > turn.error
    if not far.any():
        return f"the loss is {loss:.{LAST}g}, not {turn.loss:.{LAST}g}"
    i = int(np.argmax(far))
    within = "to the bit" if exact else f"within {turn.error[i]:.2g}"
    found, right = float(values[i]), float(wanted[i])
    many = f"{int(far.sum())} of {len(far)} differ"
    return f"number {i} of the values is {found:.{LAST}g}, not {right:.{LAST}g} {within} ({many})"
