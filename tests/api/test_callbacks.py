"""Callbacks: what they are told, and runs that they end or pause, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fedzero
from fedzero.errors import FedzeroError, Invalid
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import End, Evaluation, Round, Start
from fedzero.ledger.store import Entry, Ledger, Tampered
from fedzero.runs import checkpointer
from told import RECIPE, ROUNDS


class Crash(Exception):
    """The process ends here."""


class Told(fedzero.Callback):
    """Keeps what it is told; answers at one moment. at: (method, rounds)."""

    def __init__(self, at: tuple[str, int] | None = None, answer: Callable[[], Any] = lambda: None):
        self.at, self.answer, self.seen = at, answer, list[tuple[str, Any]]()

    def _note(self, name: str, info: Any) -> Any:
        self.seen.append((name, info))
        return self.answer() if self.at == (name, info.rounds) else None

    def begin(self, run: Any) -> Any:
        return self._note("begin", run)

    def round(self, result: Any) -> Any:
        return self._note("round", result)

    def evaluation(self, result: Any) -> Any:
        return self._note("evaluation", result)

    def checkpoint(self, written: Any) -> Any:
        return self._note("checkpoint", written)

    def end(self, result: Any) -> Any:
        return self._note("end", result)

    @property
    def moments(self) -> list[tuple[str, int]]:
        return [(name, info.rounds) for name, info in self.seen]


def stopping() -> Any:
    return fedzero.Stop("enough of it")


def fail() -> Any:
    raise Crash


def run(folder: Path, *callbacks: Any, **more: Any) -> fedzero.Run:
    return fedzero.run(RECIPE | more, out=folder, progress=False, callbacks=callbacks)


def entries(folder: Path) -> list[Entry]:
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        return list(ledger.entries())


def head(folder: Path) -> str:
    return fedzero.Run.open(folder).summary.ledger_head


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> fedzero.Run:
    """The run of which nobody is told."""
    return run(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def undisturbed(plain: fedzero.Run) -> str:
    """Its head."""
    return plain.summary.ledger_head


def test_a_callback_is_told_all_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer.checkpoints, "EVERY", 3)
    told = Told()
    found = run(tmp_path / "run", told)
    assert told.moments == [
        *(("begin", 0), ("evaluation", 0), ("round", 1), ("round", 2), ("round", 3), ("evaluation", 3)),
        *(("checkpoint", 3), ("round", 4), ("round", 5), ("round", 6), ("evaluation", 6), ("checkpoint", 6)),
        *(("round", 7), ("round", 8), ("round", 9), ("evaluation", 9), ("checkpoint", 9), ("end", 9)),
    ]
    by = dict(told.seen)
    assert (by["begin"].name, by["begin"].planned, by["begin"].clients) == ("told", ROUNDS, 3)
    assert by["begin"].config["algorithm.rate"] == "0.01"
    summary = found.summary
    assert by["evaluation"].metrics["loss"] == summary.final_loss
    assert by["end"].totals.bytes == round(3 * (summary.bytes_up_per_client + summary.bytes_down_per_client))
    assert (by["end"].complete, by["end"].reason, by["end"].totals.queries) == (True, "", summary.queries)
    rounds = [info for name, info in told.seen if name == "round"]
    assert sum(each.bytes_up for each in rounds) == by["end"].totals.bytes_up


def test_it_can_change_nothing(tmp_path: Path) -> None:
    told = Told()
    run(tmp_path / "run", told)
    for _, info in told.seen:
        with pytest.raises(AttributeError):
            info.rounds = 5
    for mapping in (dict(told.seen)["begin"].config, dict(told.seen)["evaluation"].metrics):
        with pytest.raises(TypeError):
            mapping["loss"] = 0.0  # type: ignore[index]


def test_some_of_the_methods_are_enough(tmp_path: Path) -> None:
    class Short:
        def round(self, result: Any) -> Any:
            return fedzero.Stop("two") if result.rounds == 2 else None

    assert run(tmp_path / "run", Short()).summary.rounds == 2


@pytest.mark.parametrize("at", [("round", 4), ("round", 6), ("evaluation", 0), ("evaluation", 6)])
def test_a_stop_is_on_the_ledger(tmp_path: Path, at: tuple[str, int]) -> None:
    found = run(tmp_path / "run", Told(at, stopping))
    summary, records = found.summary, [entry.record for entry in entries(tmp_path / "run")]
    assert (summary.rounds, summary.complete, summary.reason) == (at[1], True, "enough of it")
    *_, evaluation, end = records
    assert isinstance(evaluation, Evaluation) and isinstance(end, End) and end.model == evaluation.model
    found.verify()
    before = summary.ledger_head
    assert found.resume(progress=False).summary.ledger_head == before == run(tmp_path / "run").summary.ledger_head


def test_the_reason_is_written_with_its_record(tmp_path: Path) -> None:
    """Entries of one transaction have the same time."""
    run(tmp_path / "a", Told(("evaluation", 6), stopping))
    *_, evaluation, end = entries(tmp_path / "a")
    assert evaluation.at == end.at
    run(tmp_path / "b", Told(("round", 4), stopping))
    rounds = [entry.record for entry in entries(tmp_path / "b") if isinstance(entry.record, Round)]
    assert [each.stopped or "" for each in rounds] == ["", "", "", "enough of it"]


@pytest.mark.covered
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [("round", 4), ("evaluation", 3)], ids=["round", "evaluation"])
def test_a_crash_at_any_write_leads_to_the_same_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[str, int], after: bool
) -> None:
    run(tmp_path / "whole", Told(at, stopping))
    wanted, append, writes = head(tmp_path / "whole"), Ledger.append, 0
    for place in range(1, 100):
        folder, left, durable = tmp_path / f"{place}", place, False

        def crashing(self: Ledger, records: Any, *more: Any, **named: Any) -> None:
            nonlocal left, durable
            left -= 1
            if left < 0 and not after:
                raise Crash
            append(self, records, *more, **named)
            durable = durable or any(isinstance(each, End) or getattr(each, "stopped", "") for each in records)
            if left < 0:
                raise Crash

        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "append", crashing)
            try:
                run(folder, Told(at, stopping))
                break
            except Crash:
                writes += 1
        run(folder, *([] if durable else [Told(at, stopping)]))
        assert head(folder) == wanted, place
        fedzero.Run.open(folder).verify()
    assert writes >= 4


def test_a_stop_after_the_last_round_is_none(tmp_path: Path, undisturbed: str) -> None:
    for name in ("round", "evaluation"):
        summary = run(tmp_path / name, Told((name, ROUNDS), stopping)).summary
        assert (summary.rounds, summary.complete, summary.reason) == (ROUNDS, True, "")
    assert head(tmp_path / "round") == undisturbed


@pytest.mark.parametrize("at", [("round", 4), ("round", 6), ("round", ROUNDS), ("evaluation", 0), ("evaluation", 6)])
def test_a_pause_can_be_resumed(tmp_path: Path, undisturbed: str, at: tuple[str, int]) -> None:
    told = Told(at, fedzero.Pause)
    found = run(tmp_path / "run", told)
    assert (found.summary.rounds, found.summary.complete) == (at[1], False)
    assert told.seen[-1][0] == "end" and not told.seen[-1][1].complete
    assert not (tmp_path / "run" / MODEL).exists()
    found.verify()
    assert found.resume(progress=False).summary.complete
    assert head(tmp_path / "run") == undisturbed


def test_a_stop_comes_before_a_pause_and_the_first_reason_counts(tmp_path: Path) -> None:
    other = Told(("round", 2), lambda: fedzero.Stop("later"))
    found = run(tmp_path, Told(("round", 2), fedzero.Pause), Told(("round", 2), stopping), other)
    assert found.summary.reason == "enough of it" and found.summary.complete


@pytest.mark.parametrize("name", ["begin", "round", "evaluation", "checkpoint", "end"])
def test_an_exception_ends_the_call_and_no_more(
    tmp_path: Path, name: str, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer.checkpoints, "EVERY", 3)
    rounds = {"begin": 0, "round": 4, "evaluation": 3, "checkpoint": 3, "end": ROUNDS}[name]
    failing, other = Told((name, rounds), fail), Told()
    with pytest.raises(Crash):
        run(tmp_path / "run", other, failing)
    assert [told.moments.count(("end", rounds)) for told in (other, failing)] == [1, 1]
    assert len([e for e in entries(tmp_path / "run") if isinstance(e.record, Round)]) == rounds  # the last one, too
    assert run(tmp_path / "run").summary.complete
    assert head(tmp_path / "run") == undisturbed


def test_a_stop_counts_although_another_callback_fails(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        run(tmp_path, Told(("round", 4), stopping), Told(("round", 4), fail))
    assert run(tmp_path).summary.reason == "enough of it"


@pytest.mark.parametrize("answer", [True, "stop", fedzero.Stop])
def test_other_answers_are_refused(tmp_path: Path, answer: Any) -> None:
    with pytest.raises(FedzeroError, match=r"Told\.round returned .*return fedzero\.Stop\(reason\)"):
        run(tmp_path, Told(("round", 1), lambda: answer))


@pytest.mark.parametrize("wrong", ["", " \n", 3, None])
def test_a_stop_has_a_reason(wrong: Any) -> None:
    with pytest.raises(Invalid, match="reason"):
        fedzero.Stop(wrong)


@pytest.mark.parametrize("wrong", [Told, "x", [3], [Told]])
def test_what_is_no_callback_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(Invalid, match="callbacks"):
        fedzero.run(RECIPE, out=tmp_path / "run", callbacks=wrong)
    assert not (tmp_path / "run").exists()


def test_every_verb_takes_them(tmp_path: Path) -> None:
    found = fedzero.minimise(
        [lambda x: float(x @ x)] * 2, [(-1, 1)] * 2, rounds=6, out=tmp_path, callbacks=[Told(("round", 1), stopping)]
    )
    assert found.queries and fedzero.Run.open(tmp_path).summary.reason == "enough of it"


def test_a_round_after_the_stop_is_no_ledger_of_a_run() -> None:
    start = Start(b'{"rounds":9,"federation":{"clients":3}}', b"8 bytes.", 4, 1, None)
    stopped = Round(0, (1,), None, False, 1, 1, 1, 0.5, stopped="enough")
    for after in (Round(1, (1,), None, False, 1, 1, 1, 0.5), End(1, b"8 bytes.", "another"), End(1, b"8 bytes.")):
        outline = LedgerSummary()
        outline.note(start, b"", 0.0)
        outline.note(stopped, b"", 0.0)
        with pytest.raises(Tampered):
            outline.note(after, b"", 0.0)


# -- those that come with fedzero ----------------------------------------------------------------------------------


def losses(folder: Path) -> list[float]:
    return [e.record.metrics.loss for e in entries(folder) if isinstance(e.record, Evaluation)]


def test_early_stopping_agrees_with_that_of_recipes(tmp_path: Path) -> None:
    """Too large a rate: no loss is better than the first."""
    wild = {"algorithm": {"kind": "decomfl", "rate": 10.0}}
    ours = run(tmp_path / "ours", fedzero.EarlyStopping(patience=2), **wild).summary
    theirs = run(tmp_path / "theirs", stop={"patience": 2}, **wild).summary
    assert (ours.rounds, ours.model_digest) == (theirs.rounds, theirs.model_digest) and ours.rounds < ROUNDS
    assert "in 2 evaluations" in ours.reason


def test_early_stopping_wants_more_than_the_least_delta(tmp_path: Path, plain: fedzero.Run) -> None:
    assert losses(plain.folder) == sorted(losses(plain.folder), reverse=True)
    assert run(tmp_path / "a", fedzero.EarlyStopping(patience=1, least_delta=1e9)).summary.rounds == 3
    assert run(tmp_path / "b", fedzero.EarlyStopping(patience=1)).summary.rounds == ROUNDS


@pytest.mark.parametrize(
    "made",
    [
        lambda losses: fedzero.EarlyStopping(patience=2, least_delta=1e9),
        lambda losses: fedzero.Target("loss", losses[2]),
        lambda losses: fedzero.Budget(bytes=500),
    ],
    ids=["early", "target", "budget"],
)
def test_a_resumed_run_ends_where_an_undisturbed_one_does(tmp_path: Path, plain: fedzero.Run, made: Any) -> None:
    known = losses(plain.folder)
    whole = run(tmp_path / "whole", made(known)).summary
    assert 3 <= whole.rounds < ROUNDS and whole.reason
    run(tmp_path / "run", made(known), Told(("round", 2), fedzero.Pause))
    with pytest.raises(Crash):
        run(tmp_path / "run", Told(("round", 3), fail), made(known))
    again = made(known)
    assert run(tmp_path / "run", again).summary.ledger_head == whole.ledger_head
    assert run(tmp_path / "other", again).summary.ledger_head == whole.ledger_head  # its state is that of a run


def test_a_budget_of_seconds(tmp_path: Path) -> None:
    summary = run(tmp_path, fedzero.Budget(seconds=1e-9)).summary
    assert summary.rounds == 1 and "the budget is 1e-09" in summary.reason


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: fedzero.EarlyStopping(patience=0),
        lambda: fedzero.EarlyStopping("perplexity"),
        lambda: fedzero.Target("loss", float("nan")),
        fedzero.Budget,
    ],
)
def test_settings_that_make_no_sense(wrong: Callable[[], Any]) -> None:
    with pytest.raises(Invalid):
        wrong()


def test_an_unknown_metric_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedzeroError, match="no metric 'f1' was evaluated: there are"):
        run(tmp_path, fedzero.Target("f1", 0.9, higher=True))
