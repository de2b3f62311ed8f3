"""A server that wants to know what a site has. It is a site's `answer`, given bytes, that is looked at here; the same
over mutual TLS is in tests/faults."""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgspec
import pytest
from harness import recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st
from small_language import make

from fedzero.deploy.site import reasons
from fedzero.deploy.site.allowance import DAY, HOUR
from fedzero.deploy.site.settings import Settings
from fedzero.deploy.site.site import Site
from fedzero.deploy.site.terms import Terms
from fedzero.engines.remote.messages import (
    Deliver,
    Exchange,
    Failed,
    Finish,
    Measure,
    Measured,
    Prepare,
    Prepared,
    Recover,
    Replies,
    decode_answer,
    encode,
)
from fedzero.errors import FedzeroError
from fedzero.methods import DeComFL
from fedzero.model.updates import Seeded, encode_update
from fedzero.protocol.messages import encode_work
from fedzero.recipe import recipe as recipes
from fedzero.tasks.language import Language, Text
from fedzero.tasks.language.generating import Generate
from fedzero.tasks.language.rewards import Function, Program, Regex

METHOD = DeComFL(rate=1e-3, directions=2)
SECRET = "known to the clients alone"


def recipe_for(**options):
    return recipe_of(**{"algorithm": METHOD, "clients": 4, "cohort": 4, "server_model": False, **options})


def prepare(recipe, **fields) -> bytes:
    text = recipe if isinstance(recipe, bytes) else recipes.canonical(recipe)
    return encode(msgspec.structs.replace(Prepare("run", text, (0, 1)), **fields))


def asked(site: Site, order: bytes):
    return decode_answer(site.answer(order))


def refused(site: Site, order: bytes) -> str:
    answer = asked(site, order)
    assert isinstance(answer, Failed), answer
    return answer.reason


def site_with(folder: Path, **settings) -> Site:
    return Site(Settings(device="cpu", **settings), folder / "keep")


# ---- rows and files


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """A table that nobody was promised, and a model."""
    make("opt", tmp_path / "model")
    (tmp_path / "patients.csv").write_text("name,diagnosis\nAda,typhoid-4711\n")
    return tmp_path


def language(folder: Path, train="patients.csv", **fields):
    text = Text(
        prompt="{name} has", answers={"0": "No", "1": "Yes"}, label="diagnosis", train=str(train), test=str(train)
    )
    return recipe_for(task=Language(**{"model": "theirs", "text": text, **fields}))


def test_a_row_of_a_table_is_not_read_through_an_error(clinic: Path, capsys) -> None:
    """0.1 answered: a row has the label 'typhoid-4711', for which task.text.answers has no word."""
    declared = {"rows": str(clinic / "patients.csv")}
    site = site_with(clinic, model=str(clinic / "model"), files=declared)
    assert refused(site, prepare(language(clinic, "rows"))) == f"{reasons.Reason.TASK}: {reasons.SEE}"
    assert "typhoid-4711" in capsys.readouterr().err, "the people at the site are told"
    assert "typhoid-4711" in site.state.problem


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("key", ["task.text.train", "task.model", "task.tokenizer", "base"])
def test_a_recipe_names_no_path_and_is_not_told_what_exists(clinic: Path, key: str, there: bool) -> None:
    """The same words, whether there is such a file or not."""
    name = {"task.text.train": "patients.csv"}.get(key, "model")
    path = str(clinic / (name if there else "nothing"))
    recipe = language(clinic, "rows")
    if key == "base":
        recipe = msgspec.structs.replace(recipe_for(), base=path)
    elif key == "task.text.train":
        recipe = language(clinic, path)
    else:
        recipe = language(clinic, "rows", **{key.removeprefix("task."): path})
    (clinic / "rows.csv").write_text("name,diagnosis\n" + "Ada,0\nBob,1\n" * 8)
    declared = {"rows": str(clinic / "rows.csv")} | ({} if key == "task.model" else {"theirs": str(clinic / "model")})
    assert refused(site_with(clinic, files=declared, data=str(clinic)), prepare(recipe)) == (
        f"{key} = {path!r} is not among the files that this site has declared: the site can declare it, "
        "`fedzero join KIT --file NAME=PATH`"
    )


