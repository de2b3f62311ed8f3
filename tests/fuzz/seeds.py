"""Where the corpus begins: real messages, files and recipes, a few of each kind.

python tests/fuzz/seeds.py      writes tests/fuzz/corpus/TARGET/*.bin; what the fuzzer found stays
"""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import sums
from targets import CHAINS, METHODS, TARGETS

from fedzero.engines.devices import messages as device_messages
from fedzero.engines.devices import plan as device_plans
from fedzero.engines.devices.application import joined as posted
from fedzero.engines.devices.framing import unmasked
from fedzero.engines.devices.plan import DevicePlan, PlannedMethod, PlannedTask, PlannedTensor
from fedzero.engines.remote import messages as site_messages
from fedzero.ledger.patch import Patch
from fedzero.ledger.records import End, Evaluation, Round, Saved, Shown, encode_record
from fedzero.model.updates import Dense, Group, Seeded, Stepped, encode_update, pack
from fedzero.oracles import Metrics, Pictures
from fedzero.protocol.client import ClientMemory
from fedzero.protocol.messages import Continue, Reply, Snapshot, encode, encode_close, encode_reply, encode_work
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import statement
from fedzero.runs.progress import Silent
from fedzero.runs.session import start
from fedzero.runs.spending.budget import Budget
from fedzero.runs.spending.charges import Charge, Policy

CORPUS = Path(__file__).parent / "corpus"
RECIPE = """name = "tiny"
rounds = 3
evaluate_every = 2
[algorithm]
kind = "decomfl"
rate = {kind = "piecewise", points = [[0, 0.1], [9, 0.0]]}
directions = {start = 2, then = [[2, 3]]}
[algorithm.optimizer]
kind = "momentum"
[task]
kind = "quadratic"
dimension = 6
[[filters]]
kind = "top-k"
fraction = 0.5
[federation]
clients = 4
cohort = 2
"""
F4 = pack(np.arange(1, 7, dtype=np.float32))
SEEDED, DENSE = Seeded(0, F4, (0, 2), (1,)), Dense(1, F4, (0, 1, 2, 3))
STEPPED = Stepped(2, (Group(0, F4[:12]), Group(2, F4[:8], (1, 3), F4[:8], (0,))))


def frames() -> Iterator[tuple[str, bytes]]:
    """Of devices and gateways."""
    tensors = (
        PlannedTensor(1, (2, 3), 0.3, b"w\0float32\0(2, 3)\0"),
        PlannedTensor(1, (2,), 0.3, b"b\0float32\0(2,)\0"),
    )
    method = PlannedMethod(2, 1, 0.1, (0.9, 0.1), 1e-3, 4, 2, 1, 0.0, 8, 1)
    task = PlannedTask(1, (3, 2), (0.0,), (1.0,), ("a", "b"), (), 1)
    plan = device_plans.encode(DevicePlan(1, 1, "tiny", bytes(32), 3, 9, tensors, method, task))
    update = encode_update(SEEDED)
    for each in (
        device_messages.Enrol(1, bytes(16), 1, bytes(32), bytes(64)),
        device_messages.Hello(1, bytes(16), 2, bytes(16), bytes(32), None),
        device_messages.Proof(bytes(64)),
        device_messages.Answer(3, 0, 0, encode_reply(Reply(3, 0, b"8" * 8, F4, F4[:4], 11)), bytes(64)),
        device_messages.Refusal(3, 0, 0, 5, "no rows"),
        device_messages.Ready(300, b"8" * 8),
        device_messages.Fetch(bytes(32), 1 << 16),
        device_messages.Beat(),
    ):
        yield "frame", device_messages.encode(each)
    beat, mask = device_messages.encode(device_messages.Beat()), b"mask"
    long = unmasked(bytes(300), mask)
    yield "socket", b"\x80\x82\x82" + mask + unmasked(beat, mask) + b"\x89\x83" + mask + unmasked(b"hey", mask)
    yield "socket", b"\x10\x02\x81" + mask + b"\0\x80\x80" + mask + b"\x88\x80" + mask
    yield "socket", b"\xf0\x82\xfe\x01\x2c" + mask + long
    yield "poll", posted([beat, device_messages.encode(device_messages.Ready(300, b"8" * 8)), b""])
    body = device_messages.encode(device_messages.OrderBody(encode_work(3, 0, [update]), bytes(16)))
    missed = device_messages.encode(device_messages.UpdatesBody(True, (update,), b"", 4))
    for other in (
        device_messages.Welcome(plan, 20, 3, bytes(64)),
        device_messages.Order(3, 0, 0, body, bytes(64)),
        device_messages.Updates(missed, bytes(64)),
        device_messages.Error(9, "stale"),
    ):
        yield "gateway", device_messages.encode(other)


