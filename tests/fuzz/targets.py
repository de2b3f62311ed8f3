"""Everything that reads bytes of others, as functions of bytes: each returns, or raises the error it declares.

    TARGETS["reply"](data)      None, or any exception but FedzeroError: a finding

Where a format seals its content (a hash chain, a SHA-256), the target makes the seal: what is behind it is to be tried.
"""

from __future__ import annotations

import hashlib
import io
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import sums
import torch
from fedzero_client import plan as device_plan
from fedzero_client.errors import Broken, ClientError
from fedzero_client.packing import unpack
from msgspec import Raw
from rich.console import Console

from fedzero.deploy.flare.bridge import Answered, Hello, Orders, receive
from fedzero.deploy.flare.project import PROJECT, Project
from fedzero.deploy.server.queue import SUPERVISOR, supervisor
from fedzero.deploy.site import admission
from fedzero.deploy.site.admission import Agreement
from fedzero.deploy.site.settings import Settings
from fedzero.directions import Keys
from fedzero.engines.devices import messages as device_messages
from fedzero.engines.devices.application import joined, split
from fedzero.engines.devices.framing import Frames, Unframed
from fedzero.engines.memories import Remembered
from fedzero.engines.remote import measuring
from fedzero.engines.remote import messages as site_messages
from fedzero.engines.remote.assignment import SITES, SiteAssignment
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger import checkpoints, patch, query_log, replay
from fedzero.ledger.database import LOG_OF_QUERIES, TABLES
from fedzero.ledger.outline import GENESIS
from fedzero.ledger.records import Start, encode_record
from fedzero.ledger.store import FORMAT, Ledger, _seal, link
from fedzero.lines import print_line
from fedzero.links import Chain
from fedzero.links.clip import Clip
from fedzero.links.median import Median
from fedzero.links.quantise import Quantise
from fedzero.links.sign import Sign
from fedzero.links.topk import TopK
from fedzero.methods.contract import Scale
from fedzero.model import toml
from fedzero.model.params import Params
from fedzero.model.updates import decode_update
from fedzero.oracles import Metrics
from fedzero.oracles.blackbox import MemoryLog, Query
from fedzero.protocol.messages import decode_instruction, decode_reply
from fedzero.protocol.replica import Replica
from fedzero.recipe import recipe as recipes
from fedzero.recipe.setup import plan_of
from fedzero.results.history import history
from fedzero.runs import statement as statements
from fedzero.runs.spending import budget
from fedzero.runs.spending.charges import Policy
from fedzero.runs.summary import summary
from fedzero.tasks.language import rows
from fedzero.tasks.language.texts import Text

KEYS = Keys.of_seed(1)
START = encode_record(Start(b'{"rounds":1,"federation":{"clients":1,"cohort":1}}', b"8" * 8, 1, 1, None))
CHAINS = [
    Chain(links)
    for links in (
        (),
        (Clip(norm=1.0),),
        (TopK(fraction=0.3),),
        (Quantise(),),
        (Sign(),),
        (TopK(fraction=0.3), Quantise()),
        (Clip(norm=1.0), TopK(fraction=0.3), Sign(feedback=True), Median()),
    )
]
METHODS: list[dict[str, Any]] = [
    {"kind": "decomfl", "rate": 0.01, "directions": 3, "optimizer": {"kind": "momentum"}},
    {"kind": "decomfl", "rate": "auto", "directions": 2},
    {"kind": "fedkseed", "rate": 0.01, "pool": 8, "directions": 2},
    {"kind": "fedzo", "rate": 0.01, "directions": 2, "form": "seeded"},
    {"kind": "fedzo", "rate": 0.01, "directions": 2, "form": "dense"},
    {"kind": "zofedht", "rate": 0.01, "directions": 2, "tau": 2, "form": "seeded"},
    {"kind": "zo-adafl", "rate": 0.01, "directions": 2, "form": "seeded"},
    {"kind": "scaffold-zo", "rate": 0.01, "directions": 2, "form": "seeded"},
    {"kind": "zone-s", "rate": 0.01, "directions": 2, "form": "seeded"},
    {"kind": "dzopa", "rate": 0.01, "directions": 2, "form": "seeded"},
    {"kind": "fzoos", "rate": 0.01},
    {"kind": "fedavg", "rate": 0.01},
    {"kind": "fedkseed-pro", "rate": 0.01, "pool": 8, "directions": 2},
    {"kind": "feedsign", "rate": 0.01, "directions": 2},
    {"kind": "hiso", "rate": 0.01, "directions": 2},
    {"kind": "decomfl", "rate": 0.01, "directions": 2, "average": 3, "step": "rms"},
]
CLIENTS, SIZE = 4, 6


