"""The remote engine with sites in this process: who misbehaves is refused by name, who is behind catches up."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from harness import recipe_of
from hypothesis import given
from hypothesis import strategies as st

from fedzero import plugins
from fedzero.api.watching import Watching
from fedzero.callbacks import Pause, Stop, always_false
from fedzero.deploy.server import queue
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.server.supervisor import check_name_free, serve_queue
from fedzero.deploy.site import run as at_site
from fedzero.deploy.site.site import Settings, Site
from fedzero.engines.remote.assignment import SiteAssignment, assign
from fedzero.engines.remote.engine import RemoteClients, Service
from fedzero.engines.remote.messages import (
    Exchange,
    Failed,
    Prepare,
    Prepared,
    Recover,
    Replies,
    decode_answer,
    decode_order,
    encode,
)
from fedzero.engines.remote.transport import NoAnswer
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.links.topk import TopK
from fedzero.methods import DeComFL, FedZO
from fedzero.methods.contract import Scale
from fedzero.protocol.engine import Undelivered
from fedzero.protocol.messages import Reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe import setup
from fedzero.recipe.environment import Environment
from fedzero.rounds.refusals import Refusals, named
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.runs.summary import Summary
from fedzero.tasks import Quadratic
from fedzero.testing.engines import LocalSites
from ledgers import rounds_of

SITES = ["north", "south", "west"]
METHOD = DeComFL(rate=2e-3, directions=4)


def recipe_for(rounds=8, **options):
    options = {"algorithm": METHOD, "clients": 6, "cohort": 6, **options}
    return msgspec.structs.replace(recipe_of(**options), rounds=rounds, evaluate_every=4)


def run(tmp_path: Path, link: LocalSites, recipe=None, **service):
    return run_at_sites(
        recipe or recipe_for(), tmp_path / "run", Environment(), Silent(), Service(link, lambda: SITES, **service)
    )


# ---- replies that do not count


def changed(data: bytes, **fields) -> bytes:
    """A reply with other fields."""
    reply = msgspec.msgpack.decode(data, type=Reply)
    return msgspec.msgpack.encode(msgspec.structs.replace(reply, **fields))


MISCHIEF = {
    "NaN": (lambda data: changed(data, values=struct.pack("<4f", 1, 2, np.nan, 4)), "a value is NaN or infinite"),
    "too few": (lambda data: changed(data, values=bytes(12)), "3 numbers"),
    "too many": (lambda data: changed(data, values=bytes(20)), "numbers"),
    "another round": (lambda data: changed(data, round=99), "answered round 99, not round"),
    "another model": (lambda data: changed(data, digest=b"12345678"), "worked on model 3132333435363738, not "),
    "rubbish": (lambda data: b"\x00\x01\x02", "not a reply"),
    "10 MB": (lambda data: bytes(10_000_000), "bytes"),
}


@pytest.mark.parametrize("kind", MISCHIEF)
def test_a_reply_that_does_not_count_is_refused_by_name(tmp_path: Path, kind) -> None:
    spoil, reason = MISCHIEF[kind]

    def spoiled(site, answer):
        found = decode_answer(answer)
        if site != "south" or not isinstance(found, Replies):
            return answer
        first = min(found.replies, default=None)
        replies = {c: spoil(data) if c == first else data for c, data in found.replies.items()}
        return encode(Replies(replies, found.failed))

    link = LocalSites(tmp_path / "sites", SITES)
    link.spoil = spoiled
    run(tmp_path, link)
    for record in rounds_of(tmp_path / "run"):
        refused = dict(record.refused)
        out = {1, 4} if kind == "10 MB" else {1}  # an answer too long is not read at all
        assert refused.keys() == out, refused
        assert all(reason in why for why in refused.values())
        assert record.update is not None
    assert recorded.verified(tmp_path / "run", Environment()).end is not None


def test_a_site_speaks_for_its_own_clients_only(tmp_path: Path) -> None:
    def spoiled(site, answer):
        found = decode_answer(answer)
        if site == "south" and isinstance(found, Replies):
            return encode(Replies({**found.replies, 0: next(iter(found.replies.values()))}, {}))
        return answer

    link = LocalSites(tmp_path / "sites", SITES)
    link.spoil = spoiled
    run(tmp_path, link)
    for record in rounds_of(tmp_path / "run"):
        assert dict(record.refused) == dict.fromkeys(
            (1, 4), "failed: south answered for client 0, which it was not asked about"
        )


def test_a_site_that_answers_something_else(tmp_path: Path) -> None:
    link = LocalSites(tmp_path / "sites", SITES)
    link.spoil = lambda site, answer: encode(Failed("no disk left")) if _late(link, site) else answer
    run(tmp_path, link)
    refused = [dict(record.refused) for record in rounds_of(tmp_path / "run")]
    assert refused[-1] == dict.fromkeys((2, 5), "failed: no disk left")


def _late(link: LocalSites, site: str) -> bool:
    return site == "west" and link.asked > 12


# ---- replicas


def test_a_replica_that_was_corrupted_is_rebuilt(tmp_path: Path) -> None:
    """Named on the ledger once, then as good as the others."""
    recipe, link = recipe_for(rounds=8), LocalSites(tmp_path / "sites", SITES)

    def corrupted(site, answer):
        if site == "west" and link.asked == 3 + 3 * 4:  # after four rounds
            params = link.sites["west"].run.replica.state.params
            params.tensors["x"].add_(1.0)
            params.changed()
        return answer

    link.spoil = corrupted
    found = run(tmp_path, link, recipe)
    refused = {r.round: dict(r.refused) for r in rounds_of(tmp_path / "run") if r.refused}
    assert list(refused) == [4]
    assert all("must rebuild" in why for why in refused[4].values())
    assert refused[4].keys() == {2, 5}
    replica = link.sites["west"].run.replica
    replica.follow(list(updates_after(tmp_path, replica.round)))
    assert replica.digest().hex() == found.model_digest


def updates_after(tmp_path: Path, round: int):
    ledger = Ledger.open(tmp_path / "run" / "ledger.db")
    try:
        return [u for u in replay.updates_of(ledger, replay.read(ledger)) if u.round >= round]
    finally:
        ledger.close()


def test_a_site_ahead_of_the_ledger_starts_anew(tmp_path: Path) -> None:
    """Say, the ledger was brought back from yesterday's copy."""
    recipe, link = recipe_for(rounds=6), LocalSites(tmp_path / "sites", SITES)
    whole = run(tmp_path, link, recipe)
    short = tmp_path / "short"
    stopped = LocalSites(tmp_path / "elsewhere", SITES)
    stopped.spoil = _stop_after(stopped, 3 + 3 * 3)
    with pytest.raises(KeyboardInterrupt):
        run_at_sites(recipe, short, Environment(), Silent(), Service(stopped, lambda: SITES))
    SiteAssignment(SiteAssignment.of(tmp_path / "run").run, SiteAssignment.of(short).clients).write(short)
    link.begin()  # sites keep their replicas when an epoch ends
    found = run_at_sites(recipe, short, Environment(), Silent(), Service(link, lambda: SITES))
    assert (found.ledger_head, found.model_digest) == (whole.ledger_head, whole.model_digest)


