"""One site that is slow, wrong or hostile: the others go on, it is named, and the model is the right one."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec
import pytest
from harness import recipe_of

from fedzero.callbacks import always_false
from fedzero.deploy.flare.backoff import WELL, BackOff
from fedzero.deploy.server import conduct as conducting
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote import measuring
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Done, Failed, Measured, Prepared, Replies, decode_answer, encode
from fedzero.engines.remote.transport import Enough, Pending
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.store import Ledger
from fedzero.methods import DeComFL
from fedzero.oracles import Metrics
from fedzero.protocol.messages import Reply
from fedzero.recipe.environment import Environment
from fedzero.rounds.votes import leading, of_groups, sides
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites

SITES = ["north", "south", "west"]


def recipe_for(rounds=8, clients=6, server_model=False, **options):
    options = {"algorithm": DeComFL(rate=2e-3, directions=4), "clients": clients, "cohort": clients, **options}
    made = recipe_of(server_model=server_model, **options)
    return msgspec.structs.replace(made, rounds=rounds, evaluate_every=4)


def run(tmp_path: Path, link: LocalSites, recipe=None, sites=SITES, **service):
    said: list[str] = []
    service = {"report": said.append, "patience": 0.0, **service}
    found = run_at_sites(recipe, tmp_path / "run", Environment(), Silent(), Service(link, lambda: sites, **service))
    return found, said


def view_of(tmp_path: Path) -> replay.LedgerView:
    ledger = Ledger.open(tmp_path / "run" / "ledger.db")
    try:
        return replay.read(ledger)
    finally:
        ledger.close()


def alone(tmp_path: Path, recipe):
    return session.start(recipe, tmp_path / "alone", Environment(), Silent())


def spoiling(link: LocalSites, kind, change, sites=("south",)) -> LocalSites:
    """Answers of a kind from some sites are changed."""

    def spoil(site: str, data: bytes) -> bytes:
        answer = decode_answer(data)
        return change(answer) if site in sites and isinstance(answer, kind) else data

    link.spoil = spoil
    return link


def with_digest(digest: bytes):
    """Replies that say that they were computed on another model."""

    def change(answer: Replies) -> bytes:
        replies = {c: msgspec.msgpack.decode(data, type=Reply) for c, data in answer.replies.items()}
        changed = {c: msgspec.structs.replace(reply, digest=digest) for c, reply in replies.items()}
        return encode(Replies({c: msgspec.msgpack.encode(reply) for c, reply in changed.items()}, answer.failed))

    return change


# ---- waiting


class Slow(LocalSites):
    """Answers of a kind from south come only after so many answers of the others; never, for one. Who asks for them
    must say when it is enough, and soon."""

    def __init__(self, folder, kind, after):
        super().__init__(folder, SITES)
        self.kind, self.after, self.kept = kind, after, []

    def ask(self, orders, seconds, limit, enough=always_false):
        slow = None
        for site, data in super().ask(orders, seconds, limit, enough):
            if site == "south" and self.asked < self.after and isinstance(decode_answer(data), self.kind):
                slow = data
            else:
                yield site, data
        if slow is not None:
            end = time.monotonic() + 100
            while not enough():
                assert time.monotonic() < end, f"the others wait for it, up to {seconds} s"
                time.sleep(0.01)
            self.kept.append(("south", slow))
            yield "south", Pending("has not answered yet")

    def late(self):
        if self.asked >= self.after and self.kept:
            kept, self.kept = self.kept, []
            yield from kept


@pytest.mark.parametrize("kind", [Prepared, Measured])
def test_who_is_slow_keeps_nobody_waiting_and_joins_later(tmp_path: Path, kind) -> None:
    recipe = recipe_for()
    link = Slow(tmp_path / "sites", kind, 12)
    found, said = run(tmp_path, link, recipe)
    refused = [sorted(dict(record.refused)) for record in view_of(tmp_path).rounds]
    assert refused[0] == [1, 4]
    assert refused[-1] == []
    assert link.epochs == 1, "without a new epoch"
    doing = "gets ready" if kind is Prepared else "evaluates"
    assert any(f"(still {doing}): clients 1, 4 are left out" in text for text in said), said
    assert recorded.replayed(tmp_path / "run", Environment(), None).digest().hex() == found.model_digest


@pytest.mark.parametrize("kind", [Prepared, Measured])
def test_who_hangs_for_ever_keeps_nobody_waiting(tmp_path: Path, kind) -> None:
    found, _ = run(tmp_path, Slow(tmp_path / "sites", kind, 10**9), recipe_for())
    assert (found.rounds, found.complete) == (8, True)
    assert all(sorted(dict(record.refused)) == [1, 4] for record in view_of(tmp_path).rounds)


def test_who_hangs_while_it_catches_up_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its replica was refused in round 2 and has to be rebuilt: that takes it some rounds."""
    link = Slow(tmp_path / "sites", Done, 20)
    wrong = with_digest(b"12345678")

    def spoil(site: str, data: bytes) -> bytes:
        answer = decode_answer(data)
        return wrong(answer) if site == "south" and isinstance(answer, Replies) and 11 <= link.asked < 14 else data

    link.spoil = spoil
    found, _ = run(tmp_path, link, recipe_for(server_model=True), deadline=0.5)
    reasons = [sorted(set(dict(record.refused).values())) for record in view_of(tmp_path).rounds]
    busy = "failed: its site south still catches up"
    assert any("must rebuild" in why for r in reasons for why in r)
    assert [busy] in reasons
    assert reasons[-1] == []
    assert found.complete