def reply(data: bytes) -> None:
    found = decode_reply(data, 4096)
    assert len(found.digest) == 8


def instruction(data: bytes) -> None:
    decode_instruction(data)


def order(data: bytes) -> None:
    found = site_messages.decode_order(data)
    match found:
        case site_messages.Prepare():
            recipes.from_canonical(found.recipe, found.needs)
        case site_messages.Recover() | site_messages.Measure():
            for update in found.updates:
                decode_update(update)
        case site_messages.Exchange():
            for each in found.instructions.values():
                decode_instruction(each)


RECIPES: list[dict[str, Any]] = [
    {"algorithm": {"kind": "decomfl", "rate": 0.01}, "federation": {"server_model": False}},
    {"algorithm": {"kind": "decomfl", "rate": 0.01}, "federation": {"sync": True}},
    {"algorithm": {"kind": "decomfl", "rate": 0.01}, "federation": {"pull_after": 2}},
    {"algorithm": {"kind": "fedavg", "rate": 0.01}, "federation": {}},
    {"algorithm": {"kind": "fzoos", "rate": 0.01}, "federation": {}},
]


@cache
def agreement(number: int) -> Agreement:
    """What a site with clients 0 and 2 of three was prepared for."""
    table = RECIPES[number]
    federation = {"clients": 3, "cohort": 2, **table["federation"]}
    others = {"name": "agreed", "rounds": 9, "evaluate_every": 3, "task": {"kind": "quadratic", "dimension": 6}}
    recipe = recipes.decode({**others, "algorithm": table["algorithm"], "federation": federation})
    return Agreement(recipe, plan_of(recipe, KEYS, 6), frozenset((0, 2)), number == 4, 24)


def place(data: bytes) -> None:
    """Orders out of place: the first byte chooses what the site was prepared for. What is let through has its place."""
    if not data:
        return
    agreed, found = agreement(data[0] % len(RECIPES)), site_messages.decode_order(data[1:])
    match found:
        case site_messages.Exchange():
            admission.check_exchange(agreed, found)
            for each in found.instructions.values():
                said = admission.instruction_of(agreed, found, each)
                assert (said.round, said.exchange) == (found.round, found.exchange)
            assert found.round < agreed.rounds and found.instructions.keys() <= agreed.clients
        case site_messages.Recover():
            rounds = [update.round for update in admission.check_recover(agreed, found)]
            assert rounds == sorted(set(rounds)) and all(round < agreed.rounds for round in rounds)
        case site_messages.Deliver():
            assert admission.closings_of(agreed, found).keys() <= agreed.clients
        case site_messages.Measure():
            admission.check_measure(agreed, found, 3)
            assert found.after in (3, 6, 9)
        case site_messages.Finish():
            admission.check_finish(agreed, found)
        case site_messages.Phase():
            admission.check_phase(agreed, found)
            assert found.round < agreed.rounds and found.exchange < 2