def _stop_after(link: LocalSites, asked: int):
    def spoil(site, answer):
        if link.asked > asked:
            raise KeyboardInterrupt
        return answer

    return spoil


def test_what_a_client_remembered_is_asked_for(tmp_path: Path) -> None:
    """A site that lost its folder says so, and is refused until it has it again."""
    recipe = recipe_for(
        rounds=6, algorithm=FedZO(rate=2e-3, form="dense"), filters=(TopK(fraction=0.2, feedback=True),)
    )
    link = LocalSites(tmp_path / "sites", SITES, {12}.__contains__, forgetful=True)
    run(tmp_path, link, recipe)
    reasons = {why for record in rounds_of(tmp_path / "run") for _, why in record.refused}
    assert reasons
    assert all("has lost what it remembered of round" in why for why in reasons)


# ---- who is there


def test_a_site_that_is_away_sits_out_and_one_that_comes_is_let_in(tmp_path: Path) -> None:
    link = LocalSites(tmp_path / "sites", SITES[:2])

    def arriving(site, answer):
        if link.asked == 2 + 2 * 3:
            link.names = SITES
            link.wants = {"west"}
        return answer

    link.spoil = arriving
    run(tmp_path, link)
    records = rounds_of(tmp_path / "run")
    assert link.epochs == 1, "nobody else begins anew"
    assert [sorted(dict(r.refused)) for r in records] == [[2, 5]] * 3 + [[]] * 5
    assert dict(records[0].refused)[2] == "failed: its site west is away"