def test_what_a_site_declares_is_found_by_name(clinic: Path) -> None:
    (clinic / "rows.csv").write_text("name,diagnosis\n" + "Ada,0\nBob,1\n" * 8)
    declared = {"rows": str(clinic / "rows.csv"), "theirs": str(clinic / "model")}
    answer = asked(site_with(clinic, files=declared), prepare(language(clinic, "rows")))
    assert isinstance(answer, Prepared), answer
    assert answer.facts["model"].startswith("theirs, "), "not the name of a folder"


@pytest.mark.parametrize("prompt", ["{name.__class__.__init__.__globals__} has", "{name:{name.__class__}} has"])
def test_a_prompt_reaches_into_rows_only(clinic: Path, prompt: str) -> None:
    rows, text = [{"name": "Ada"}], Text(prompt=prompt, answers={"0": "No", "1": "Yes"}, train="a", test="b")
    with pytest.raises((FedzeroError, AttributeError)):
        text.check()
        text.render(rows[0])


@pytest.mark.parametrize(
    "reward",
    [
        Program(argv=("touch", "/tmp/fedzero-was-here")),
        Function(name="os:system"),
        Function(name="judge"),
        Regex(pattern="(a+)+b"),
    ],
    ids=lambda reward: reward.label,
)
def test_a_recipe_names_no_reward_that_runs(clinic: Path, reward) -> None:
    """Nor an expression, which can take for ever. What the site declares itself is served."""
    (clinic / "rows.csv").write_text("name,diagnosis\n" + "Ada,0\nBob,1\n" * 8)
    declared = {"rows": str(clinic / "rows.csv"), "theirs": str(clinic / "model")}
    recipe = language(clinic, "rows", measure="reward", reward=reward)
    said = refused(site_with(clinic, files=declared), prepare(recipe))
    assert "not one of this site's" in said and "--task NAME=module:function" in said
    mine = language(clinic, "rows", measure="reward", reward=Function(name="judge"), generate=Generate(max_tokens=2))
    answer = asked(site_with(clinic, files=declared, tasks={"judge": "operator:contains"}), prepare(mine))
    assert isinstance(answer, Prepared), answer


# ---- consent


def site_with_secret(folder: Path, text: str = SECRET, **settings) -> Site:
    (folder / "secret").write_text(text)
    return site_with(folder, secret=str(folder / "secret"), **settings)


def test_a_site_with_a_secret_serves_no_open_run(tmp_path: Path) -> None:
    assert "federation.private = false is not served" in refused(site_with_secret(tmp_path), prepare(recipe_for()))
    allowed = site_with_secret(tmp_path, terms=Terms(private=False))
    assert isinstance(asked(allowed, prepare(recipe_for())), Prepared)
    assert isinstance(asked(site_with_secret(tmp_path), prepare(recipe_for(private=True))), Prepared)


def test_a_site_runs_the_checks_of_a_recipe(tmp_path: Path) -> None:
    """What no server of ours would send: 0.1 began to work on all of it."""
    good = msgspec.json.decode(recipes.canonical(recipe_for()))
    for change, words in [
        ({"federation": good["federation"] | {"cohort": 9}}, "federation.cohort = 9 exceeds federation.clients = 4"),
        ({"federation": good["federation"] | {"private": True, "server_model": True}}, "federation.private"),
        ({"filters": [{"kind": "median"}, {"kind": "sign"}]}, "sign"),
    ]:
        assert words in refused(site_with(tmp_path), prepare(msgspec.json.encode(good | change)))
    assert "client 4 is assigned" in refused(site_with(tmp_path), prepare(recipe_for(), clients=(0, 4)))