def seeds() -> Iterator[tuple[str, bytes]]:
    """(target, case)"""
    yield from frames()
    yield "reply", encode_reply(Reply(3, 0, b"8" * 8, F4, F4[:4], 11))
    yield "reply", encode_reply(Reply(300, 1, b"8" * 8, F4, F4[:4], 70_000, b"m" * 16))
    one, two = encode_update(SEEDED), encode_update(DENSE)
    instructions = [
        encode_work(3, 0, [one, two], 2),
        encode_close(3, one),
        encode(Snapshot(3, 0, msgspec.msgpack.encode([0.5, 1, [1.0], 3]), F4, None)),
        encode(Continue(3, 1, F4, (0, 2))),
    ]
    yield from (("instruction", each) for each in instructions)
    table = msgspec.toml.decode(RECIPE)
    canonical = recipes.canonical(recipes.decode(table))
    orders = [
        site_messages.Prepare("run", canonical, (0, 2), {"other": "1.0"}),
        site_messages.Recover(True, (one, two)),
        site_messages.Exchange(3, 0, {0: instructions[0], 2: instructions[2]}),
        site_messages.Deliver({0: instructions[1]}),
        site_messages.Measure((one,)),
        site_messages.Finish(3),
        site_messages.Phase(3, 0, 1, F4),
    ]
    yield from (("order", site_messages.encode(each)) for each in orders)
    orders[4] = site_messages.Measure((one,), 6)
    yield from (("place", bytes([n]) + site_messages.encode(each)) for each in orders[1:] for n in (0, 1, 3))
    for accuracy, loss in ((1e9, 1e308), (-1.0, -1e308), (float("nan"), float("inf"))):
        yield (
            "figures",
            site_messages.encode(site_messages.Measured(b"8" * 8, Metrics(loss, accuracy, {"f1": loss}), True)),
        )
    log = struct.pack(">IIIIIIII", 0x377F0682, 3007000, 4096, 0, 1, 2, 0, 0)
    for n, content in enumerate((log, bytes(32), b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(520), b"c" * 80)):
        yield "beside", bytes([n]) + content
    answers = [
        site_messages.Prepared(b"8" * 8, 6, {"model": "small"}, "aa", 3),
        site_messages.Prepared(b"8" * 8, 6, {"model": "small"}, None, 3, b"s" * 32),
        site_messages.Done(),
        site_messages.Replies({0: one}, {2: "failed: [/x] \x1b[31m"}),
        site_messages.Measured(b"8" * 8, Metrics(0.5, 0.9, {"other": 1.0}), True),
        site_messages.Measured(b"8" * 8, None, False, b"s" * 32),
        site_messages.Failed("see [/etc/config]"),
        site_messages.Phased(F4),
    ]
    yield from (("answer", site_messages.encode(each)) for each in answers)
    for number, chain in enumerate(CHAINS):
        values = np.linspace(-1, 1, 24, dtype=np.float32)
        yield "codes", bytes([number, 24]) + chain.encode(values, None, lambda: np.random.default_rng(0)).data
    for number, method in enumerate(METHODS):
        for body in (one, two):
            yield "update", bytes([number]) + body
        yield "state", bytes([number]) + msgspec.msgpack.encode([0.5, 1, [1.0], {0: [1, F4]}][: 1 + number % 4])
        made = Patch(1, b"8" * 8, b"8" * 8, ("w",), msgspec.json.encode(method), 4, b"r" * 32, b"r" * 32, (SEEDED,))
        yield "patch", msgspec.msgpack.encode(made)
        yield "json", recipes.canonical(recipes.decode(table)).replace(b'"tiny"', b'"t%d"' % number)
    for number in range(len(METHODS)):
        yield "update", bytes([number]) + encode_update(STEPPED)
    yield "instruction", encode_work(3, 0, [encode_update(STEPPED)])
    task = msgspec.json.encode({"kind": "quadratic", "dimension": 6})
    yield "patch", msgspec.msgpack.encode(msgspec.structs.replace(made, task=task, needs={"other": "1.0"}))
    yield "json", canonical
    yield "toml", RECIPE.encode()
    for name in ("demo", "demo-fedavg"):
        yield "toml", recipes.find(name).read_bytes()
    kept = ClientMemory((np.arange(3), np.ones((2, 2), np.float32)), {0: np.ones(2, np.float32)})
    chunks = [chunk.body for chunk in kept.chunks()]
    yield "memory", msgspec.msgpack.encode((3, chunks, (4, chunks)))
    yield from ledgers(table)
    row = [0, 1, 0, 0, b"d" * 16, "done", 0.5, "", np.ones(2).tobytes()]
    yield "queries", msgspec.msgpack.encode([row, [1, *row[1:]], [0, 2, -1, 0, b"e" * 16, "failed", None, "why", None]])
    yield "settings", b'\0data = "/srv"\nthreads = 1\n[tasks]\n"*" = "own:task"\n'
    yield "settings", b'\1{"host":"localhost","port":8002,"sites":["a","b"]}'
    yield "settings", b'\2{"run":"aa","clients":{"a":[0,1],"b":[2]}}'
    yield "settings", b'\3{"pid":1,"began":0.5,"run":"x"}'
    for message in (("job", ["a"], 7), (1, {"a": b"order"}, 60.0, 4096), (1, "a", True, b"answer")):
        yield "bridge", msgspec.msgpack.encode(message)
    yield "prompt", b'{sentence} It was {target[inner]}\n{"sentence": "good", "label": 1, "target": {"inner": "x"}}'
    yield "prompt", b'{sentence:>20} {label!r:{label}}\n{"sentence": "good", "label": 9}'
    for round in (0, 1):
        bodies, said, _ = sums.played(round)
        for phase, (body, answer) in enumerate(zip(bodies, said, strict=True)):
            yield "sum", bytes([4 * round + phase]) + body["b"]
            yield "sum", bytes([6 + 4 * round + phase]) + answer["c"]
    yield from private_files(table)
    yield "shown", b"see [/etc/config] \x1b]0;title\x07 \xe2\x80\xae [bold]\\"