def figures(data: bytes) -> None:
    """What one of three sites measured: nobody but it is moved by it."""
    found = site_messages.decode_answer(data)
    if not isinstance(found, site_messages.Measured):
        return
    honest = msgspec.structs.replace(found, metrics=Metrics(0.5, 0.9), own=True)
    sites = {"a": honest, "b": msgspec.structs.replace(honest, metrics=Metrics(0.6, 0.8)), "c": found}
    metrics, _ = measuring.combined(sites, dict.fromkeys(sites, 1), 0.0)
    assert metrics is not None and 0.5 <= metrics.loss <= 0.6
    assert metrics.accuracy is not None and 0.8 <= metrics.accuracy <= 0.9


BESIDE = ("ledger.db-wal", "ledger.db-shm", "ledger.db-journal", "checkpoint.bin")


def beside(data: bytes) -> None:
    """A file by its name beside an intact ledger: it is refused or without effect, and readers write nothing."""
    if not data:
        return
    path = fresh("ledger.db")
    path.write_bytes(intact())
    planted = path.parent / BESIDE[data[0] % len(BESIDE)]
    planted.write_bytes(data[1:])
    try:
        with closing(Ledger.open(path)) as opened:
            assert [entry.chain for entry in opened.entries()] == [link(GENESIS, 0, START)]
            assert checkpoints.own(path.parent, opened) is None
    finally:
        assert path.read_bytes() == intact() and planted.read_bytes() == data[1:]
        planted.unlink()


@cache
def intact() -> bytes:
    """A ledger of one entry."""
    return ledger_of([START], []).read_bytes()


def answer(data: bytes) -> None:
    found = site_messages.decode_answer(data)
    said = [found.reason] if isinstance(found, site_messages.Failed) else []
    said += list(found.failed.values()) if isinstance(found, site_messages.Replies) else []
    assert all(len(text) <= 500 and text.isprintable() for text in said)


def codes(data: bytes) -> None:
    """The first byte chooses the chain, the second how many numbers are expected."""
    if len(data) > 2:
        values = CHAINS[data[0] % len(CHAINS)].decode(data[2:], data[1])
        assert values.shape == (data[1],) and values.dtype == "float32"


@cache
def replica_of(number: int) -> tuple[Replica, Any]:
    params = Params({"w": torch.zeros(SIZE)})
    replica = Replica(recipes.method(METHODS[number]), params, KEYS, CLIENTS)
    replica.algorithm.cost(0, Scale(SIZE, CLIENTS))
    return replica, replica.state


def update(data: bytes) -> None:
    """The first byte chooses the method that folds it."""
    if len(data) > 1:
        found = decode_update(data[1:])
        replica, begin = replica_of(data[0] % len(METHODS))
        replica.state = replace(begin, round=0)
        replica.follow([found])


def state(data: bytes) -> None:
    """What a snapshot or a checkpoint holds beside the tensors."""
    if len(data) > 1:
        _, begin = replica_of(data[0] % len(METHODS))
        begin.carry.with_numbers(data[1:])


def a_patch(data: bytes) -> None:
    found = patch.decode(hashlib.sha256(data).digest() + data, "a.patch")
    with recipes.written_elsewhere("a.patch"):
        table, _ = recipes.upgraded(recipes.table_in(found.algorithm))
        method = recipes.method(table, found.needs)
        if found.task:
            recipes.task(recipes.table_in(found.task), found.needs)
    replica = Replica(method, Params({"w": torch.zeros(SIZE)}), Keys(found.root, found.direction_root), found.clients)
    replay.fold(replica, found.updates[:8], 8)


def toml_recipe(data: bytes) -> None:
    recipes.canonical(recipes.decode(toml.parsed(data, "x.toml"), "x.toml"))


def json_recipe(data: bytes) -> None:
    recipes.to_toml(recipes.from_canonical(data))


def memory(data: bytes) -> None:
    Remembered.of(data)


