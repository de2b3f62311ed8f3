"""A server whose recipe a site approved of, and which then sends what that recipe does not contain: instructions of
other methods, out of order, out of range, twice, for others. And what an honest server repeats is answered again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from harness import recipe_of
from noise import Noise
from test_hostile_server import asked, prepare, recipe_for, refused, site_with, turn

import fedzero
from fedzero import plugins
from fedzero.deploy.site import admission
from fedzero.deploy.site.allowance import SPENT
from fedzero.deploy.site.site import Site
from fedzero.deploy.site.terms import UNLIMITED, Terms
from fedzero.directions import Keys
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
    encode,
)
from fedzero.errors import Sendable
from fedzero.ledger import answers as journals
from fedzero.links import Link
from fedzero.methods import DeComFL, FedAvg, FedKSeed, ScaffoldZO
from fedzero.model.updates import Seeded, encode_update
from fedzero.protocol.messages import Close, Continue, Reply, Snapshot, Work, encode_close, encode_work
from fedzero.protocol.messages import encode as encode_instruction
from fedzero.recipe import recipe as recipes
from fedzero.recipe.setup import plan_of
from fedzero.tasks import Quadratic

ROUNDS = 50
"""of the recipes below"""


def approving(folder: Path, recipe, **more) -> Site:
    site = site_with(folder, terms=Terms(approved=(recipes.hash_of(recipe),), **more))
    assert isinstance(asked(site, prepare(recipe)), Prepared)
    return site


def approved(folder: Path, **options) -> Site:
    return approving(folder, recipe_for(**options))


def update(round: int, value: float = 0.5, numbers: int = 2) -> Seeded:
    return Seeded(round, np.full(numbers, value, "<f4").tobytes())


def work(round: int, updates=(), **more) -> bytes:
    return encode_work(round, 0, [encode_update(each) for each in updates], **more)


def order(round: int, instruction: bytes, exchange: int = 0, client: int = 0) -> bytes:
    return encode(Exchange(round, exchange, {client: instruction}))


def why(site: Site, data: bytes) -> str:
    """The one reason why nothing was done."""
    answer = asked(site, data)
    if isinstance(answer, Failed):
        return answer.reason
    assert isinstance(answer, Replies), answer
    assert not answer.replies
    (reason,) = answer.failed.values()
    return reason


def reply(site: Site, data: bytes, client: int = 0) -> bytes:
    answer = asked(site, data)
    assert isinstance(answer, Replies), answer
    assert not answer.failed, answer.failed
    return answer.replies[client]


def queries(site: Site) -> int:
    return sum(client.oracle.queries for client in site.run.host.clients.clients.values())


# ---- instructions that the method's delivery does not use

STATE = np.zeros(50, "<f4").tobytes()
MISPLACED = {
    "a model": (0, encode_instruction(Snapshot(0, 0, 0, STATE)), "was sent a model, which decomfl never sends"),
    "an outcome for a turn": (0, encode_close(0, encode_update(update(0))), "was sent the outcome of a round"),
    "the middle of a round": (0, encode_instruction(Continue(0, 0, b"")), "a different exchange"),
    "a later round": (0, work(3), "an instruction of exchange 0 of round 3 in an order of exchange 0 of round 0"),
    "an earlier round": (3, work(0), "an instruction of exchange 0 of round 0 in an order of exchange 0 of round 3"),
    "another exchange": (0, encode_instruction(Work(0, 1, ())), "an instruction of exchange 1 of round 0"),
    "a memory": (4, work(4, counted=2), "whose clients remember nothing"),
    "updates of its own round": (4, work(4, [update(4)]), "was sent an update of round 4"),
    "updates of the future": (4, work(4, [update(40)]), "was sent an update of round 40"),
    "a round's update twice": (4, work(4, [update(1), update(1, 9.0)]), "was sent an update of round 1"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISPLACED)
def test_an_instruction_that_the_recipe_does_not_have(tmp_path: Path, kind: str, capsys) -> None:
    site, (round, instruction, words) = approved(tmp_path), MISPLACED[kind]
    before = site.run.replica.digest()
    assert words in why(site, order(round, instruction))
    assert (queries(site), site.run.replica.digest()) == (0, before), "nothing was done"
    assert reply(site, turn(0, 0)), "an honest order is obeyed afterwards"


def test_orders_that_the_recipe_does_not_have(tmp_path: Path, capsys) -> None:
    site = approved(tmp_path)
    for data, words in [
        (encode(Deliver({0: encode_close(0, encode_update(update(0)))})), "federation.sync = false never sends"),
        (order(0, encode_instruction(Continue(0, 1, b"")), 1), "was sent exchange 1 of a round that has 1"),
        (encode(Recover(False, (encode_update(update(50)),))), "was sent an update of round 50"),
        (encode(Recover(False, tuple(encode_update(update(r)) for r in (3, 2)))), "was sent an update of round 2"),
        (encode(Finish(51)), "was told of 51 rounds"),
    ]:
        assert words in refused(site, data)
    dense = approving(tmp_path, recipe_of(FedAvg(rate=0.1), clients=4, cohort=4))
    words = "where fedavg sends the model"
    assert words in refused(dense, encode(Recover(True, ())))
    assert words in why(dense, turn(0, 0))
    assert "federation.server_model = true" in refused(dense, encode(Measure(())))


def test_a_model_is_taken_where_the_recipe_sends_it(tmp_path: Path) -> None:
    """pull_after, and methods of which who was away is sent the state."""
    pulled = approving(tmp_path, recipe_for(server_model=True, pull_after=1))
    assert reply(pulled, order(7, encode_instruction(Snapshot(7, 0, 0, STATE))))
    seeds = FedKSeed(rate=1e-3, local_steps=2, pool=16)
    fewer = approving(tmp_path, recipe_for(server_model=True, algorithm=seeds))
    assert reply(fewer, order(7, encode_instruction(Snapshot(7, 0, 0, bytes(64)))))


def test_an_outcome_is_that_of_the_turn_before(tmp_path: Path, capsys) -> None:
    site = approved(tmp_path, sync=True)

    def delivered(round: int, of: int | None = None, client: int = 0) -> bytes:
        close = Close(round, update(round if of is None else of))
        return encode(Deliver({client: encode_instruction(close)}))

    assert "did not answer last" in refused(site, delivered(0))
    reply(site, turn(0, 0))
    assert "was sent an update of round 9 as the outcome of 0" in refused(site, delivered(0, 9))
    assert "client 3 is not at this site" in refused(site, delivered(0, client=3))
    assert not isinstance(asked(site, delivered(0)), Failed)
    assert site.run.replica.round == 1


# ---- rounds


def test_rounds_that_the_recipe_does_not_have(tmp_path: Path, capsys) -> None:
    """10,828 was chosen because the batch of that round was the row that was wanted."""
    site = approved(tmp_path)
    for round in (ROUNDS, 10_828, 2**62):
        assert f"the recipe has {ROUNDS} rounds" in refused(site, turn(round, 0))
    assert queries(site) == 0
    assert reply(site, turn(ROUNDS - 1, 0))


def test_rounds_are_asked_once_and_in_order(tmp_path: Path, capsys) -> None:
    site = approved(tmp_path)
    reply(site, turn(2, 0))
    reply(site, turn(5, 0))  # rounds in which it was not asked, or did not answer in time
    for round in (0, 3, 4):
        assert "answered round 5 before" in why(site, turn(round, 0))
    reply(site, turn(5, 1), 1)
    assert reply(site, turn(6, 0))


def test_clients_without_a_turn_are_not_asked(tmp_path: Path, capsys) -> None:
    recipe = recipe_for(cohort=1)
    site = approving(tmp_path, recipe)
    for round in range(12):
        there = site.run.agreement.cohort(round)
        for client in (0, 1):
            if client not in there:
                assert f"client {client} has no turn in round {round}" in refused(site, turn(round, client))
            else:
                assert reply(site, turn(round, client), client)
    assert "client 2 is not at this site" in refused(site, turn(0, 2))


# ---- the same again


@pytest.mark.parametrize("restarted", [False, True])
def test_the_same_question_has_the_same_answer_and_costs_nothing(tmp_path: Path, restarted: bool) -> None:
    site = approved(tmp_path)
    first = asked(site, turn(0, 0, 1))
    reply(site, order(1, work(1, [update(0)])))
    if restarted:
        site.leave()
        site = approved(tmp_path)
    spent = ((tmp_path / "keep" / SPENT).read_bytes(), site.run._allowance._ahead)
    before = queries(site)
    assert asked(site, turn(0, 0)) != asked(site, turn(1, 0)), "its model is another by now"
    asked(site, encode(Recover(True, ())))
    assert asked(site, turn(0, 0, 1)) == first
    assert queries(site) == before
    assert spent == ((tmp_path / "keep" / SPENT).read_bytes(), site.run._allowance._ahead)


def test_an_answer_does_not_depend_on_whether_its_function_does(tmp_path: Path, monkeypatch) -> None:
    """A function with noise of its own: who asks again and again must not be given the mean."""
    site = approved(tmp_path)
    noise = np.random.default_rng(0)
    oracle = site.run.host.clients._client(0).oracle
    monkeypatch.setattr(oracle, "answer", lambda round, ask: noise.standard_normal(len(ask.points)))
    assert len({reply(site, turn(0, 0)) for _ in range(5)}) == 1


ANOTHER = {
    "other updates": (work(4, [update(0)]), work(4, [update(0, 0.25)])),
    "more updates": (work(4, [update(0)]), work(4, [update(0), update(1)])),
    "fewer updates": (work(4, [update(0), update(1)]), work(4, [update(0)])),
}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("kind", ANOTHER)
def test_another_question_about_the_same_round(tmp_path: Path, kind: str, fresh: bool, capsys) -> None:
    """Also in another process, and after the model was made anew."""
    site, (first, second) = approved(tmp_path), ANOTHER[kind]
    given = reply(site, order(4, first))
    if fresh:
        asked(site, encode(Recover(True, ())))
    assert "before, by another question" in why(site, order(4, second))
    site.leave()
    site = approved(tmp_path)
    asked(site, encode(Recover(True, ())))
    assert "before, by another question" in why(site, order(4, second))
    assert reply(site, order(4, first)) == given


def test_the_same_words_about_another_model(tmp_path: Path, capsys) -> None:
    """The instruction says nothing of the model: it was brought there by another order."""
    site = approved(tmp_path)
    asked(site, encode(Recover(True, (encode_update(update(0)),))))
    given = reply(site, order(4, work(4)))
    asked(site, encode(Recover(True, (encode_update(update(0, 7.0)),))))
    assert "at another model" in why(site, order(4, work(4)))
    asked(site, encode(Recover(True, (encode_update(update(0)),))))
    assert reply(site, order(4, work(4))) == given


def test_a_model_in_a_method_that_sends_models_is_asked_about_once(tmp_path: Path, capsys) -> None:
    """Weights of the server's own, again and again within a round, gave away a row."""
    site = approving(tmp_path, recipe_of(FedAvg(rate=0.1), clients=4, cohort=4))

    def about(value: float) -> bytes:
        return order(3, encode_instruction(Snapshot(3, 0, 0, np.full(50, value, "<f4").tobytes())))

    given = reply(site, about(0.0))
    for value in (1.0, 2.0):
        assert "before, by another question" in why(site, about(value))
    assert reply(site, about(0.0)) == given