def test_packages_of_a_site_cannot_be_tried_one_by_one(tmp_path: Path) -> None:
    """Whether numpy is there or not, the words are the same."""
    table = msgspec.json.decode(recipes.canonical(recipe_for()))
    table["algorithm"]["kind"] = "unheard-of"
    reason = refused(
        site_with(tmp_path), prepare(msgspec.json.encode(table), needs={"numpy": "1", "nothing-such": "2"})
    )
    assert reason == "method 'unheard-of' is not installed: pip install numpy==1 nothing-such==2"


# ---- terms


HASH = recipes.hash_of(recipe_for())


def untouchable(folder: Path, terms: Terms) -> Site:
    """It fails if data or functions of the site are looked for."""
    return site_with(folder, terms=terms, data=str(folder / "nowhere"), tasks={"*": "no_such_module:task"})


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (Terms(methods=("fedzo", "fedkseed")), "its terms serve the methods fedzo, fedkseed, not 'decomfl'"),
        (Terms(tasks=("own",)), "its terms serve the tasks own, not 'quadratic'"),
        (Terms(private=True), "federation.private = false is not served, because its terms ask for it"),
        (Terms(approved=("0" * 64,)), f"its terms do not approve of a recipe with the hash {HASH}"),
    ],
)  # fmt: skip
def test_terms_are_checked_before_anything_is_touched(tmp_path: Path, terms: Terms, words: str, capsys) -> None:
    site = untouchable(tmp_path, terms)
    assert refused(site, prepare(recipe_for())).startswith(words)
    assert words in capsys.readouterr().err
    assert words in site.state.problem
    assert not (tmp_path / "keep").exists()


def test_what_the_terms_serve_is_served(tmp_path: Path) -> None:
    recipe = recipe_for()
    other_words = msgspec.structs.replace(recipe, title="T", about="A")
    terms = Terms(methods=("decomfl",), tasks=("quadratic",), approved=(recipes.hash_of(other_words),))
    assert isinstance(asked(site_with(tmp_path, terms=terms), prepare(recipe)), Prepared)
    longer = msgspec.structs.replace(recipe, rounds=recipe.rounds + 1)
    assert "do not approve" in refused(site_with(tmp_path, terms=terms), prepare(longer))


def turn(round: int, *clients: int) -> bytes:
    return encode(Exchange(round, 0, {client: encode_work(round, 0, []) for client in clients}))


def test_queries_of_a_day_are_counted_over_restarts_and_runs(tmp_path: Path, monkeypatch) -> None:
    """A turn of two directions takes three queries, and an evaluation counts as one."""
    now = 20_000.5 * DAY
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    terms = Terms(queries_per_day=8)
    site = site_with(tmp_path, terms=terms)
    asked(site, prepare(recipe_for()))
    assert asked(site, turn(0, 0, 1)).failed == {}
    again = site_with(tmp_path, terms=terms)  # another process, another run
    asked(again, prepare(recipe_for(), run="another"))
    assert isinstance(asked(again, encode(Measure(()))), Measured)
    answer = asked(again, turn(0, 0))
    assert answer.replies == {}
    assert answer.failed[0].startswith("its terms allow queries_per_day = 8, of which 1 are left, and this takes 3: ")
    now += 26 * HOUR
    assert not asked(again, turn(0, 0)).failed


def test_what_is_about_to_be_asked_is_paid_for_before(tmp_path: Path, monkeypatch) -> None:
    site = site_with(tmp_path, terms=Terms(queries_per_day=3))
    asked(site, prepare(recipe_for()))

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(site.run.host.clients._client(0).oracle, "answer", crash)
    with pytest.raises(KeyboardInterrupt):
        site.answer(turn(0, 0))
    assert asked(site, turn(0, 1)).failed, "it was spent when the process ended"


# ---- orders that are none

READY = [prepare(recipe_for()), turn(0, 0, 1)]


def honest_orders() -> list[bytes]:
    update = encode_update(Seeded(0, bytes(8), (0, 1)))
    close = encode((3, 0, (1, 0, bytes(8), (0, 1))))
    return [
        *READY,
        encode(Recover(True, (update,))),
        encode(Recover(False, (update, update))),
        encode(Measure((update,))),
        encode(Deliver({0: close})),
        encode(Finish(3)),
    ]


