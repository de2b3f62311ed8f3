"""A gathering that leaves a sum: the update is that of plain replies, what reads single replies is refused, and a host
answers a phase once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import recipe_of, small
from masks import Masks
from noise import Noise

from fedzero import plugins
from fedzero.directions import Keys
from fedzero.engines.gathering import Hosting, without_numbers
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.answers import Answers, Place, files_of
from fedzero.links import Chain, Coder, Gathering, LinkTraits, Total
from fedzero.links.clip import Clip
from fedzero.links.contract import ClientContext, Contribution, Replies
from fedzero.links.gathering import AtHost, AtServer, HostContext, ServerContext
from fedzero.links.median import Median
from fedzero.links.quantise import Quantise
from fedzero.links.server_clip import ServerClip
from fedzero.links.topk import TopK
from fedzero.methods import DeComFL, FedAvg, FZooS, ResponseSurface, ScaffoldZO
from fedzero.methods.contract import Scale, StepInputs
from fedzero.model.updates import decode_update, pack, unpack
from fedzero.protocol.engine import arrivals
from fedzero.protocol.messages import Phase, decode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.testing.trial import Trial, trial

METHOD = DeComFL(rate=2e-3, directions=4)


@pytest.fixture(autouse=True)
def known() -> None:
    for kind in (Masks, Noise, Passed):
        plugins.register(kind)


def masked(algorithm: Any = METHOD, gathering: Any = None, **options: Any) -> recipes.Recipe:
    recipe = msgspec.to_builtins(recipe_of(algorithm, **{"clients": 6, "cohort": 4, **options}))
    return recipes.decode(recipe | {"gathering": msgspec.to_builtins(gathering or Masks())})


class Losing:
    """Clients of which some hosts are lost in a phase."""

    def __init__(self, clients: Any, lost: Mapping[int, set[str]]):
        self.inner, self._lost = clients, lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def phase(self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]) -> Mapping[str, Any]:
        gone = self._lost.get(phase, set())
        found = self.inner.phase(asked, exchange, phase, {h: body for h, body in bodies.items() if h not in gone})
        return {**found, **{host: FedzeroError("the line is dead") for host in bodies.keys() & gone}}


def numbers(run: Trial) -> list[Any]:
    return [unpack(decode_update(record.update).scalars) for record in run.records]


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "scalars": (METHOD, {}),
    "drawn twice": (METHOD, {"replacement": True}),
    "a residual": (METHOD, {"filters": (Clip(norm=2.0), TopK(fraction=0.5, feedback=True), Quantise())}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_update_is_that_of_plain_replies(tmp_path: Path, case) -> None:
    method, options = CASES[case]
    plain = small(tmp_path / "plain", method, clients=6, cohort=4, **{**options, "bound": 0.0})
    run = trial(tmp_path / "masked", masked(method, **options))
    plain.play(4)
    run.play(4)
    for one, other in zip(numbers(plain), numbers(run), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-8)
    for one, other in zip(plain.records, run.records, strict=True):
        assert (one.cohort, one.queries, one.refused, one.remembered) == (
            *(other.cohort, other.queries, other.refused, other.remembered),
        )
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
    assert run.replayed().digest() == run.replica.digest()


@pytest.mark.parametrize("method", [FedAvg(rate=2e-3), ScaffoldZO(rate=1e-3, type="I", form="dense"), FZooS(rate=1e-2)])
def test_models_and_several_exchanges_are_summed(tmp_path: Path, method) -> None:
    plain = small(tmp_path / "plain", method, clients=4, cohort=3, bound=0.0)
    run = trial(tmp_path / "masked", masked(method, clients=4, cohort=3))
    plain.play(2)
    run.play(2)
    assert all(not record.refused for record in run.records)
    for one, other in zip(plain.replica.state.tensors(), run.replica.state.tensors(), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-4, atol=1e-6)


def test_a_party_that_is_lost_between_the_phases_is_not_in_the_sum(tmp_path: Path) -> None:
    run = trial(tmp_path, masked(clients=4, cohort=4))
    run.engine = Losing(run.engine, {1: {"client 2"}})
    run.play(2)
    without = small(tmp_path / "three", METHOD, clients=4, cohort=4, bound=0.0)
    without.engine.shards = without.setup.problem.shards
    sending = without.server.delivery.instructions(0, (0, 1, 3))
    without.engine.send(0, 0, sending.messages, sending.which)
    values = [unpack(decode_reply(each.data, 1000).values) for each in arrivals(without.engine)]
    np.testing.assert_allclose(numbers(run)[0], np.mean(values, axis=0), rtol=1e-5)
    for record in run.records:
        assert record.refused == ((2, "failed: the line is dead"),)
    assert run.replayed().digest() == run.replica.digest()


@pytest.mark.parametrize("lost", [{0: {"client 0", "client 1", "client 2"}}, {1: {"client 1"}, 2: {"client 3"}}])
def test_where_too_few_are_left_nobody_counts_and_the_run_goes_on(tmp_path: Path, lost) -> None:
    run = trial(tmp_path, masked(clients=4, cohort=4))
    inner, run.engine = run.engine, Losing(run.engine, lost)
    run.play(1)
    assert run.records[0].update is None and len(run.records[0].refused) == 4
    run.engine = inner
    run.play(1)
    assert run.records[1].update is not None and not run.records[1].refused


class Passed(Gathering, tag="test-passed"):
    """Gives the server every reply, or a total that somebody made up."""

    made_up: Any = None
    hides_replies = False

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        yield msgspec.msgpack.encode({client: pack(each.values) for client, each in mine.items()})

    def at_server(self, hosts: Mapping[str, tuple[int, ...]], server: ServerContext) -> AtServer:
        answers = yield dict.fromkeys(hosts, b"")
        if self.made_up is not None:
            return Total(np.array(self.made_up["values"]), 1.0, tuple(self.made_up["clients"]), 0.5)
        found = [msgspec.msgpack.decode(a, type=dict[int, bytes]) for a in answers.values() if isinstance(a, bytes)]
        return Replies({client: unpack(data) for each in found for client, data in each.items()}, server.weights)


def test_a_gathering_may_leave_the_replies(tmp_path: Path) -> None:
    """Then links on the server read them, and the update is that of plain replies."""
    plain = small(tmp_path / "plain", METHOD, clients=6, cohort=4, filters=(Median(),), bound=0.0)
    run = trial(tmp_path / "passed", masked(gathering=Passed(), filters=(Median(),)))
    plain.play(2)
    run.play(2)
    assert [r.update for r in run.records] == [r.update for r in plain.records]


@pytest.mark.parametrize(
    ("values", "clients", "why"),
    [
        ([1.0] * 4, [0, 9], "of others than the clients that were asked"),
        ([1.0] * 4, [0, 0], "of others than the clients that were asked"),
        ([1.0] * 4, [], "of others than the clients that were asked"),
        ([1.0] * 3, [0], "where 4 were expected"),
        ([float("nan")] * 4, [0], "NaN or infinite"),
    ],
)
def test_a_sum_that_cannot_be_one_counts_for_nothing(tmp_path: Path, values, clients, why) -> None:
    run = trial(tmp_path, masked(gathering=Passed(), clients=4, cohort=4))
    made_up = Passed(made_up={"values": values, "clients": clients})
    object.__setattr__(run.server.plan, "chain", replace(run.setup.chain, gathering=made_up))
    run.play(1)
    (record,) = run.records
    assert record.update is None and record.loss is None
    assert len(record.refused) == 4 and all(why in said for _, said in record.refused)


def test_a_reply_leaves_without_its_numbers(tmp_path: Path) -> None:
    run = trial(tmp_path, masked())
    sending = run.server.delivery.instructions(0, range(4))
    run.engine.send(0, 0, sending.messages, sending.which)
    for arrival in arrivals(run.engine):
        reply = decode_reply(arrival.data, 1000)
        assert (reply.values, reply.loss) == (b"", b"") and reply.queries


def test_numbers_that_travel_beside_a_gathering_are_refused(tmp_path: Path) -> None:
    run = trial(tmp_path, masked())
    run.engine = run.engine.inner
    run.play(1)
    assert {why for _, why in run.records[0].refused} == {
        "sent its numbers or its loss by itself, where a gathering asks for them"
    }


# ---- what stands beside it


@pytest.mark.parametrize(
    ("recipe", "reader"),
    [
        ({"filters": (Median(),)}, "filter 'median' reads the reply"),
        ({"filters": (Clip(norm=1.0), ServerClip(norm=1.0))}, "filter 'server-clip' reads the reply"),
        ({"algorithm": ScaffoldZO(rate=1e-3, form="dense")}, "scaffold-zo reads the reply"),
        ({"algorithm": ScaffoldZO(rate=1e-3, form="seeded")}, "scaffold-zo reads the reply"),
        ({"bound": 1.5}, "federation.bound compares"),
    ],
    ids=["median", "server-clip", "pairs", "own directions", "bounding"],
)
def test_what_reads_each_reply_is_refused_beside_it(recipe, reader) -> None:
    with pytest.raises(FedzeroError, match="gathering: 'test-masks' leaves a sum of all replies, but") as refused:
        prepare(masked(**recipe), Environment())
    assert reader in str(refused.value)


def test_an_attack_on_single_replies_is_refused_beside_it() -> None:
    table = msgspec.to_builtins(masked())
    attacked = table | {"engine": table["engine"] | {"attack": {"kind": "sign-flip", "fraction": 0.3}}}
    with pytest.raises(FedzeroError, match=r"gets no replies on their way, which engine\.attack would change"):
        recipes.decode(attacked)


def test_a_method_says_that_it_reads_each_reply() -> None:
    traits = ResponseSurface(points=4).traits(Scale(2, 3))
    with pytest.raises(FedzeroError, match="response-surface reads the reply of every client"):
        Chain(gathering=Masks()).check("response-surface", True, 3, reads_each_reply=traits.reads_each_reply)


def test_a_method_that_did_not_say_so_is_stopped(tmp_path: Path) -> None:
    class Peeking(DeComFL, tag="peeking"):
        def aggregate(self, gathered: StepInputs) -> Any:
            return max(gathered.contributions)

    plugins._registered["methods"]["peeking"] = plugins.Plugin(Peeking, "", "")
    try:
        run = trial(tmp_path, masked(Peeking(rate=1e-3)))
        with pytest.raises(FedzeroError, match="hides the replies of single clients"):
            run.play(1)
    finally:
        del plugins._registered["methods"]["peeking"]


def test_a_recipe_without_one_is_written_as_before() -> None:
    table = msgspec.json.decode(recipes.canonical(recipe_of(METHOD)))
    assert "gathering" not in table
    recipe = masked()
    assert recipe.federation.bound == 0.0
    assert recipes.from_canonical(recipes.canonical(recipe)) == recipe
    assert recipes.decode(msgspec.toml.decode(recipes.to_toml(recipe))) == recipe
    assert 'kind = "test-masks"' in recipes.to_toml(recipe)


def test_one_that_is_not_there_is_named() -> None:
    table = msgspec.to_builtins(recipe_of(METHOD)) | {"gathering": {"kind": "nothing"}}
    with pytest.raises(FedzeroError, match=r"gathering\.kind = 'nothing'"):
        recipes.decode(table)


# ---- a host answers a phase once


class Host:
    """A host of clients 0 and 1, with what it keeps in a folder."""

    def __init__(self, folder: Path, run: Trial):
        self.folder, self.chain = folder, run.setup.chain
        self.whole: dict[int, bytes] = {}
        sending = run.server.delivery.instructions(0, (0, 1))
        inner = run.engine.inner
        inner.send(0, 0, sending.messages, sending.which)
        self.whole = {each.client: each.data for each in arrivals(inner)}
        self.drawn = 0
        self.new()

    def _entropy(self, count: int) -> bytes:
        self.drawn += 1
        return bytes([self.drawn] * count)

    def new(self) -> None:
        """Another process."""
        self.answers = Answers(self.folder)
        assert self.chain.gathering is not None
        self.hosting = Hosting(self.chain, self.chain.gathering, self.answers, self._entropy)

    def ask(self, order: Phase) -> bytes | Exception:
        return self.hosting.answers({0: order}, lambda host: self.whole, 4)[0]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, trial(tmp_path / "run", masked()))


def opening(round: int = 0, exchange: int = 0) -> Phase:
    return Phase(round, exchange, 0, msgspec.msgpack.encode(("a", {0: 1, 1: 1})))


def publics(**others: bytes) -> bytes:
    return msgspec.msgpack.encode(others)


def test_a_phase_is_answered_again_by_the_same_bytes_also_by_another_process(host: Host) -> None:
    first = host.ask(opening())
    assert isinstance(first, bytes)
    second = Phase(0, 0, 1, publics(a=first, b=b"\x07" * 16))
    third = Phase(0, 0, 2, msgspec.msgpack.encode(["b"]))
    host.new()
    masked_sum = host.ask(second)
    assert host.ask(opening()) == first and host.ask(second) == masked_sum
    host.new()
    recovered = host.ask(third)
    assert [host.ask(each) for each in (opening(), second, third)] == [first, masked_sum, recovered]
    assert host.drawn == 1, "random numbers were drawn twice"


def test_another_question_for_the_same_phase_is_refused(host: Host) -> None:
    first = host.ask(opening())
    assert isinstance(first, bytes)
    assert isinstance(host.ask(Phase(0, 0, 1, publics(a=first, b=b"\x07" * 16))), bytes)
    for other in (Phase(0, 0, 1, publics(a=first)), Phase(0, 0, 0, opening().body + b"\0")):
        found = host.ask(other)
        assert isinstance(found, Refused) and "before, with another body" in str(found)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (Phase(0, 0, 1, b""), "not the one before it"),
        (Phase(3, 0, 2, b""), "not the one before it"),
        (Phase(0, 0, 16, b""), "at most 16"),
        (Phase(0, 0, 3, b""), "over before"),
        (Phase(0, 0, 0, b""), "is over"),
    ],
    ids=["the next", "of another round", "too many", "behind the last", "of an earlier round"],
)
def test_a_phase_that_is_not_the_next_is_refused(host: Host, order: Phase, why: str) -> None:
    if "over" in why:
        first = host.ask(opening(order.round + (why == "is over")))
        assert isinstance(first, bytes)
    if why == "over before":
        host.ask(Phase(0, 0, 1, publics(a=first)))
        host.ask(Phase(0, 0, 2, msgspec.msgpack.encode([])))
    found = host.ask(order)
    assert isinstance(found, FedzeroError) and why in str(found)


def test_a_host_without_replies_gives_none(host: Host) -> None:
    host.whole = {}
    assert "has no reply" in str(host.ask(opening()))


def test_a_host_whose_answers_are_lost_says_so(host: Host) -> None:
    first = host.ask(opening())
    assert isinstance(first, bytes)
    host.answers.close()
    for path in files_of(host.folder):
        path.unlink(missing_ok=True)
    host.new()
    assert "not the one before it" in str(host.ask(Phase(0, 0, 1, publics(a=first))))


def test_noise_is_drawn_once_and_stays_at_the_host(tmp_path: Path) -> None:
    run = trial(tmp_path, masked(filters=(Clip(norm=2.0), Noise())))
    run.play(1)
    with closing(Answers(tmp_path)) as answers:
        kept = answers.of_exchange(0, 0)
    assert kept.keys() == set(run.records[0].cohort)
    values = [unpack(decode_reply(each, 1000).values) for each in kept.values()]
    np.testing.assert_allclose(numbers(run)[0], np.mean(values, axis=0), rtol=1e-5, atol=1e-8)
    assert run.records[0].loss in (None, 0.0) and Place(0, 0)


def test_without_numbers_nothing_else_is_left_out(host: Host) -> None:
    whole = decode_reply(host.whole[0], 1000)
    bare = decode_reply(without_numbers(host.whole[0]), 1000)
    assert msgspec.structs.replace(whole, values=b"", loss=b"") == bare


# ---- noise that claims to be private follows from no key


class PrivateCoder(Coder, tag="test-private-coder"):
    """Writes numbers with noise."""

    traits = LinkTraits(draws_privately=True)

    def encode(self, values: Any, draw: Any) -> tuple[bytes, bytes]:
        return b"", (values + draw().standard_normal(len(values))).astype("<f4").tobytes()

    def decode(self, scale: bytes, codes: bytes, count: int) -> Any:
        return np.frombuffer(codes, "<f4").copy()

    def length(self, count: int) -> int:
        return 4 * count


@pytest.mark.parametrize("link", [PrivateCoder(), Noise()])
def test_private_noise_follows_from_no_key(link) -> None:
    def draw() -> Any:
        return Keys.of_seed(1).generator("filter", 0, 0, 0)

    values = np.ones(8, np.float32)
    sent = [Chain((link,)).on_client(Contribution(values, 0.0), None, ClientContext(draw)).data for _ in range(2)]
    assert sent[0] != sent[1]
    source = ClientContext(draw, entropy=lambda count: bytes(count))
    same = [Chain((link,)).on_client(Contribution(values, 0.0), None, source).data for _ in range(2)]
    assert same[0] == same[1] not in sent


def test_an_attacker_adds_no_noise_to_what_it_sends() -> None:
    values = np.ones(8, np.float32)
    chain = Chain((Clip(norm=1.0), Noise()))
    sent = chain.encode(values, None, lambda: np.random.default_rng(0))
    assert sent.data == Chain((Clip(norm=1.0),)).encode(values, None, lambda: np.random.default_rng(0)).data