def test_a_damaged_replica_works_on_the_same_question_again(tmp_path: Path) -> None:
    """No order can bring that about. What it was made of is the same, so it is the same question."""
    site = approved(tmp_path)
    params = site.run.replica.state.params
    params.tensors["x"].add_(1.0)
    params.changed()
    wrong = msgspec.msgpack.decode(reply(site, turn(0, 0)), type=Reply)
    asked(site, encode(Recover(True, ())))
    right = msgspec.msgpack.decode(reply(site, turn(0, 0)), type=Reply)
    assert right.digest != wrong.digest


def test_a_damaged_replica_does_not_draw_noise_again(tmp_path: Path, capsys) -> None:
    """What was drawn for the same question at another model cannot be drawn a second time."""
    plugins.register(Noise)
    site = approved(tmp_path, filters=(Noise(),))
    params = site.run.replica.state.params
    params.tensors["x"].add_(1.0)
    params.changed()
    given = reply(site, turn(0, 0))
    assert reply(site, turn(0, 0)) == given
    asked(site, encode(Recover(True, ())))
    assert "before, at another model" in why(site, turn(0, 0))
    assert reply(site, turn(0, 1), 1), "nothing was asked of the other client"


def test_half_an_update_is_no_known_model(tmp_path: Path, capsys) -> None:
    """Where folding fails nobody knows what the model is made of: nothing that was answered is worked on again."""
    site = approved(tmp_path)
    reply(site, turn(0, 0))
    refused(site, encode(Recover(False, (encode_update(update(0, numbers=3)),))))
    params = site.run.replica.state.params
    params.tensors["x"].add_(1.0)
    params.changed()
    assert "at another model" in why(site, turn(0, 0))