class Leaving(LocalSites):
    """South says nothing any more after some answers, and is back after some more."""

    gone, back = 3 + 3 * 2, 3 + 3 * 2 + 2 * 3

    def ask(self, orders, seconds, limit, enough=always_false):
        silent = "south" in orders and self.gone <= self.asked < self.back
        if silent:
            yield "south", NoAnswer("did not answer in 5 s") if self.asked == self.gone else Undelivered("is silent")
        yield from super().ask(
            {s: o for s, o in orders.items() if not (silent and s == "south")}, seconds, limit, enough
        )


def test_a_site_that_is_gone_is_said_once_and_what_it_was_not_sent_is_not_counted(tmp_path: Path) -> None:
    said: list[str] = []
    recipe = recipe_for(rounds=8)
    whole = session.start(recipe, tmp_path / "whole", Environment(), Silent())
    run(tmp_path, Leaving(tmp_path / "sites", SITES), recipe, report=said.append)
    assert said == [
        "site south is gone (did not answer in 5 s): clients 1, 4 are left out until it returns",
        "site south is back",
    ]
    records = rounds_of(tmp_path / "run")
    reasons = [sorted({why for _, why in r.refused}) for r in records]
    late, silent = "failed: its site south did not answer in 5 s", "failed: its site south is silent"
    assert reasons == [[], [], [late], [silent], [silent], [], [], []]
    # A late site was sent its instructions, a silent one was not; when it is back it is sent what it missed.
    each = [r.bytes_down / 6 for r in records]
    assert each[2] == each[1]
    assert records[3].bytes_down == records[4].bytes_down == 4 * each[1]
    assert records[5].bytes_down > 6 * each[1]
    assert whole.bytes_down_per_client <= sum(each)
    # Who looks on from elsewhere reads it once a reason; who serves the run has said it already.
    refusals, serving = Refusals(), Refusals(of_sites=False)
    assert [text for r in records for text in refusals.news(r)] == [
        f"round 2: clients 1, 4 {late}",
        f"round 3: clients 1, 4 {silent}",
    ]
    assert not [text for r in records for text in serving.news(r)]


def test_refusals_are_said_by_reason_and_again_after_a_turn_that_counted() -> None:
    def record(round: int, **refused: str) -> Round:
        out = tuple((int(client[1:]), why) for client, why in refused.items())
        return Round(round=round, cohort=(0, 1, 2), update=None, dense=False, bytes_up=0, bytes_down=0, queries=0,
                     loss=None, refused=out)  # fmt: skip

    refusals = Refusals()
    assert refusals.news(record(0, c0="sat out", c2="sat out", c1="sent no digest")) == [
        "round 0: clients 0, 2 sat out",
        "round 0: client 1 sent no digest",
    ]
    assert refusals.news(record(1, c0="sat out", c1="sat out")) == ["round 1: client 1 sat out"]
    assert refusals.news(record(2, c2="sat out")) == ["round 2: client 2 sat out"]
    assert named(range(100)) == "clients 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"


def test_a_site_with_another_base_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    link = LocalSites(tmp_path / "sites", SITES)

    def other(site, answer):
        found = decode_answer(answer)
        if site == "south" and hasattr(found, "base"):
            return encode(msgspec.structs.replace(found, base=b"87654321"))
        return answer

    link.spoil = other
    run(tmp_path, link, report=said.append)
    assert any("south starts from model 3837363534333231 (SHA-256 " in text for text in said)
    assert all(sorted(dict(r.refused)) == [1, 4] for r in rounds_of(tmp_path / "run"))


def test_no_site_is_ready(tmp_path: Path) -> None:
    link = LocalSites(tmp_path / "sites", SITES)
    link.spoil = lambda site, answer: encode(Failed("has no data"))
    reasons = "; ".join(f"{site} cannot take part: has no data" for site in SITES)
    with pytest.raises(FedzeroError, match=f"no site is ready: {reasons}"):
        run(tmp_path, link)
    assert not (tmp_path / "run" / "ledger.db").exists()


# ---- a server without a model


