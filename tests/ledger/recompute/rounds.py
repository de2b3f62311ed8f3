"""What every round has: cohort, rates, messages and their lengths, the mean (docs/ledger.md, "A round")."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from recompute.generator import Generator

encode = msgspec.msgpack.encode


def cohort(recipe: Mapping[str, Any], root: bytes, round: int) -> list[int]:
    n, m, again = (recipe["federation"][name] for name in ("clients", "cohort", "replacement"))
    if m == n and not again:
        return list(range(n))
    draw = Generator(root, "cohort", round)
    return sorted([draw.below(n) for _ in range(m)] if again else draw.chosen(n, m))


def rate_at(rate: Any, round: int) -> float:
    if not isinstance(rate, dict):
        return float(rate)
    if rate["kind"] == "inverse-sqrt":
        return float(rate["start"] / math.sqrt(round + 1))
    if rate["kind"] != "piecewise":
        return _of_own_length(rate, round)
    points = rate["points"]
    if round <= points[0][0]:
        return float(points[0][1])
    for (left, start), (right, end) in pairwise(points):
        if round <= right:
            return float(start + (end - start) * ((round - left) / (right - left)))
    return float(points[-1][1])


def _of_own_length(rate: Mapping[str, Any], round: int) -> float:
    if rate["kind"] == "cosine":
        return float(rate["end"] + (rate["start"] - rate["end"]) * half_cosine(round, rate["rounds"]))
    if rate["kind"] == "exponential":
        power = 1.0
        for bit, square in _squares(rate["factor"], round // rate["every"]):
            power = power * square if bit else power
        return float(max(rate["end"], rate["start"] * power))
    if rate["kind"] == "one-cycle":
        first, last, rise = rate["start"], rate["peak"], rate["rise"]
        if round < rise:
            return float(last + (first - last) * half_cosine(round, rise))
        first, last = last, rate["end"]
        return float(last + (first - last) * half_cosine(round - rise, rate["rounds"] - rise))
    assert rate["kind"] == "warmup"
    if round < (length := rate["rounds"]):
        return rate_at(rate["then"], 0) * ((round + 1) / (length + 1))
    return rate_at(rate["then"], round - length)


def half_cosine(n: int, m: int) -> float:
    """cos²(π/2 · n/m): the digits of n/m by shifts, 53 behind the point."""
    if n >= m:
        return 0.0
    c, s, C, S = 1.0, 0.0, 0.0, 1.0
    for i in range(1, 54):
        C = math.sqrt((1.0 + C) / 2.0)
        S = S / (2.0 * C)
        if ((n << i) // m) & 1:
            c, s = c * C - s * S, s * C + c * S
    return c * c


def _squares(factor: float, power: int) -> Iterator[tuple[bool, float]]:
    """(whether it is 1, factor^(2^i)) for every binary digit i of `power`."""
    while power:
        yield bool(power & 1), factor
        factor, power = factor * factor, power >> 1


def mean(given: Mapping[int, np.ndarray], weights: Mapping[int, int]) -> np.ndarray:
    total = np.zeros(len(next(iter(given.values()))))
    for client in sorted(given):
        total += weights[client] * given[client].astype(np.float64)
    return (total / sum(weights[client] for client in given)).astype(np.float32)


def bounded(given: Mapping[int, np.ndarray], factor: float) -> tuple[dict[int, np.ndarray], list[int]]:
    """Contributions no longer than `factor` times the median, and whose were."""
    norms = {c: math.sqrt(np.square(v, dtype=np.float64).sum()) for c, v in given.items()}
    if not factor or len(norms) < 3:
        return dict(given), []
    longest = factor * sorted(norms.values())[len(norms) // 2]
    outside = [c for c in sorted(norms) if norms[c] > longest]
    shorter = {c: (given[c].astype(np.float64) * (longest / norms[c])).astype(np.float32) for c in outside}
    return dict(given) | shorter, outside


def length_of_replies(round: int, cohort: Sequence[int], numbers: int, queries: int) -> int:
    reply = [round, 0, bytes(8), bytes(4 * numbers), bytes(4), queries]
    return len(set(cohort)) * len(encode(reply))


def length_of_catch_up(rounds: Sequence[Mapping[str, Any]], round: int) -> int:
    """Of what the clients who are asked in a round are sent: everything since the last question that each answered."""
    total, answered = 0, {c: asked for each in questions(rounds[:round]) for c, asked in each.items()}
    for client in asked_in(rounds[round]):
        known = answered.get(client, 0)
        missed = [msgspec.msgpack.decode(r["update"]) for r in rounds[known:round] if r["update"] is not None]
        total += len(encode([1, round, 0, missed]))
    return total


def expected_costs(
    recipe: Mapping[str, Any], round: int, before: bytes | None, numbers: int, queries: int
) -> list[int]:
    """`bytes_up`, `bytes_down`, `queries` of a round with [privacy], central noise: clients that are expected to
    answer, times what one of them sends (int32 if sums fit) and evaluates; every client is sent the update before.
    Where hosts draw, all clients answer, and each host sends one sum."""
    clients, privacy = recipe["federation"]["clients"], recipe["privacy"]
    q = privacy.get("probability", recipe["federation"]["cohort"] / clients)
    asked = q * clients if privacy["unit"] == "client" else clients
    reply = len(encode([round, 0, bytes(8), b"", b"", queries]))
    hosts = privacy.get("hosts")
    up = asked * (reply + 4 * numbers) if hosts is None else clients * reply + hosts * 4 * numbers
    sent = encode([1, round, 0, [] if before is None else [msgspec.msgpack.decode(before)]])
    return [_rounded(up), clients * len(sent), _rounded(asked * queries)]


def _rounded(number: float) -> int:
    return int(np.rint(number))


def asked_in(record: Mapping[str, Any]) -> set[int]:
    return set(record.get("asked", record["cohort"]))


def questions(rounds: Sequence[Mapping[str, Any]]) -> Iterator[dict[int, int]]:
    """Of every round, by client that counts in it, the round whose question it answered."""
    waiting: dict[int, int] = {}
    for record in rounds:
        assert not waiting.keys() & asked_in(record)
        waiting |= dict.fromkeys(asked_in(record), record["round"])
        ended = {client: waiting.pop(client) for client in set(record["cohort"])}
        refused = {client for client, _ in record["refused"]}
        yield {client: asked for client, asked in sorted(ended.items()) if client not in refused}


def length_of_snapshots(round: int, cohort: Sequence[int], state: int) -> int:
    return len(set(cohort)) * len(encode([2, round, 0, 0, bytes(state), None]))


def weights(cohort: Sequence[int]) -> Counter[int]:
    return Counter(cohort)