def test_waiting_is_measured_by_what_the_others_took() -> None:
    now = [0.0]
    enough = Enough(2, 30.0, lambda: now[0])
    now[0] = 600.0
    enough.answered()
    assert not enough()
    now[0] = 700.0
    enough.answered()
    now[0] = 1429.0
    assert not enough()
    now[0] = 1431.0
    assert enough()


def test_a_site_that_fails_again_and_again_pauses_longer_and_is_forgiven_slowly() -> None:
    now = [0.0]
    back_off = BackOff(lambda: now[0])
    pauses = []
    for _ in range(12):
        back_off.answered("south")  # once between two failures
        pauses.append(back_off.failed("south").pause)
        assert not back_off.may_return("south")
        assert back_off.left_out(["north", "south"]) == ({"south"} if len(pauses) > 1 else set())
        now[0] += pauses[-1]
        assert back_off.may_return("south")
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 1280, 1280, 1280]
    now[0] += 1280 + WELL
    back_off.answered("south")
    assert back_off.failed("south").count == 12, "one is forgiven"
    for _ in range(12):
        now[0] += 1280 + WELL
        back_off.answered("south")
    assert back_off.failed("south").count == 1


# ---- votes


def test_a_vote_has_no_winner_on_a_tie_and_clients_of_a_site_have_one_together() -> None:
    assert leading({"north": 1, "south": 2}) is None
    assert leading({}) is None
    assert leading({"north": 1, "south": 2, "west": 1}) == 1
    voters = {0: "north", 1: "south", 2: "west", 3: "south", 4: "south", 5: "south"}
    digests = {0: b"a", 2: b"a", **dict.fromkeys((1, 3, 4, 5), b"b")}
    assert of_groups(digests, voters) == {"north": b"a", "south": b"b", "west": b"a"}
    assert leading(of_groups(digests, voters)) == b"a"
    assert of_groups({1: b"a", 3: b"b"}, voters) == {}
    assert (
        sides({"west": b"\1", "north": b"\1", "south": b"\2"}, "model {}") == "north, west: model 01; south: model 02"
    )


@pytest.mark.parametrize("digest", [bytes(8), b"\xff" * 8])
def test_one_of_two_sites_evicts_nobody(tmp_path: Path, digest) -> None:
    """The run stops, names both sides, and is resumed when the liar is gone."""
    recipe = recipe_for(rounds=6)
    whole = alone(tmp_path, recipe)
    link, two = LocalSites(tmp_path / "sites", SITES[:2]), SITES[:2]
    lie = with_digest(digest)
    link.spoil = lambda site, data: (
        lie(decode_answer(data))
        if site == "south" and link.asked > 15 and isinstance(decode_answer(data), Replies)
        else data
    )
    said: list[str] = []
    with pytest.raises(FedzeroError, match=r"north: model .*; south: model .*can be resumed"):
        run(tmp_path, link, recipe, two, report=said.append)
    assert sum("it is tried again" in text for text in said) == 3
    rounds = view_of(tmp_path).rounds
    assert 0 < len(rounds) < 6
    assert not any(record.refused for record in rounds)
    link.spoil = lambda site, data: data
    found, _ = run(tmp_path, link, recipe, two)
    assert (found.ledger_head, found.model_digest) == (whole.ledger_head, whole.model_digest)