@pytest.mark.parametrize("private", [False, True])
def test_a_server_without_a_model_builds_nothing(tmp_path: Path, private, monkeypatch) -> None:
    """Sites say what the model is and how good it is; with a secret of theirs the server could not even make it."""
    recipe = recipe_for(private=private, server_model=False)
    if private:
        monkeypatch.setenv("FEDZERO_SECRET", "known to the clients alone")
    secret = b"known to the clients alone" if private else None
    here = session.start(recipe, tmp_path / "here", Environment(secret=secret), Silent())
    link = LocalSites(tmp_path / "sites", SITES, {20}.__contains__)
    built = setup.prepare
    sites = []
    monkeypatch.setattr(at_site, "prepare", lambda r, here, **more: sites.append(here.secret) or built(r, here, **more))
    found = run(tmp_path, link, recipe)
    assert set(sites) == {secret}
    assert len(sites) == 3 * link.epochs
    assert (found.ledger_head, found.model_digest) == (here.ledger_head, here.model_digest)
    assert not (tmp_path / "run" / "model.safetensors").exists()


# ---- which clients are where


@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 4))
def test_every_client_has_one_site_and_keeps_it(sites, clients, more):
    names = [f"site-{i}" for i in range(sites)]
    first = assign(names, clients)
    assert sorted(c for mine in first.values() for c in mine) == list(range(clients))
    later = assign([*names, *(f"later-{i}" for i in range(more))], clients, first)
    assert sorted(c for mine in later.values() for c in mine) == list(range(clients))
    for site in names:
        assert set(later[site]) <= set(first[site])
    if clients >= sites + more:
        assert all(later.values())


def test_settings_of_a_site(tmp_path: Path) -> None:
    path = tmp_path / "fedzero.toml"
    assert Settings.read(path) == Settings()
    path.write_text('data = "/nowhere"\nthreads = 2\n')
    assert Settings.read(path).threads == 2
    with pytest.raises(FedzeroError, match="/nowhere: no such folder"):
        Settings.read(path).environment()
    path.write_text("dta = 3\n")
    with pytest.raises(FedzeroError, match="unknown field `dta`"):
        Settings.read(path)


def test_work_before_it_is_prepared(tmp_path: Path) -> None:
    answer = decode_answer(Site(Settings(), tmp_path).answer(encode(Exchange(0, 0, {}))))
    assert answer == Failed("was given work before it was prepared for a run")
    assert isinstance(decode_answer(Site(Settings(), tmp_path).answer(b"\xc1")), Failed)


# ---- what a site keeps


class Recording(LocalSites):
    """Notes every order and its answer, by epoch."""

    def begin(self):
        here = super().begin()
        self.orders = {**getattr(self, "orders", {}), self.epochs: []}
        return here

    def ask(self, orders, seconds, limit, enough=always_false):
        for site, answer in super().ask(orders, seconds, limit, enough):
            self.orders[self.epochs].append((site, decode_order(orders[site]), decode_answer(answer)))
            yield site, answer


@pytest.mark.parametrize(
    ("kind", "options", "cohort"),
    [
        ("scaffold-zo", {"type": "II", "local_steps": 2}, 6),
        ("zone-s", {}, 1),
        ("zofedht", {"local_steps": 2}, 6),
        ("dzopa", {}, 6),
    ],
)
def test_a_site_restarts_from_its_folder(tmp_path: Path, kind, options, cohort) -> None:
    """Whatever the method carries from round to round: the replica is not rebuilt, and the run is the same."""
    method = recipes.method({"kind": kind, "rate": 2e-3, "directions": 4, "form": "seeded", **options})
    recipe = recipe_for(algorithm=method, cohort=cohort)
    assert method.traits(Scale(50, 6)).delivery == "catch-up"
    here = session.start(recipe, tmp_path / "here", Environment(), Silent())
    sites = SITES if cohort > 1 else SITES[:1]
    link = Recording(tmp_path / "sites", sites, {len(sites) * 6}.__contains__)  # in round 4, or 5
    found = run_at_sites(recipe, tmp_path / "run", Environment(), Silent(), Service(link, lambda: sites))
    assert link.epochs == 2
    ready = {site: answer.round for site, _, answer in link.orders[2] if isinstance(answer, Prepared)}
    assert ready.keys() == set(sites)
    assert min(ready.values()) >= 3
    folded = [len(order.updates) for _, order, _ in link.orders[2] if isinstance(order, Recover)]
    assert not any(order.fresh for _, order, _ in link.orders[2] if isinstance(order, Recover))
    assert sum(folded) <= 1, "the update of the round before the break, at most"
    assert (found.ledger_head, found.model_digest) == (here.ledger_head, here.model_digest)


