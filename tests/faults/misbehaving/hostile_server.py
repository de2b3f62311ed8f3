"""A server that wants to know what its sites have, and to make them do what they did not agree to.

Where the file `server` in the folder FEDZERO_FAULTS says `hostile`, every site is sent the orders below before the
honest one that begins an epoch; what they answer is noted in the file `heard`, a line of JSON each.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS, LIMIT = 120.0, 1 << 20


def orders(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(name, order). What the sites have is in the folder `clinic`; `theirs` and `rows` they have declared."""
    import msgspec

    from fedzero.engines.remote.messages import Exchange, Measure, Prepare, Recover, encode
    from fedzero.protocol.messages import encode_work

    clinic = folder / "clinic"
    plain = {
        "name": "hostile",
        "rounds": 3,
        "algorithm": {"kind": "decomfl", "rate": 0.01, "directions": 2},
        "task": {"kind": "quadratic", "dimension": 8},
        "federation": {"clients": 2, "cohort": 2, "server_model": False, "private": True},
    }

    def prepare(clients: tuple[int, ...] = (0,), **changes: Any) -> bytes:
        return encode(Prepare("hostile", msgspec.json.encode(plain | changes), clients))

    def language(train: object, **fields: Any) -> bytes:
        answers, rows = {"0": "No", "1": "Yes"}, str(train)
        text = {"prompt": "{name} has", "answers": answers, "label": "diagnosis", "train": rows, "test": rows}
        return prepare(task={"kind": "language", "model": "theirs", "text": text, **fields})

    def boxes(**box: Any) -> bytes:
        return prepare(task={"kind": "black-box", "dimension": 2, "boxes": [box, box]})

    yield "a row of a declared file", language("rows")
    for there, name in (("there", "patients.csv"), ("not there", "nothing.csv")):
        yield f"rows, {there}", language(clinic / name)
        yield f"a tokenizer, {there}", language("rows", tokenizer=str(clinic / name))
        yield f"a base, {there}", prepare(base=str(clinic / name))
    yield "a program", boxes(kind="command", argv=["touch", str(clinic / "touched")])
    yield "a module", boxes(kind="python", name="os:getcwd")
    yield "a service", boxes(kind="http", url="http://127.0.0.1:9/")
    yield "an open run", prepare(federation=plain["federation"] | {"private": False})
    yield "another method", prepare(algorithm={"kind": "fedkseed", "rate": 0.01})
    yield "a cohort too large", prepare(federation=plain["federation"] | {"cohort": 9})
    yield "a client that is none", prepare((7,))
    yield "words for a terminal", prepare(name="\x1b[2J[/x]")
    yield "deep arrays", b"\x91" * 3000
    yield "a deep recipe", encode(Prepare("hostile", b"[" * 100_000, (0,)))
    yield "work before a run", encode(Exchange(0, 0, {0: encode_work(0, 0, [])}))
    yield from out_of_place(prepare())
    good = [prepare(), encode(Exchange(0, 0, {0: encode_work(0, 0, [])})), encode(Recover(True, (b"\x91\x01",)))]
    good += [encode(Measure((b"\xc0",)))]
    chance = random.Random(11)
    for number in range(200):
        data = bytearray(good[number % len(good)])
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data))
            data[at : at + chance.randint(0, 5)] = chance.randbytes(chance.randint(0, 5))
        yield f"noise {number}", bytes(data)


def out_of_place(prepare: bytes) -> Iterator[tuple[str, bytes]]:
    """Orders for a run that the site agreed to, which its recipe does not contain."""
    from fedzero.engines.remote.messages import Deliver, Exchange, Finish, Measure, Recover, encode
    from fedzero.model.updates import Seeded, encode_update
    from fedzero.protocol.messages import Snapshot, encode_close, encode_work
    from fedzero.protocol.messages import encode as encode_instruction

    def update(round: int, scalar: bytes = bytes(8)) -> bytes:
        return encode_update(Seeded(round, scalar))

    def exchange(round: int, instruction: bytes, exchange: int = 0, client: int = 0) -> bytes:
        return encode(Exchange(round, exchange, {client: instruction}))

    yield "a run that was agreed to", prepare
    yield "a model", exchange(1, encode_instruction(Snapshot(1, 0, 0, bytes(32))))
    yield "an instruction of another round", exchange(1, encode_work(2, 0, []))
    yield "a round beyond the last", exchange(10_828, encode_work(10_828, 0, []))
    yield "an exchange beyond the last", exchange(1, encode_work(1, 1, []), 1)
    yield "a client of another site", exchange(1, encode_work(1, 0, []), client=1)
    yield "an outcome", encode(Deliver({0: encode_close(0, update(0))}))
    yield "an update of a later round", encode(Recover(False, (update(3),)))
    yield "an evaluation out of turn", encode(Measure((), 1))
    yield "an end beyond the last round", encode(Finish(10_828))
    yield "a question", exchange(1, encode_work(1, 0, [update(0)]))
    yield "another question", exchange(1, encode_work(1, 0, [update(0, b"\x00\x00\x80?" * 2)]))
    yield "an earlier round", exchange(0, encode_work(0, 0, []))
    yield "an order of many megabytes", bytes(80 << 20)


def change_engine(engine: Any, folder: Path, told: Any) -> None:
    from fedzero.engines.remote import messages

    honest = engine.Sites.ask

    def ask(self: Any, asked: Any, wanted: Any, *more: Any, **named: Any) -> Any:
        if wanted is messages.Prepared and told("server", "honest") == "hostile":
            with (folder / "heard").open("a") as heard:
                for name, order in orders(folder):
                    for site, answer in self.link.ask(dict.fromkeys(asked, order), SECONDS, LIMIT):
                        found = messages.decode_answer(answer) if isinstance(answer, bytes) else answer
                        said = getattr(found, "reason", None) or getattr(found, "failed", None) or type(found).__name__
                        print(json.dumps({"site": site, "order": name, "said": str(said)}), file=heard, flush=True)
        return honest(self, asked, wanted, *more, **named)

    engine.Sites.ask = ask