def test_answers_are_bounded_and_rounds_long_over_stay_over(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(journals, "MOST_BYTES", 400)
    site = approved(tmp_path)
    for round in range(20):
        reply(site, turn(round, 0))
    kept = [journals.Place(round, 0) for round in range(20) if site.run._journal.find(journals.Place(round, 0))]
    assert 1 <= len(kept) <= 400 // 30
    assert "answered round 19 before" in why(site, turn(0, 0))
    site.leave()
    site = approved(tmp_path)
    assert "is asked about round 2, and answered round" in why(site, turn(2, 1)), "client 1 was not asked at all"
    assert reply(site, turn(19, 0))


# ---- rounds of several exchanges

TWO = ScaffoldZO(rate=1e-3, type="I", form="seeded", directions=2, local_steps=2, samples="batch")


def two_exchanges(folder: Path, *filters: Link) -> Site:
    return approving(folder, recipe_of(TWO, clients=2, cohort=2, filters=filters))


def carried_on(values: float = 1.0) -> bytes:
    return order(0, encode_instruction(Continue(0, 1, np.full(4, values, "<f4").tobytes(), (0, 1))), 1)


def start_of(site: Site) -> bytes:
    if site.run.agreement.traits.delivery == "snapshot":
        state = site.run.replica.state
        return order(0, encode_instruction(Snapshot(0, 0, state.numbers, state.to_bytes())))
    return turn(0, 0)


@pytest.mark.parametrize("filters", [(), (Noise(),)], ids=["exact", "noised"])
@pytest.mark.parametrize("restarted", [False, True])
def test_exchanges_are_asked_once_too(tmp_path: Path, restarted: bool, filters, capsys) -> None:
    """Noise that was drawn in private is drawn once, also by a process that was killed between the exchanges."""
    plugins.register(Noise)
    site = two_exchanges(tmp_path, *filters)
    assert "a different exchange" in why(site, carried_on())
    start = start_of(site)
    first = reply(site, start)
    if restarted:
        site.leave()
        site = two_exchanges(tmp_path, *filters)
        assert "a different exchange" in why(site, carried_on())
    assert reply(site, start) == first
    second = reply(site, carried_on())
    assert "before, by another question" in why(site, carried_on(5.0))
    assert (reply(site, start), reply(site, carried_on())) == (first, second)


def test_no_other_model_in_the_middle_of_a_round(tmp_path: Path, capsys) -> None:
    site = two_exchanges(tmp_path)
    reply(site, start_of(site))
    moved = Seeded(0, bytes(4 * site.run.agreement.cost(0).replies[-1] * 2), (0, 1))
    asked(site, encode(Recover(True, (encode_update(moved),))))
    assert site.run.replica.history != journals.UNKNOWN or site.run.replica.round == 0
    site.run.replica.history = b"another"
    assert "in the middle of round 0" in why(site, carried_on())


# ---- evaluations


def measure(after: int, *updates: Seeded) -> bytes:
    return encode(Measure(tuple(map(encode_update, updates)), after))


def measuring(folder: Path) -> Site:
    return approving(folder, msgspec.structs.replace(recipe_for(), evaluate_every=4))


def test_evaluations_are_after_the_rounds_that_the_recipe_says(tmp_path: Path, capsys) -> None:
    site = measuring(tmp_path)
    for after in (1, 3, 49, 51, 52, 10_828):
        assert f"was told to evaluate the model after round {after}" in refused(site, measure(after))
    for after in (0, 4, 48, 50):
        assert asked(site, measure(after)).metrics is not None
    asked(site, encode(Recover(False, (encode_update(update(7)),))))
    assert "has that after round 8" in refused(site, measure(4))
    assert "was sent an update of round 8" in refused(site, measure(8, update(8)))


def test_two_hundred_evaluations_at_models_of_the_servers_choosing(tmp_path: Path) -> None:
    """One is made; of the other models the site says which they are, for a server that lost its last rounds."""
    site, found = measuring(tmp_path), []
    for number in range(200):
        asked(site, encode(Recover(True, ())))
        found.append(asked(site, measure(8, update(0, number / 10))))
    assert sum(measured.metrics is not None for measured in found) == 1
    assert len({measured.model for measured in found}) == 200
    assert asked(site, encode(Recover(True, ()))) is not None
    again = asked(site, measure(8, update(0, 0.0)))
    assert isinstance(again, Measured)
    assert again == found[0], "the same again"


def test_an_evaluation_is_paid_once(tmp_path: Path, capsys) -> None:
    site = measuring_with(tmp_path, queries_per_day=1)
    assert asked(site, measure(0)) == asked(site, measure(0))
    assert "queries_per_day = 1" in refused(site, measure(4))


def measuring_with(folder: Path, **terms) -> Site:
    return approving(folder, msgspec.structs.replace(recipe_for(), evaluate_every=4), **terms)


# ---- orders that are too large


def test_an_order_has_a_size(tmp_path: Path, monkeypatch, capsys) -> None:
    from fedzero.deploy.site import admission

    monkeypatch.setattr(admission, "SMALL", 1 << 16)
    site = site_with(tmp_path)
    assert "bytes, where at most 65,536 are expected" in refused(site, bytes(1 << 17))
    asked(site, prepare(recipe_for()))
    most = site.run.agreement.largest
    assert most < 1 << 19
    assert "was sent an order of" in refused(site, bytes(most + 1))
    honest = order(49, work(49, [update(r) for r in range(49)]))
    assert len(honest) < most
    assert reply(site, honest)


def test_clients_are_made_when_they_are_asked(tmp_path: Path, capsys) -> None:
    recipe = recipe_of(DeComFL(rate=1e-3, directions=2), clients=200_000, cohort=1, task=Quadratic(dimension=1))
    site = site_with(tmp_path)
    assert isinstance(asked(site, prepare(recipe, clients=tuple(range(200_000)))), Prepared)
    assert len(site.run.host.clients.clients) == 0
    strangers = encode(Exchange(0, 0, dict.fromkeys(range(200_000, 400_000), b"")))
    assert len(refused(site, strangers)) < 100, "one sentence, not one for each"


# ---- limits of a recipe


def own_task(rows: int, features: int = 8):
    torch.manual_seed(0)
    x, y = torch.randn(rows, features), torch.randint(0, 2, (rows,))
    return fedzero.site_task(torch.nn.Linear(features, 2), (x, y), loss=torch.nn.functional.cross_entropy)


def drain(**changes):
    """8 rows with their labels were found in 0.34 s, of a site that had said which methods and tasks it serves."""
    from fedzero.tasks.own import Own

    algorithm = {"rate": 1e-3, "directions": 18, **changes.pop("algorithm", {})}
    return recipe_for(algorithm=DeComFL(**algorithm), task=Own(name="radiology", **changes))


LIMITS = {
    "least_batch": (drain(batch=1), "its terms have least_batch = 8, and task.batch = 1: ", "least_batch=1"),
    "most_directions": (
        drain(algorithm={"directions": 260}), "most_directions = 256, and algorithm.directions = 260: ",
        "most_directions=260",
    ),
    "most_local_steps": (
        drain(algorithm={"local_steps": 101}), "most_local_steps = 100, and algorithm.local_steps = 101: ",
        "most_local_steps=101",
    ),
    "projections": (
        drain(algorithm={"directions": 200, "local_steps": 20}), "projections = 2,000, and a turn has 4000 ",
        "projections=4000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_says_its_name_what_is_asked_and_how_it_is_changed(tmp_path: Path, name: str, capsys) -> None:
    """Before data are touched: there is no such module."""
    recipe, words, option = LIMITS[name]
    limited = Terms(methods=("decomfl",), tasks=("own",))
    said = refused(site_with(tmp_path, terms=limited, tasks={"*": "no_such_module:task"}), prepare(recipe))
    assert words in said
    assert f"`fedzero join KIT --term {option}`" in said
    assert "could not be built" in refused(
        site_with(tmp_path, terms=UNLIMITED, tasks={"*": "no_such_module:task"}), prepare(recipe)
    )


@pytest.mark.parametrize(("rows", "served"), [(7, False), (8, True)])
def test_a_client_has_as_many_rows_as_an_evaluation_is_of(tmp_path: Path, monkeypatch, rows, served, capsys) -> None:
    """A server that deals a site's rows out to many clients has batches of one row, whatever task.batch is."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"clinic_{rows}.py").write_text(
        f"from test_orders_out_of_place import own_task\ntask = own_task({rows})\n"
    )
    site = site_with(tmp_path, tasks={"*": f"clinic_{rows}:task"})
    assert isinstance(asked(site, prepare(drain(batch=32))), Prepared)
    if served:
        assert reply(site, turn(0, 0))
    else:
        assert "least_batch = 8, and client 0 has fewer rows here" in why(site, turn(0, 0))


def test_directions_at_one_model_are_counted_over_rounds_runs_and_restarts(tmp_path: Path, capsys) -> None:
    """Two of each round; the same ones again are no more than they were."""
    terms = Terms(projections=10)
    site = site_with(tmp_path, terms=terms)
    asked(site, prepare(recipe_for()))
    for round in range(3):
        reply(site, turn(round, 0))
    site.leave()
    again = site_with(tmp_path, terms=terms)
    asked(again, prepare(recipe_for(), run="another"))
    for round in range(3):
        reply(again, turn(round, 0))  # known directions
    asked(again, prepare(recipe_for(seed=6), run="third"))
    for round in range(2):
        reply(again, turn(round, 0))
    assert "its terms have projections = 10, and at this model it was asked about 10, and this is 2 more" in why(
        again, turn(2, 0)
    )
    assert reply(again, turn(2, 1), 1), "of other rows"
    assert reply(again, order(2, work(2, [update(0)]))), "at another model"


def test_methods_that_say_nothing_of_directions_are_limited_too(tmp_path: Path, capsys) -> None:
    from fedzero.methods import FZooS

    greedy = FZooS(local_steps=2)
    site = site_with(tmp_path, terms=Terms(most_directions=1))
    assert "most_directions = 1, and a turn takes" in refused(site, prepare(recipe_of(greedy, clients=2, cohort=2)))


def test_prepare_may_not_be_repeated_to_begin_anew(tmp_path: Path, capsys) -> None:
    """A run is known by its name, its recipe and its base model, whoever begins it again."""
    recipe = recipe_for()
    site = approving(tmp_path, recipe)
    reply(site, order(4, work(4, [update(0)])))
    for _ in range(3):
        text = recipes.canonical(recipe)
        assert isinstance(asked(site, encode(Prepare("run", text, (0, 1)))), Prepared)
        assert "by another question" in why(site, order(4, work(4, [update(0, 3.0)])))


def test_answers_that_no_journal_keeps_are_refused_before_a_round():
    """A value of SQLite has at most 10⁹ bytes."""
    dense, seeded = (recipe_of(algorithm=each) for each in (FedAvg(rate=0.1), DeComFL(rate=0.1)))
    admission.check_answers(plan_of(dense, Keys.of_seed(1), 249_000_000))
    admission.check_answers(plan_of(seeded, Keys.of_seed(1), 10**11))
    with pytest.raises(Sendable, match="an answer of fedavg would have 1,000,000,064 bytes"):
        admission.check_answers(plan_of(dense, Keys.of_seed(1), 250_000_000))
