"""Every method, one contract. No test here may know a method by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from harness import Small, small

from fedzero import session
from fedzero.algorithms import AnyAlgorithm
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.recipe import Local, Recipe
from fedzero.session import Surroundings
from fedzero.tasks import Quadratic
from fedzero.updates import pack
from fedzero.wire import Reply, decode_reply, encode

# What a method needs beyond its defaults to have something to do here: several local steps, all its forms and rules.
CHOICES: dict[str, list[Any]] = {
    "local_steps": [3],
    "form": ["dense", "seeded"],
    "after": ["sync"],
    "optimizer": [{"kind": kind} for kind in ("momentum", "adam", "sign")],
    "distribution": ["rademacher", "sphere", "unit-sphere"],
    "difference": ["central"],
    "samples": ["all"],
    "rule": ["adam", "yogi", "adagrad"],
    "type": ["I"],
    "graph": [{"kind": "ring"}],
    "alpha": [0.0],
}
BOTH_FORMS = ("type", "rule", "graph")
"""Choices that change what is aggregated: tried dense and seeded."""


def variants() -> Iterator[Any]:
    for kind in get_args(AnyAlgorithm):
        fields = set(kind.__struct_fields__)
        base = {"kind": kind.__struct_config__.tag, "rate": 2e-3}
        base |= {name: 2 for name in ("local_steps", "directions") if name in fields}
        base |= {"directions": 5} if "directions" in fields else {}
        base |= {"server_rate": 0.05} if "server_rate" in fields else {}
        yield msgspec.convert(base, AnyAlgorithm)
        for name in sorted(fields & CHOICES.keys()):
            forms = ("dense", "seeded") if name in BOTH_FORMS and "form" in fields else (None,)
            for value in CHOICES[name]:
                for form in forms:
                    yield msgspec.convert(base | {name: value} | ({"form": form} if form else {}), AnyAlgorithm)


VARIANTS = list(variants())


def label(algorithm: Any) -> str:
    fields = msgspec.to_builtins(algorithm)
    defaults = msgspec.to_builtins(VARIANTS[[type(v) for v in VARIANTS].index(type(algorithm))])
    return "-".join([fields["kind"], *(str(v) for k, v in fields.items() if v != defaults[k])])


methods = pytest.mark.parametrize("algorithm", VARIANTS, ids=label)


def federation_for(algorithm: Any) -> dict[str, int]:
    """Ten clients, four of them a round, or what the method insists on."""
    for clients, cohort in ((10, 4), (4, 4), (10, 1), (1, 1)):
        try:
            algorithm.check(clients, cohort, False)
        except FedzeroError:
            continue
        return {"clients": clients, "cohort": cohort}
    raise AssertionError("there is no federation this method takes")


Replies = Iterator[tuple[int, bytes | Exception]]


class Tampering:
    """An engine with one bad client in it, in every exchange or `at` one."""

    def __init__(self, engine: Any, change: Any, at: int | None = None):
        self.engine, self.change, self.at = engine, change, at

    def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Replies:
        replies = list(self.engine.exchange(round, exchange, instructions))
        yield from self.change(replies, round) if self.at in (None, exchange) else replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@methods
def test_replay_equals_the_live_run_bit_for_bit(tmp_path: Path, algorithm) -> None:
    run = small(tmp_path, algorithm, **federation_for(algorithm))
    run.play(13)
    fresh = session.prepare(run.setup.recipe, Surroundings())
    replica = fresh.replica()
    replay.rebuild(run.ledger, replay.read(run.ledger), replica)
    assert replica.digest() == run.replica.digest()
    assert replica.round == run.replica.round == 13


@methods
def test_a_resumed_run_ends_in_the_same_ledger(tmp_path: Path, algorithm) -> None:
    class StopError(Exception):
        pass

    class Quiet:
        def __init__(self, stop: int | None = None):
            self.stop = stop

        def begin(self, *_: Any) -> None: ...
        def evaluation(self, *_: Any) -> None: ...
        def end(self) -> None: ...
        def round(self, record: Any) -> None:
            if record.round == self.stop:
                raise StopError

    recipe = small(tmp_path / "x", algorithm, **federation_for(algorithm)).setup.recipe
    recipe = msgspec.structs.replace(recipe, rounds=14, evaluate_every=3)
    whole = session.start(recipe, tmp_path / "whole", Surroundings(), Quiet())
    for stop in (4, 11):
        folder = tmp_path / f"stop{stop}"
        with pytest.raises(StopError):
            session.start(recipe, folder, Surroundings(), Quiet(stop))
        resumed = session.resume(folder, Surroundings(), Quiet())
        assert resumed["model_digest"] == whole["model_digest"]
        assert resumed["ledger_head"] == whole["ledger_head"]
        session.verified(folder, Surroundings())


@methods
def test_real_replicas_agree_whatever_the_delivery(tmp_path: Path, algorithm) -> None:
    shared = small(tmp_path / "shared", algorithm, **federation_for(algorithm))
    real = small(tmp_path / "real", algorithm, replicas=True, **federation_for(algorithm))
    shared.play(10)
    real.play(10)
    assert not any(r.refused for r in real.records)
    assert shared.records == real.records
    assert shared.replica.digest() == real.replica.digest()


@methods
def test_order_of_replies_does_not_matter(tmp_path: Path, algorithm) -> None:
    runs: list[Small] = []
    for name, change in (("straight", lambda r, _: r), ("reversed", lambda r, _: r[::-1])):
        run = small(tmp_path / name, algorithm, **federation_for(algorithm))
        run.engine = Tampering(run.engine, change)
        run.play(6)
        runs.append(run)
    assert runs[0].replica.digest() == runs[1].replica.digest()
    assert runs[0].ledger.head == runs[1].ledger.head


@methods
def test_bytes_are_the_encoded_sizes_and_queries_are_counted(tmp_path: Path, algorithm) -> None:
    run = small(tmp_path, algorithm, **federation_for(algorithm))
    seen = {"up": 0, "down": 0, "queries": 0}

    class Meter(Tampering):
        def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Replies:
            seen["down"] += sum(map(len, instructions.values()))
            for client, data in self.engine.exchange(round, exchange, instructions):
                seen["up"] += len(data)
                yield client, data

        def close(self, round: int, update: Any, closings: Mapping[int, bytes]) -> None:
            seen["down"] += sum(map(len, closings.values()))
            self.engine.close(round, update, closings)

    run.engine = Meter(run.engine, None)
    run.play(8)
    seen["queries"] = sum(o.queries for o in run.engine.engine.oracles)
    assert seen["up"] == sum(r.bytes_up for r in run.records)
    assert seen["down"] == sum(r.bytes_down for r in run.records)
    assert seen["queries"] == sum(r.queries for r in run.records) > 0


def spoil(kind: str, data: bytes, round: int) -> list[bytes | Exception]:
    """What a bad client sends instead of `data`."""
    good = decode_reply(data, 1 << 20)
    values = np.frombuffer(good.values, "<f4").copy()

    def again(**changes: Any) -> bytes:
        return encode(Reply(**({f: getattr(good, f) for f in good.__struct_fields__} | changes)))

    if kind in ("nan", "infinity"):
        values[0] = np.nan if kind == "nan" else np.inf
        return [again(values=pack(values))]
    return {
        "silent": [],
        "failed": [RuntimeError("out of memory")],
        "late": [again(round=round + 1)],
        "stale": [again(round=max(round - 1, 0) if round else 7)],
        "short": [again(values=pack(values[:-1]))],
        "long": [again(values=pack(np.append(values, 1).astype(np.float32)))],
        "diverged": [again(digest=b"otherone")],
        "garbage": [b"\xff" * 40],
        "oversize": [data + bytes(1 << 16)],
        "nan loss": [again(loss=pack(np.array([np.nan], np.float32)))],
        "twice": [data, again(values=pack(values * 2))],
    }[kind]


KINDS = ["silent", "failed", "late", "stale", "short", "long", "diverged", "garbage", "oversize", "nan loss", "nan"]


@methods
@pytest.mark.parametrize("kind", [*KINDS, "infinity"])
@pytest.mark.parametrize("exchange", [0, 1])
def test_a_bad_client_is_refused_by_name_and_the_round_goes_on(tmp_path: Path, algorithm, kind, exchange) -> None:
    if exchange >= algorithm.exchanges:
        pytest.skip("this method has one exchange a round")
    places = federation_for(algorithm)
    run, clean = (small(tmp_path / n, algorithm, **places) for n in ("bad", "clean"))
    bad: list[int] = []

    def change(replies: list[tuple[int, bytes]], round: int) -> list[tuple[int, bytes | Exception]]:
        (client, data), *rest = replies
        bad.append(client)
        return [*((client, sent) for sent in spoil(kind, data, round)), *rest]

    run.engine = Tampering(run.engine, change, exchange)
    run.play(3)
    for record, client in zip(run.records, bad, strict=True):
        assert [c for c, _ in record.refused] == [client], record.refused
    if places["cohort"] > 1:
        assert all(r.update is not None for r in run.records)
        clean.play(3)
        assert run.replica.digest() != clean.replica.digest(), "the others' answers alone make another model"
    else:
        assert all(r.update is None for r in run.records)
        assert run.replica.digest() == clean.replica.digest()


@methods
def test_of_two_answers_the_first_counts(tmp_path: Path, algorithm) -> None:
    twice, once = (small(tmp_path / n, algorithm, **federation_for(algorithm)) for n in ("twice", "once"))

    def change(replies: list[tuple[int, bytes]], round: int) -> list[tuple[int, bytes | Exception]]:
        (client, data), *rest = replies
        return [*((client, sent) for sent in spoil("twice", data, round)), *rest]

    twice.engine = Tampering(twice.engine, change)
    twice.play(3)
    once.play(3)
    assert twice.replica.digest() == once.replica.digest()


@methods
def test_it_solves_a_strongly_convex_quadratic(tmp_path: Path, algorithm) -> None:
    """Within 2 % of the starting gap in at most 1,500 rounds, at one of three rates."""
    gaps = []
    for rate in (2e-2, 5e-3, 1e-3):
        task = Quadratic(dimension=20, condition=3.0, spread=0.2)
        tuned = msgspec.structs.replace(algorithm, rate=rate)
        run = small(tmp_path / str(rate), tuned, task=task, merge=True, **federation_for(algorithm))
        start = run.engine.evaluate()[1].loss
        gap = 1.0
        while 0.02 < gap < 10 and len(run.records) < 1500:
            run.play(50)
            gap = run.engine.evaluate()[1].loss / start
        gaps.append(gap)
        if gap <= 0.02:
            return
    pytest.fail(f"left of the gap at the three rates: {gaps}")


@methods
def test_recipes_survive_the_ledger(tmp_path: Path, algorithm) -> None:
    recipe = Recipe(
        name="r",
        rounds=1,
        algorithm=algorithm,
        task=Quadratic(),
        federation=small(tmp_path, algorithm, **federation_for(algorithm)).setup.recipe.federation,
        engine=Local(),
    )
    from fedzero.recipe import canonical, from_canonical

    assert from_canonical(canonical(recipe)) == recipe