def test_an_old_process_does_not_overwrite_what_a_newer_one_wrote(tmp_path: Path) -> None:
    recipe = recipe_for(algorithm=FedZO(rate=2e-3, form="dense"), filters=(TopK(fraction=0.2, feedback=True),))
    link = Recording(tmp_path / "sites", SITES)
    run(tmp_path, link, recipe)
    (prepare, _), (first, given) = [(order, answer) for site, order, answer in link.orders[1] if site == "north"][:2]
    assert isinstance(first, Exchange)
    old = Site(Settings(device="cpu"), tmp_path / "sites" / "kept" / "north")
    old.answer(encode(prepare))
    keep = tmp_path / "sites" / "kept" / "north"
    written = {path: path.read_bytes() for path in keep.glob("*/*.notes")}
    assert decode_answer(old.answer(encode(first))) == given, "it is said again, and nothing is done"
    with closing(sqlite3.connect(keep / "answers.db")) as db, db:
        db.execute("DELETE FROM answers")
    answer = decode_answer(old.answer(encode(first)))
    assert answer == Replies({}, dict.fromkeys(first.instructions, "a newer process already wrote round 7"))
    assert len(written) == 2
    assert all(path.read_bytes() == content for path, content in written.items())


# ---- methods, tasks and filters of other distributions


class TheirMethod(FedZO, tag="their-method"):
    """A method that is not in this package."""


class TheirTask(Quadratic, tag="their-task"):
    """A task that is not in this package."""


class TheirFilter(TopK, tag="their-filter"):
    """A filter that is not in this package."""