FIXED = {f"{kind}: {reasons.SEE}" for kind in reasons.Reason}


def is_answered(site: Site, order: bytes) -> None:
    """No exception, and nothing of one."""
    answer = asked(site, order)
    said = (
        [answer.reason]
        if isinstance(answer, Failed)
        else list(answer.failed.values())
        if isinstance(answer, Replies)
        else []
    )
    for text in said:
        assert text in FIXED or "Error" not in text, text
        assert str(site.keep) not in text


def spoiled(order: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut out, or repeated."""
    data = bytearray(order)
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(data) + 1), chance.randint(0, 9)
        how = chance.randrange(4)
        if how == 0:
            data[at : at + length] = chance.randbytes(length)
        elif how == 1:
            del data[at : at + length]
        elif how == 2:
            data[at:at] = data[at : at + length] * chance.randint(1, 3)
        else:
            data[at:at] = chance.choice(
                [b"\xc0", b"\xff", b"\x91" * 40, b"\xcf" + b"\xff" * 8, b"\xcb\x7f\xf8" + bytes(6)]
            )
    return bytes(data)


def test_every_order_is_answered(tmp_path: Path, capsys) -> None:
    chance, site = random.Random(7), site_with(tmp_path)
    orders = honest_orders()
    for number in range(1500):
        if number % 100 == 0:
            is_answered(site, READY[0])
        is_answered(site, spoiled(orders[number % len(orders)], chance))
    assert isinstance(asked(site, READY[0]), Prepared)
    asked(site, encode(Recover(True, ())))
    assert asked(site, READY[1]).failed == {}, "it works as if nothing had been"


@pytest.mark.parametrize("error", [ValueError, AssertionError, SystemExit, RecursionError])
def test_whatever_is_raised_is_an_answer(tmp_path: Path, monkeypatch, capsys, error) -> None:
    """By whatever code, the site's own and that of libraries among it."""

    def fails(*_):
        raise error(f"row 4711 of {tmp_path}")

    site = site_with(tmp_path)
    asked(site, READY[0])
    with monkeypatch.context() as patched:
        patched.setattr(site.run.setup.problem.objective, "evaluate", fails, raising=False)
        assert refused(site, encode(Measure(()))) == f"{reasons.Reason.MEASURE}: {reasons.SEE}"
    assert "row 4711" in capsys.readouterr().err
    if issubclass(error, Exception):
        monkeypatch.setattr(site.run.host.clients._client(0).oracle, "answer", fails)
        answer = asked(site, READY[1])
        assert answer.failed == {0: f"{reasons.Reason.TURN}: {reasons.SEE}"}
        assert list(answer.replies) == [1], "the other client's turn counts"


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_answered(tmp_path_factory, data: bytes) -> None:
    is_answered(site_with(tmp_path_factory.getbasetemp()), data)


NESTED = b"\x91" * 1500 + b"\x00"


@pytest.mark.parametrize(
    "order",
    [
        NESTED,
        prepare(b"[" * 100_000),
        prepare(b'{"name": "\\u001b[2J", "rounds": 3}'),
        prepare(b"\xff\xfe"),
        encode((3, 0, 0, {0: NESTED})),
        encode((2, True, (NESTED,))),
        encode((5, (encode_update(Seeded(10**15, bytes(3))),))),
        encode((4, {0: b""})),
        encode((3, 2**63, 2**62, {-5: b"", 0: b""})),
    ],
    ids=range(9),
)
def test_hostile_orders(tmp_path: Path, order: bytes, capsys) -> None:
    site = site_with(tmp_path)
    is_answered(site, READY[0])
    is_answered(site, order)
    assert "\x1b" not in capsys.readouterr().err
    assert site.state is None or site.state.run.isprintable()
    assert isinstance(asked(site, READY[0]), Prepared)