@cache
def folder() -> Path:
    """In memory where that is possible: a case is a file."""
    parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
    made = tempfile.TemporaryDirectory(prefix="fedzero-fuzz-", dir=parent)
    folder.kept = made  # type: ignore[attr-defined]
    return Path(made.name)


def fresh(name: str) -> Path:
    for path in folder().glob(f"{name}*"):
        path.unlink()
    return folder() / name


def ledger_of(bodies: list[bytes], queries: list[Any]) -> Path:
    """A ledger whose chain and seals are right, whatever its entries are."""
    path, chain = fresh("ledger.db"), GENESIS
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        db.execute(f"PRAGMA user_version = {FORMAT}")
        for definition in (*TABLES.values(), LOG_OF_QUERIES):
            db.execute(definition)
        for seq, body in enumerate(bodies):
            chain = link(chain, seq, body)
            db.execute("INSERT INTO entries VALUES (?, ?, ?)", (seq, body, chain))
            db.execute("INSERT INTO clock VALUES (?, 0.0, 0.0, ?)", (seq, _seal(chain, 0.0, 0.0)))
        for row in queries:
            with suppress(sqlite3.Error, OverflowError, ValueError, TypeError):  # what the table does not take
                db.execute(f"INSERT INTO queries VALUES ({', '.join('?' * 9)})", row)
        db.execute("COMMIT")
    return path


_bodies = msgspec.msgpack.Decoder(list[Raw])
_rows = msgspec.msgpack.Decoder(list[list[Any]])


def ledger(data: bytes) -> None:
    """Entries one after the other, as `report`, `watch`, `status` and `resume` read them."""
    try:
        bodies = [bytes(raw) for raw in _bodies.decode(data)][:32]
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return
    path = ledger_of(bodies, [])
    history(path.parent)
    with closing(Ledger.open(path)) as opened:
        summary(opened)


def queries(data: bytes) -> None:
    """Rows of the log of queries, as `resume`, `verify` and the outcome of a run read them."""
    try:
        found = _rows.decode(data)[:32]
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return
    with closing(Ledger.open(ledger_of([], found))) as opened:
        query_log.at_models(opened)
        query_log.best(opened, 2)
        query_log.spent_before(opened)(1)
        with suppress(replay.Tampered):
            query_log.check(opened, [], [], True)
        log = MemoryLog()
        log.write([row for row in query_log._read(opened) if isinstance(row, Query)])


def file(data: bytes) -> None:
    """A whole file that claims to be a ledger."""
    path = fresh("file.db")
    path.write_bytes(data)
    with closing(Ledger.open(path)) as opened:
        replay.verify(opened, None)
        opened.checkpoint(None)


def settings(data: bytes) -> None:
    """Files of kits and projects; the first byte chooses which."""
    place = folder()
    kinds: list[tuple[str, Callable[[], object]]] = [
        ("settings.toml", lambda: Settings.read(place / "settings.toml")),
        (PROJECT, lambda: Project.of(place)),
        (SITES, lambda: SiteAssignment.of(place)),
        (SUPERVISOR, lambda: supervisor(place)),
    ]
    if data:
        name, read = kinds[data[0] % len(kinds)]
        (place / name).write_bytes(data[1:])
        read()


class _Connection:
    def __init__(self, data: bytes):
        self.data = data

    def recv_bytes(self, limit: int) -> bytes:
        return self.data


def bridge(data: bytes) -> None:
    for kind in (Hello, Orders, Answered):
        with suppress(OSError):
            receive(_Connection(data), kind)  # type: ignore[arg-type]


def prompt(data: bytes) -> None:
    """A prompt and a row, with a line break between them."""
    text, _, line = data.decode(errors="replace").partition("\n")
    made = Text(prompt=text, answers={"0": "no", "1": "yes"}, train="a", test="b")
    made.check()
    row = rows._object(line, Path("rows.jsonl"), 1)
    with suppress(KeyError, IndexError, AttributeError, TypeError):  # a row without the field: see Encoder.prompts
        assert len(made.render(row)) < 64 * (len(data) + 64)


