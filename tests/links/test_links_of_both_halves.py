"""Links with both halves: what a link does on the client and on the server, what hides a loss, what follows from
traits, and that packages for 0.2 go on working."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from harness import small
from noise import Noise
from vectors import draw, normal

from fedzero import plugins
from fedzero.errors import FedzeroError, Refused
from fedzero.links import Chain, Link, LinkTraits, Shaper
from fedzero.links.bound import FAR, Bound
from fedzero.links.clip import Clip
from fedzero.links.contract import ClientContext, Contribution, Promise, Replies
from fedzero.links.quantise import Quantise
from fedzero.links.topk import TopK
from fedzero.methods import DeComFL, FedAvg
from fedzero.protocol.messages import decode_reply, loss_bytes, loss_of
from fedzero.testing import CheckFailed, check_filter, check_link
from fedzero.testing.engines import Changing

MEZO = DeComFL(rate=1e-3, directions=4)


class Doubled(Link, tag="test-doubled"):
    """Twice as long on the way; clients whose numbers are too long are left out, others halved again and marked."""

    def on_client(self, mine: Contribution, client: ClientContext) -> Contribution:
        return msgspec.structs.replace(mine, values=2 * mine.values)

    def admits(self, given: Promise) -> Promise:
        return Promise(given.count, given.places, 2 * given.length)

    def on_server(self, replies: Replies) -> Replies:
        values = {client: own / 2 for client, own in replies.values.items() if client != 1}
        refused = {1: "is the client that this link leaves out"} if 1 in replies.values else {}
        return Replies(values, replies.weights, {**replies.refused, **refused}, replies.bounded | {2} & values.keys())


@pytest.fixture(autouse=True)
def known() -> None:
    for kind in (Noise, Doubled):
        plugins.register(kind)


def test_both_halves_are_of_one_value(tmp_path: Path) -> None:
    """The server undoes what the client did; who is refused or marked is on the ledger."""
    plain = small(tmp_path / "plain", MEZO, clients=4, cohort=4, bound=0.0)
    both = small(tmp_path / "both", MEZO, clients=4, cohort=4, bound=0.0, filters=(Doubled(),))
    heard: dict[str, dict[int, bytes]] = {"plain": {}, "both": {}}
    for name, run in (("plain", plain), ("both", both)):

        def listen(replies, *_, name=name):
            heard[name] = {client: decode_reply(data, 1 << 20).values for client, data in replies}
            return replies

        run.engine = Changing(run.engine, listen)
        run.play(1)
    sent = {name: {c: np.frombuffer(v, "<f4") for c, v in found.items()} for name, found in heard.items()}
    assert all((sent["both"][client] == 2 * sent["plain"][client]).all() for client in range(4))
    assert both.records[0].refused == ((1, "is the client that this link leaves out"),)
    assert both.records[0].bounded == (2,)
    assert plain.records[0].bounded is msgspec.UNSET and not plain.records[0].refused


def test_halves_have_places_in_the_chain() -> None:
    Chain((Doubled(), Quantise())).check_order()
    with pytest.raises(FedzeroError, match="'test-doubled' cannot follow 'quantise'"):
        Chain((Quantise(), Doubled())).check_order()
    assert Chain((Clip(norm=3.0), Doubled())).promise(5).length == pytest.approx(6.0, rel=1e-4)
    assert Chain((Clip(norm=3.0), Noise())).promise(5).length == np.inf


def test_a_bound_marks_whom_it_shortens_and_refuses_where_clients_keep_accounts() -> None:
    values = {client: np.full(4, 1.0, np.float32) for client in range(4)} | {4: np.full(4, 50.0, np.float32)}
    weights = dict.fromkeys(values, 1)
    left = Bound(factor=2.0).on_server(Replies(values, weights))
    assert (left.bounded, left.refused) == ({4}, {})
    assert left.values[4].tolist() == [2.0] * 4 and left.values[0] is values[0]
    kept = Bound(factor=2.0, accounts=True).on_server(Replies(values, weights))
    assert kept.values == values and not kept.bounded, "50 times the others' is not beyond all measure"
    far = values | {4: np.full(4, 2 * FAR, np.float32)}
    refused = Bound(factor=2.0, accounts=True).on_server(Replies(far, weights))
    assert refused.values.keys() == {0, 1, 2, 3} and "more than a client may send" in refused.refused[4]


# ---- a loss that is hidden


@pytest.mark.parametrize("loss", ["hidden", "noised"])
def test_a_hidden_loss_does_not_travel(tmp_path: Path, loss) -> None:
    """The reply carries what the link put there, and the record what the replies say, or nothing."""
    run, said = small(tmp_path, MEZO, filters=(Noise(loss=loss),), bound=1.5, clients=5, cohort=5), []

    def listen(replies, *_):
        said.extend(decode_reply(data, 1 << 20).loss for _, data in replies)
        return replies

    run.engine = Changing(run.engine, listen)
    run.play(3)
    assert not any(record.refused for record in run.records)
    assert {len(each) for each in said} == ({0} if loss == "hidden" else {4})
    found = [record.loss for record in run.records]
    assert found == [None] * 3 if loss == "hidden" else all(isinstance(each, float) for each in found)
    assert run.replayed().digest() == run.replica.digest()


def test_without_such_a_link_a_reply_needs_a_loss(tmp_path: Path) -> None:
    for loss in (b"", b"\0\0\0", loss_bytes(None)):
        with pytest.raises(Refused, match="sent no training loss"):
            loss_of(loss)
    assert loss_of(loss_bytes(None), hidden=True) is None
    assert loss_of(loss_bytes(0.5)) == loss_of(loss_bytes(0.5), hidden=True) == 0.5
    for bad in (loss_bytes(float("nan")), loss_bytes(1e39), b"\0"):
        with pytest.raises(Refused):
            loss_of(bad, hidden=True)


def test_private_noise_follows_from_no_key(tmp_path: Path) -> None:
    """Two runs of one recipe send other numbers, and the same ones where the source is the same."""
    chain, values = Chain((Noise(),)), normal(9)

    def sent(entropy) -> bytes:
        return chain.on_client(Contribution(values, 0.5), None, ClientContext(draw(), entropy=entropy)).data

    def fixed(count: int) -> bytes:
        return bytes(range(count))

    assert sent(fixed) == sent(fixed)
    one, other = (small(tmp_path / name, MEZO, filters=(Noise(),)) for name in ("one", "other"))
    one.play(1)
    other.play(1)
    assert one.records[0].update != other.records[0].update


@pytest.mark.parametrize("links", [(TopK(feedback=True), Noise()), (Noise(), TopK(feedback=True))])
def test_what_is_left_out_must_not_take_back_noise(links) -> None:
    ordered = Chain(links)
    with pytest.raises(FedzeroError, match="would take back the noise that another link adds"):
        ordered.check("x", True, 10)


# ---- what a link must do, and what packages for 0.2 have


@pytest.mark.parametrize("link", [Noise(), Noise(loss="noised"), Doubled()], ids=lambda link: f"{link.name}")
def test_links_of_both_halves_conform(link) -> None:
    from fedzero.testing import filters

    slow = filters.runs_with_methods
    check_link(link, [check for check in filters.CHECKS if check is not slow or isinstance(link, Noise)])


class Careless(Noise, tag="test-careless"):
    traits = LinkTraits()


class Idle(Link, tag="test-idle"):
    """Does nothing."""


class Boastful(Link, tag="test-boastful"):
    traits = LinkTraits(hides_loss=True, draws_privately=True)

    def on_client(self, mine: Contribution, client: ClientContext) -> Contribution:
        return mine


class Forgetful(Link, tag="test-forgetful"):
    def on_server(self, replies: Replies) -> Replies:
        return Replies({c: own for c, own in replies.values.items() if c}, replies.weights)


@pytest.mark.parametrize(
    ("link", "why"),
    [
        (Careless(), "it changes the loss, and has not the trait hides_loss"),
        (Boastful(), "it says that it hides the loss, and leaves it as it is"),
        (Idle(), "it overrides none of on_client, on_server and combine"),
        (Forgetful(), r"contributions of clients \[0, 1, 2, 3, 4\] became \[1, 2, 3, 4\]'s"),
    ],
    ids=lambda case: getattr(case, "name", ""),
)
def test_links_that_do_not_conform_are_told_why(link, why) -> None:
    from fedzero.testing import filters

    with pytest.raises(CheckFailed, match=why):
        check_link(link, [check for check in filters.CHECKS if check is not filters.runs_with_methods])


class OfOldTimes(Shaper, tag="test-old"):
    """As a package for 0.2 has it: `shape`, `most_places`, `longest`, and two words about what it leaves."""

    sparse = True
    feedback: bool = True

    def shape(self, values: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(values)) % 2, values, 0).astype(np.float32)

    def most_places(self, count: int) -> int:
        return count // 2


def test_a_shaper_of_old_times_is_a_link(tmp_path: Path) -> None:
    plugins.register(OfOldTimes)
    old = OfOldTimes()
    assert old.traits == LinkTraits(sparse=True, keeps_residual=True) and not old.reads_each_reply
    assert Chain((OfOldTimes(feedback=False),)).promise(9) == Promise(9, 4, np.inf)
    run = small(tmp_path, FedAvg(rate=1e-3), filters=(old,))
    run.play(2)
    assert not any(record.refused for record in run.records)
    assert check_filter is check_link