@pytest.mark.parametrize("when, what", [(8, "was worked on with different models"), (12, "is not the same everywhere")])
def test_a_replica_that_differs_by_accident_is_rebuilt_and_the_tie_is_gone(tmp_path: Path, when, what) -> None:
    recipe = recipe_for(rounds=6)
    whole = alone(tmp_path, recipe)
    link = LocalSites(tmp_path / "sites", SITES[:2])

    def corrupted(site, data):
        if site == "south" and link.asked == when:
            params = link.sites["south"].run.replica.state.params
            params.tensors["x"].add_(1.0)
            params.changed()
        return data

    link.spoil = corrupted
    found, said = run(tmp_path, link, recipe, SITES[:2])
    assert any(what in text for text in said)
    assert found.model_digest == whole.model_digest
    assert not any(record.refused for record in view_of(tmp_path).rounds)


def test_a_site_with_most_clients_does_not_outvote_the_others(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(conducting, "assign", lambda *_: {"north": (0,), "south": (1, 3, 4, 5), "west": (2,)})
    link = spoiling(LocalSites(tmp_path / "sites", SITES), Replies, with_digest(b"\xff" * 8))
    run(tmp_path, link, recipe_for())
    for record in view_of(tmp_path).rounds:
        assert sorted(dict(record.refused)) == [1, 3, 4, 5]
        assert record.update is not None


def other_base(answer: Prepared) -> bytes:
    return encode(msgspec.structs.replace(answer, base=b"\xff" * 8, facts={"data": "\x1b[2J" * 100}))


def test_sites_that_do_not_start_from_the_same_model(tmp_path: Path) -> None:
    link = spoiling(LocalSites(tmp_path / "sites", SITES[:2]), Prepared, other_base)
    with pytest.raises(FedzeroError, match=r"do not start from the same model .*north: model .*; south: model ffff"):
        run(tmp_path, link, recipe_for(), SITES[:2])
    assert not (tmp_path / "run" / "ledger.db").exists()


def test_most_sites_have_another_base_than_the_server(tmp_path: Path) -> None:
    """A server with a model does not count votes."""
    link = spoiling(LocalSites(tmp_path / "sites", SITES), Prepared, other_base, ("north", "south"))
    found, said = run(tmp_path, link, recipe_for(server_model=True))
    assert found.complete
    assert sum("starts from model ffffffffffffffff (SHA-256 " in text for text in said) == 2
    assert all(sorted(dict(r.refused)) == [0, 1, 3, 4] for r in view_of(tmp_path).rounds)


def test_facts_are_those_of_most_sites(tmp_path: Path) -> None:
    link = LocalSites(tmp_path / "sites", SITES)
    absurd = {str(i): "x" for i in range(10_000)}
    spoiling(link, Prepared, lambda a: encode(msgspec.structs.replace(a, facts=a.facts | absurd)), ("north",))
    recipe = recipe_for()
    found, _ = run(tmp_path, link, recipe)
    assert found.ledger_head == alone(tmp_path, recipe).ledger_head


# ---- evaluations

changed = msgspec.structs.replace
LIES = {
    "nothing": (lambda m: encode(changed(m, metrics=None)), ""),
    "better": (
        lambda m: encode(changed(m, metrics=Metrics(-1e9, 1.0))),
        "south measured loss -1e+09, accuracy 1, most",
    ),
    "not a number": (lambda m: encode(changed(m, metrics=Metrics(math.nan))), "south measured loss nan, most others"),
    "own": (lambda m: encode(changed(m, metrics=Metrics(-1e9), own=True)), "south says otherwise than most whose data"),
    "huge": (lambda m: encode(changed(m, metrics=Metrics(1e308))), "south measured a loss of 1e+308, beyond"),
    "large": (lambda m: encode(changed(m, metrics=Metrics(1e38))), "south measured loss 1e+38, most others"),
    "no share": (
        lambda m: encode(changed(m, metrics=changed(m.metrics, accuracy=1e9))),
        "south measured accuracy 1e+09, which is from 0 to 1",
    ),
    "another model": (
        lambda m: encode(changed(m, model=b"\xff" * 8)),
        "south evaluated model ffffffffffffffff (SHA-256 ",
    ),
    "another model with the same sum": (lambda m: encode(changed(m, sha256=b"\xff" * 32)), "south evaluated model "),
    "a sum alone": (lambda m: encode(changed(m, sha256=b"")), "south evaluated model "),
    "many": (
        lambda m: encode(changed(m, metrics=Metrics(0.0, None, {str(i): 0.0 for i in range(50_000)}))),
        "south could not evaluate the model: sent 50000 metrics",
    ),
    "unprintable": (
        lambda m: encode(changed(m, metrics=Metrics(0.0, None, {"\x1b[2Jgood": 1.0}))),
        "south could not evaluate the model: sent a metric whose name",
    ),
    "nested": (lambda m: b"\x91" * 1500, "south could not evaluate the model: "),
    "a failure": (
        lambda m: encode(Failed("\x1b[31m[/x]" + "y" * 10**5)),
        "south could not evaluate the model: �[31m[/x]y",
    ),
    "too much": (lambda m: bytes(1 << 21), "south could not evaluate the model: sent 2097152 bytes"),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_site_is_believed_alone(tmp_path: Path, lie) -> None:
    change, sentence = LIES[lie]
    recipe = recipe_for()
    link = spoiling(LocalSites(tmp_path / "sites", SITES), Measured, change)
    found, said = run(tmp_path, link, recipe)
    assert [e.metrics for e in view_of(tmp_path).evaluations] == [
        e.metrics for e in session_view(alone(tmp_path, recipe), tmp_path).evaluations
    ]
    assert any(text.startswith(sentence) for text in said) or not sentence, said
    assert all(len(text) < 700 and "\x1b" not in text for text in said)
    assert recorded.replayed(tmp_path / "run", Environment(), None).digest().hex() == found.model_digest


def session_view(summary, tmp_path: Path) -> replay.LedgerView:
    ledger = Ledger.open(tmp_path / "alone" / "ledger.db")
    try:
        return replay.read(ledger)
    finally:
        ledger.close()


def test_of_two_sites_that_do_not_agree_neither_is_written(tmp_path: Path) -> None:
    link = spoiling(LocalSites(tmp_path / "sites", SITES[:2]), Measured, LIES["better"][0])
    found, said = run(tmp_path, link, recipe_for(), SITES[:2])
    assert found.complete
    assert not view_of(tmp_path).evaluations
    assert {text.split(" ")[0] for text in said if "the sites do not agree" in text} == {"north", "south"}


def test_three_of_many_sites_measure(tmp_path: Path) -> None:
    sites, counted = [f"site-{i}" for i in range(6)], []
    link = LocalSites(tmp_path / "sites", sites)
    link.spoil = lambda site, data: counted.append(site) or data if isinstance(decode_answer(data), Measured) else data
    run(tmp_path, link, recipe_for(), sites)
    assert len(counted) == 3 * measuring.MEASURING, "after rounds 0, 4 and 8; the last also says which model it is"
    assert len(set(counted)) > measuring.MEASURING, "drawn anew each time"


def test_where_three_do_not_agree_all_measure(tmp_path: Path) -> None:
    """Two of six lie alike: they are most of some draws, and never most of all."""
    sites = [f"site-{i}" for i in range(6)]
    recipe = msgspec.structs.replace(recipe_for(), evaluate_every=1)
    link = spoiling(LocalSites(tmp_path / "sites", sites), Measured, LIES["better"][0], ("site-1", "site-4"))
    found, said = run(tmp_path, link, recipe, sites)
    assert [e.metrics for e in view_of(tmp_path).evaluations] == [
        e.metrics for e in session_view(alone(tmp_path, recipe), tmp_path).evaluations
    ]
    assert found.complete
    assert {text.split(" ")[0] for text in said if "measured loss -1e+09" in text} == {"site-1", "site-4"}


# ---- answers that make no sense

ABSURD = {
    "nested": lambda a: b"\x91" * 1500,
    "negative": lambda a: b"\x93\x03\x81\xff\xc4\x00\x80",
    "clients of others": lambda a: encode(Replies(dict.fromkeys(range(100000), b""), {})),
    "failures": lambda a: encode(Replies({}, dict.fromkeys(a.replies, "\x1b[31m[/x]" + "y" * 200))),
    "another kind": lambda a: encode(Done()),
    "failed": lambda a: encode(Failed("[/x]\x07" + "z" * 3000)),
    "empty": lambda a: b"",
}


@pytest.mark.parametrize("kind", ABSURD)
def test_what_makes_no_sense_ends_no_run(tmp_path: Path, kind) -> None:
    link = spoiling(LocalSites(tmp_path / "sites", SITES), Replies, ABSURD[kind])
    found, _ = run(tmp_path, link, recipe_for(rounds=4, server_model=True))
    assert found.complete
    for record in view_of(tmp_path).rounds:
        assert sorted(dict(record.refused)) == [1, 4]
        assert all(len(why) < 600 and why.isprintable() for _, why in record.refused)