_console = Console(file=io.StringIO(), force_terminal=True, width=80)


def shown(data: bytes) -> None:
    text, said = data.decode(errors="surrogateescape"), io.StringIO()
    _console.file = said
    print_line(_console, text)
    print_line(_console, text, "yellow", head="fedzero: ")
    plain = said.getvalue().replace("\x1b[1;31m", "").replace("\x1b[33m", "").replace("\x1b[0m", "")
    assert plain.count("\n") == 2 and plain.replace("\n", "").isprintable(), repr(plain)


def frame(data: bytes) -> None:
    """A frame of a device."""
    device_messages.decode_device(data, len(data))


def frame_of_gateway(data: bytes) -> None:
    """A frame of a gateway, at the device in NumPy: its decoder and its plan."""
    with suppress(Broken, ClientError):
        found = unpack(data)
        if isinstance(found, list) and len(found) > 1 and isinstance(found[1], bytes):
            device_plan.read(found[1])


def web_socket(data: bytes) -> None:
    """Bytes of a device's web socket, from the first byte's part on in two pieces: the same messages as in one."""
    where, data = data[:1] or b"\0", data[1:]

    def read(pieces: list[bytes]) -> tuple[list[tuple[int, bytes]], int]:
        frames, found = Frames(1 << 14), list[tuple[int, bytes]]()
        try:
            for piece in pieces:
                found += frames.read(piece)
        except Unframed as reason:
            return found, reason.code
        return found, 0

    at = where[0] * len(data) // 256
    whole, parts = read([data]), read([data[:at], data[at:]])
    assert whole[1] == parts[1] and (whole[1] or whole == parts)
    assert all(len(payload) <= 1 << 14 for _, payload in whole[0])


def posted(data: bytes) -> None:
    """The body of a request of a device that polls."""
    frames = list(split(data))
    assert joined(frames) == data and len(frames) <= 8


def sum_of_hosts(data: bytes) -> None:
    """The first byte chooses who is sent it, and when."""
    if data:
        which, reader = data[0] % 6, sums.to_a_host if data[0] % 12 < 6 else sums.to_the_server
        reader(which, data[1:])


def a_statement(data: bytes) -> None:
    """A file that is said to be a privacy statement, signed or not: what is read has one spelling."""
    path = fresh("statement.json")
    path.write_bytes(data)
    found, _ = statements.read(path)
    assert found.encode().decode() and statements.words(found)


def a_budget(data: bytes) -> None:
    """The first byte chooses: the journal of what a data set spent, or the file beside it."""
    if not data:
        return
    for name in (budget.FILE, budget.HEAD):
        fresh(name)
    (folder() / (budget.FILE, budget.HEAD)[data[0] % 2]).write_bytes(data[1:])
    with closing(budget.Budget(folder(), Policy(epsilon=2.0), b"data", "run")) as journal:
        assert all(one.attempts for one in journal.totals())


TARGETS: dict[str, Callable[[bytes], None]] = {
    "reply": reply,
    "instruction": instruction,
    "order": order,
    "place": place,
    "figures": figures,
    "beside": beside,
    "answer": answer,
    "codes": codes,
    "update": update,
    "state": state,
    "patch": a_patch,
    "toml": toml_recipe,
    "json": json_recipe,
    "memory": memory,
    "ledger": ledger,
    "queries": queries,
    "file": file,
    "settings": settings,
    "bridge": bridge,
    "prompt": prompt,
    "shown": shown,
    "frame": frame,
    "gateway": frame_of_gateway,
    "socket": web_socket,
    "poll": posted,
    "sum": sum_of_hosts,
    "statement": a_statement,
    "budget": a_budget,
}


def attempt(name: str, data: bytes) -> None:
    """One case; what it raises is a finding."""
    with suppress(FedzeroError, Refused):
        TARGETS[name](data)