def ledgers(table: dict[str, object]) -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        start(recipes.decode(table), folder, Environment(), Silent())
        yield "file", (folder / "ledger.db").read_bytes()
        with sqlite3.connect(folder / "ledger.db") as db:
            bodies = [body for (body,) in db.execute("SELECT body FROM entries ORDER BY seq")]
    yield "ledger", joined(bodies)
    metrics = Metrics(0.5, 0.9, {"x": 1.0})
    round = Round(0, (0, 1), None, False, 10, 10, 4, 0.5, ((0, "failed: [/x]"),), ((1, b"m" * 16),), ((1, b"q" * 32),))
    pictures = Pictures("p", ("a",), ("b",), 1, 1, 1, b"\0")
    others = [round, Saved(1, 0, b"s" * 32), Evaluation(1, b"8" * 8, metrics, b"s" * 32), Shown(1, pictures)]
    yield "ledger", joined([bodies[0], *map(encode_record, [*others, End(1, b"8" * 8, "stopped", b"s" * 32)])])
    late = Stepped(1, (Group(0, F4, (2,)), Group(1, F4, (1,))))
    mixed = [
        Round(0, (0,), encode_update(Seeded(0, F4)), False, 10, 10, 4, 0.5, asked=(0, 2)),
        Round(1, (1, 2), encode_update(late), False, 10, 10, 4, 0.5, asked=(1,)),
    ]
    yield "ledger", joined([bodies[0], *map(encode_record, mixed)])


def private_files(table: dict[str, object]) -> Iterator[tuple[str, bytes]]:
    """What runs with [privacy], and sites that take part in them, leave."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        method = {"kind": "decomfl", "rate": 0.1, "directions": 2}
        private = {**table, "algorithm": method, "filters": [], "privacy": {"sigma": 30.0, "noise": "local"}}
        start(recipes.decode(private), folder, Environment(), Silent())
        yield "statement", (folder / "privacy.json").read_bytes()
        statement.sign(statement.statement_in(folder), bytes(32), folder / "signed")
        yield "statement", (folder / "signed").read_bytes()
        with sqlite3.connect(folder / "ledger.db") as db:
            yield "ledger", joined([body for (body,) in db.execute("SELECT body FROM entries ORDER BY seq")])
        charge = Charge(recipe="ab", unit="example", delta=1e-5, sigma=1.0, q=(0.01, 1.0))
        with closing(Budget(folder, Policy(epsilon=2.0), b"data", "run")) as journal:
            for round in range(3):
                journal.reserve(charge, round, b"question")
        yield "budget", b"\0" + (folder / "budget.db").read_bytes()
        yield "budget", b"\1" + (folder / "budget.head").read_bytes()


def joined(bodies: list[bytes]) -> bytes:
    return msgspec.msgpack.encode([msgspec.Raw(body) for body in bodies])


def main() -> None:
    for target in TARGETS:
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for target, case in seeds():
        number = counts[target] = counts.get(target, -1) + 1
        (CORPUS / target / f"seed-{number:02d}.bin").write_bytes(case)


if __name__ == "__main__":
    main()