THEIRS = {"methods": TheirMethod, "tasks": TheirTask, "filters": TheirFilter}


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three, as if a distribution brought them."""
    for group, kind in THEIRS.items():
        known = plugins.Plugin(kind, "their-package", "1.2")
        monkeypatch.setitem(plugins._registered[group], plugins.tag_of(kind), known)


class Lacking(LocalSites):
    """The site south does not have one of them."""

    group = "methods"

    def begin(self):
        here = super().begin()
        south, known = self.sites["south"], plugins._registered[self.group]
        honest, tag = south.answer, plugins.tag_of(THEIRS[self.group])

        def answer(order: bytes) -> bytes:
            kind = known.pop(tag)
            try:
                return honest(order)
            finally:
                known[tag] = kind

        south.answer = answer
        return here


@pytest.mark.parametrize("group", THEIRS)
def test_a_site_says_what_to_install_and_the_others_go_on(tmp_path: Path, theirs, group) -> None:
    said: list[str] = []
    recipe = recipe_for(
        algorithm=TheirMethod(rate=2e-3, form="dense"),
        task=TheirTask(dimension=20),
        filters=(TheirFilter(fraction=0.5),),
    )
    assert recipe.needs == {"their-package": "1.2"}
    link = Lacking(tmp_path / "sites", SITES)
    link.group = group
    run(tmp_path, link, recipe, report=said.append)
    (sentence,) = said
    tag = plugins.tag_of(THEIRS[group])
    assert sentence.startswith("south cannot take part: ")
    assert f"{group[:-1]} {tag!r} is not installed: pip install" in sentence
    assert "their-package" in sentence
    assert "1.2" in sentence
    for record in rounds_of(tmp_path / "run"):
        assert dict(record.refused) == dict.fromkeys((1, 4), f"failed: its site {sentence}")
        assert record.update is not None
    assert recorded.verified(tmp_path / "run", Environment()).end is not None


def test_a_recipe_that_a_site_cannot_read(tmp_path: Path) -> None:
    prepare = Prepare("run", canonical_without_rate(), (0,))
    answer = decode_answer(Site(Settings(), tmp_path).answer(encode(prepare)))
    assert isinstance(answer, Failed)
    assert "cannot be read by fedzero" in answer.reason and "Object missing required field `rate`" in answer.reason
    assert answer.reason.endswith("use the release that wrote it, or a later one")


def canonical_without_rate() -> bytes:
    table = msgspec.json.decode(recipes.canonical(recipe_for()))
    del table["algorithm"]["rate"]
    return msgspec.json.encode(table)


# ---- a queue


def test_a_queue_survives_recipes_that_cannot_be_played(tmp_path: Path, theirs, monkeypatch) -> None:
    """What is no recipe, one of another release, one whose method is gone, and one for which no site is ready."""
    said: list[str] = []
    project, link = tmp_path / "project", LocalSites(tmp_path / "sites", SITES)
    queue.submit(project, msgspec.structs.replace(recipe_for(algorithm=TheirMethod(rate=2e-3)), name="theirs"))
    queue.submit(project, msgspec.structs.replace(recipe_for(task=Quadratic(dimension=3)), name="unready"))
    for number, content in enumerate((b"\xff\x00", b"{}", canonical_without_rate())):
        (project / "queue" / f"0-broken-{number}.json").write_bytes(content)
    queue.submit(project, msgspec.structs.replace(recipe_for(rounds=2), name="good"))
    monkeypatch.delitem(plugins._registered["methods"], "their-method")

    def spoiled(site: str, answer: bytes) -> bytes:
        return answer if "unready" in str(said) else encode(Failed("has no data"))

    link.spoil = spoiled

    def done(folder: Path) -> None:
        raise KeyboardInterrupt

    service = Service(link, lambda: SITES, report=said.append)
    with pytest.raises(KeyboardInterrupt):
        serve_queue(project, Environment(), Silent, service, done)
    reasons = [text for text in said if "out of the queue" in text]
    assert [text.split(" ")[0] for text in reasons] == ["broken-0", "broken-1", "broken-2", "theirs", "unready"]
    assert "there is no method 'their-method'" in reasons[3]
    assert "no site is ready: north cannot take part: has no data" in reasons[4]
    assert list(map(queue.name_of, queue.entries(project))) == ["good"]
    assert [path.name for path in (project / "runs").glob("*/ledger.db")] == ["ledger.db"]
    with pytest.raises(FedzeroError, match="already has a run 'good'"):
        check_name_free(project, "good")
    check_name_free(project, "theirs")


@pytest.mark.parametrize("resuming", [False, True])
def test_a_run_that_cannot_begin_keeps_no_ledger_from_the_next_attempt(
    resuming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = msgspec.structs.replace(recipe_of(algorithm=DeComFL(rate=2e-3)), rounds=2)

    def run() -> Summary:
        link = LocalSites(tmp_path / "sites", ["north", "south"])
        return run_at_sites(recipe, tmp_path / "run", Environment(), Silent(), Service(link, lambda: link.names))

    if resuming:
        run()

    def fails(*_: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="broken"):
        broken.setattr(RemoteClients, "attach", fails)
        run()
    assert run().rounds == 2


# ---- callbacks of the server


class Answers:
    def __init__(self, at: tuple[str, int], answer: object):
        self.at, self.answer = at, answer

    def round(self, result):
        return self.answer if self.at == ("round", result.rounds) else None

    def evaluation(self, result):
        return self.answer if self.at == ("evaluation", result.rounds) else None


@pytest.mark.parametrize("server_model", [True, False])
def test_a_callback_stops_and_pauses_a_federation(tmp_path: Path, server_model: bool) -> None:
    recipe = recipe_for(server_model=server_model)

    def played(name: str, link: LocalSites, *callbacks: Answers):
        watch = Watching(Silent(), tmp_path / name, callbacks)
        return run_at_sites(recipe, tmp_path / name, Environment(), watch, Service(link, lambda: SITES))

    whole = played("whole", LocalSites(tmp_path / "1", SITES))
    link = LocalSites(tmp_path / "2", SITES)
    assert not played("run", link, Answers(("round", 3), Pause())).complete
    assert not played("run", link, Answers(("evaluation", 4), Pause())).complete
    assert played("run", link).ledger_head == whole.ledger_head
    for at, ends in ((("round", 3), 3 if server_model else 4), (("evaluation", 4), 4)):
        found = played(at[0], LocalSites(tmp_path / at[0] / "sites", SITES), Answers(at, Stop("enough")))
        assert (found.rounds, found.reason, found.complete) == (ends, "enough", True)
        recorded.verified(tmp_path / at[0], Environment())
