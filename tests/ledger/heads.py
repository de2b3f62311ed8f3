"""Derives heads.json: what small runs of all kinds leave on their ledgers, and how every message is written.

    PYTHONPATH=src python tests/ledger/heads.py            writes heads.json
    PYTHONPATH=src python tests/ledger/heads.py --check    compares, and fails on any difference

The heads are those of 0.2: what is there may be added to, never changed. Values of the objective are exact sums rounded
once, and all else of the portable runs is one rounded operation at a time, so their bits are the same on every machine.
Runs that use linear algebra as well are compared bit by bit only where `arithmetic`, a digest of that, is the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedzero
from fedzero.directions import Keys, Terms
from fedzero.engines.remote import messages as remote
from fedzero.ledger import records
from fedzero.ledger.store import GENESIS, Ledger, link
from fedzero.model import updates
from fedzero.model.device import threads
from fedzero.model.params import Params
from fedzero.oracles import Metrics, Pictures, Sample
from fedzero.oracles.combination import wide_coordinates
from fedzero.protocol import messages
from fedzero.tasks.quadratic import QuadraticShards

FILE = Path(__file__).with_name("heads.json")
SECRET = b"only the clients know this secret"
D = 12
LINEAR_ALGEBRA = ("fzoos", "response-surface", "response-surface-integers", "trajectory")
"""Runs whose bits come from BLAS and LAPACK too, which round otherwise on another machine."""


# -- an objective with the same bits on every machine -------------------------------------------------------------


class ExactObjective:
    """½ Σ_j a_j (x_j − b_ij)² + ⟨ξ, x⟩, every value the exact sum of rounded products, rounded once."""

    def __init__(self, centres: np.ndarray):
        self.curvature, self.optimum = np.linspace(1.0, 4.0, centres.shape[1]), centres.mean(axis=0)

    def _value(self, x: np.ndarray, batch: Any) -> float:
        centre, noise = batch
        products = 0.5 * self.curvature * (x - centre) ** 2
        return math.fsum([*products, *(x * noise if noise is not None else ())])

    def losses(self, base: Params, points: Sequence[Terms], batches: Sequence[Any], basis: Any = None) -> np.ndarray:
        xs = wide_coordinates(base, points, basis)
        return np.array([[self._value(x, batch) for x in xs] for batch in batches])

    def gradient(self, base: Params, batch: Any) -> tuple[float, torch.Tensor]:
        x, (centre, noise) = base.vector().double().numpy(), batch
        slope = self.curvature * (x - centre)
        return self._value(x, batch), torch.from_numpy(slope if noise is None else slope + noise).float()

    def evaluate(self, params: Params) -> Metrics:
        return Metrics(loss=self._value(params.vector().double().numpy(), (self.optimum, None)))


class Exact(fedzero.Task, tag="exact-quadratic"):
    """A quadratic spread over clients, summed exactly."""

    noise: float = 0.1

    def build(self, clients: int, context: fedzero.BuildContext) -> fedzero.Problem:
        centres = 1.0 + context.keys.generator("quadratic").standard_normal((clients, D))
        params = Params({"weight": torch.zeros(2, 4), "bias": torch.zeros(D - 8)})
        return fedzero.Problem(params, ExactObjective(centres), QuadraticShards(centres, self.noise))


def valley(x: np.ndarray, centre: float) -> float:
    """A black box."""
    return math.fsum((1 + i) * (value - centre) ** 2 for i, value in enumerate(x.tolist()))


# -- recipes ------------------------------------------------------------------------------------------------------

DECOMFL = {"kind": "decomfl", "rate": 0.01, "directions": 3, "local_steps": 2}
SEEDED = {"rate": 0.01, "directions": 3, "local_steps": 2, "form": "seeded"}
FEW_QUERIES = {"initial": 4, "a_step": 2, "candidates": 6, "around": 2, "around_candidates": 4}
CHAIN = (
    {"kind": "clip", "norm": 2.0},
    {"kind": "top-k", "fraction": 0.6, "feedback": True},
    {"kind": "quantise"},
    {"kind": "nnm"},
    {"kind": "median"},
)
RECIPES: Mapping[str, dict[str, Any]] = {
    "momentum": {"algorithm": DECOMFL | {"optimizer": {"kind": "momentum"}}, "engine": {"merge": True}},
    "adam": {"algorithm": DECOMFL | {"optimizer": {"kind": "adam"}, "difference": "central"}},
    "sync": {"algorithm": DECOMFL, "federation": {"sync": True, "replacement": True}},
    "pull": {"algorithm": DECOMFL | {"directions": 8}, "federation": {"cohort": 1, "pull_after": 2}},
    "auto-rate": {"algorithm": DECOMFL | {"rate": "auto", "distribution": "rademacher", "local_steps": 1}},
    "average-rms": {"algorithm": DECOMFL | {"step": "rms", "average": 3, "average_from": 2}},
    "rank1-hold": {"algorithm": DECOMFL | {"distribution": "rank1", "rank": 2, "hold": 3, "step": "normalised"}},
    "rate-of-weights-and-averages": {"algorithm": DECOMFL | {"rate": "auto", "step": "rms", "average": 4}},
    "rules": {
        "algorithm": {"kind": "baffle", "form": "seeded", "rate": 0.02, "directions": 4}
        | {"rules": [{"kind": "weighting", "step": "normalised"}, {"kind": "adam", "beta2": 0.9}]}
    },
    "blind": {"algorithm": DECOMFL, "federation": {"private": True, "server_model": False}},
    "chain": {"algorithm": DECOMFL | {"directions": 6}, "filters": CHAIN, "federation": {"cohort": 5}},
    "sign-bits": {"algorithm": {"kind": "feedsign", "rate": 0.02}},
    "local-steps": {
        "algorithm": {"kind": "fedprox-zo", "gamma": 0.5} | SEEDED,
        "federation": {"cohort": 4, "replacement": True, "bound": 1.01},
    },
    "local-steps-dense": {
        "algorithm": {"kind": "fedzo", "rate": 0.01, "directions": 4, "local_steps": 3, "form": "dense"},
        "filters": [{"kind": "sign", "feedback": True}],
        "federation": {"bound": 1.01, "cohort": 4},
    },
    "adaptive": {"algorithm": {"kind": "zo-adafl", "rule": "yogi"} | SEEDED},
    "variates": {"algorithm": {"kind": "scaffold-zo"} | SEEDED | {"form": "dense"}},
    "variates-seeded": {"algorithm": {"kind": "scaffold-zo"} | SEEDED},
    "two-exchanges": {"algorithm": {"kind": "scaffold-zo", "type": "I"} | SEEDED},
    "trajectory": {"algorithm": {"kind": "zofedht", "tau": 3} | SEEDED},
    "diagonal": {"algorithm": {"kind": "hiso", "rate": 0.01, "directions": 4}},
    "pool": {"algorithm": {"kind": "fedkseed", "rate": 0.01, "pool": 32, "local_steps": 3, "directions": 2}},
    "pool-pro": {"algorithm": {"kind": "fedkseed-pro", "rate": 0.01, "pool": 32, "local_steps": 3, "directions": 2}},
    "graph": {
        "algorithm": {"kind": "dzopa", "rate": 0.01, "directions": 3, "graph": {"kind": "ring"}, "form": "seeded"},
        "federation": {"cohort": 5},
    },
    "multipliers": {
        "algorithm": {"kind": "zone-s", "rate": 0.5, "directions": 3, "form": "dense"},
        "federation": {"cohort": 1, "bound": 0},
    },
    "gradients": {"algorithm": {"kind": "fedavg", "rate": 0.01, "local_steps": 2, "momentum": 0.5}},
    "fzoos": {
        "algorithm": {"kind": "fzoos", "local_steps": 2, "transfer": {"count": 16}, "active": FEW_QUERIES},
        "rounds": 4,
    },
}


def recipe_of(name: str) -> dict[str, Any]:
    given = RECIPES[name]
    return {
        "name": name,
        "rounds": given.get("rounds", 12),
        "seed": 3,
        "evaluate_every": 4,
        "algorithm": given["algorithm"],
        "task": {"kind": "exact-quadratic"},
        "filters": list(given.get("filters", ())),
        "federation": {"clients": 5, "cohort": 3} | given.get("federation", {}),
        "engine": {"kind": "local", "merge": False, "device": "cpu"} | given.get("engine", {}),
    }


def run(name: str, folder: Path) -> None:
    fedzero.run(recipe_of(name), out=folder, secret=SECRET, progress=False)


def minimise(algorithm: Any, bounds: Any, folder: Path, **options: Any) -> None:
    boxes = [partial(valley, centre=centre) for centre in (0.25, 0.5, -0.125)]
    settings = {"rounds": 4, "seed": 3, "dimension": 3, "progress": False, "together": False} | options
    fedzero.minimise(boxes, bounds=bounds, algorithm=algorithm, out=folder, **settings)


def black_boxes(folder: Path) -> None:
    minimise({"kind": "fedzo"} | SEEDED, (-1.0, 1.0), folder, noise=0.01, budget=40, rounds=6)


RUNS: Mapping[str, Callable[[Path], None]] = {
    **{name: partial(run, name) for name in RECIPES},
    "black-box": black_boxes,
    "response-surface": partial(minimise, None, (-1.0, 1.0)),
    "response-surface-integers": partial(minimise, None, fedzero.Integer(-2, 2)),
}


def told(folder: Path) -> dict[str, Any]:
    """What a run left: its recipe, the last link of its chain, its model, and what it cost."""
    with closing(Ledger.open(folder / "ledger.db")) as ledger:
        rounds = list(ledger.rounds())
        recipe = ledger.start().recipe
    summary = fedzero.Run.open(folder).summary
    return {
        "recipe": hashlib.sha256(recipe).hexdigest(),
        "head": summary.ledger_head,
        "model": summary.model_sha256,
        "bytes_up": sum(each.bytes_up for each in rounds),
        "bytes_down": sum(each.bytes_down for each in rounds),
        "queries": summary.queries,
        "attempts": summary.attempts,
        "bounded": summary.bounded,
    }


def made(name: str, folder: Path) -> dict[str, Any]:
    with threads(1):  # their number is on the ledger of a run with merged batches
        RUNS[name](folder)
    return told(folder)


def arithmetic() -> str:
    """Digest of what LAPACK, BLAS and the mathematical functions here make of some numbers."""
    x = np.random.default_rng(1).standard_normal((40, 12))
    square = torch.from_numpy(x.T @ x + np.eye(12))
    found = [
        *(x.T @ x, np.linalg.qr(x, mode="r"), *np.linalg.svd(x, full_matrices=False), *np.linalg.eigh(square.numpy())),
        *(np.linalg.solve(square.numpy(), x[:12]), torch.linalg.cholesky(square).numpy(), np.exp(x), np.cos(x)),
        *((torch.from_numpy(x) @ square).numpy(), torch.from_numpy(x).cos().numpy(), torch.from_numpy(x).exp().numpy()),
    ]
    return hashlib.sha256(b"".join(np.ascontiguousarray(each).astype("<f8").tobytes() for each in found)).hexdigest()


# -- how things are written ---------------------------------------------------------------------------------------

SEEDED_UPDATE = updates.Seeded(7, updates.pack(np.array([0.5, -2.0], np.float32)), (1, 4, 4), (2,))
DENSE_UPDATE = updates.Dense(70_000, updates.pack(np.array([1.0], np.float32)), (0,))
METRICS = Metrics(0.25, 0.5, {"success rate": 1.0})
STEPPED_UPDATE = updates.Stepped(
    *(7, (
        updates.Group(5, updates.pack(np.array([0.5, -2.0], np.float32))),
        updates.Group(
            *(7, updates.pack(np.array([1.0, 0.0, 0.25, 4.0], np.float32)), (1, 4)),
            updates.pack(np.array([0.5, 0.25], np.float32)),
        ),
    ))
)  # fmt: skip

UPDATES: tuple[updates.Update, ...] = (SEEDED_UPDATE, updates.Seeded(300, b""), DENSE_UPDATE, STEPPED_UPDATE)
RECORDS: tuple[records.Record, ...] = (
    records.Start(b"{}", b"8 bytes.", 12, 1, "fingerprint", {"data": "digits"}, {"theirs": "1.0"}, 2, b"s" * 32),
    records.Start(b"{}", b"8 bytes.", 12, 1, None),
    records.Round(
        *(5, (1, 4), updates.encode_update(SEEDED_UPDATE), False, 99, 1 << 40, 6, 0.125),
        ((4, "late"),), ((1, b"m" * 16),), ((1, b"q" * 32),), (4,),
    ),
    records.Round(0, (), None, True, 0, 0, 0, None),
    records.Saved(10, 3, b"t" * 32),
    records.Saved(10, b"\x93\x01\x02\x03", b"t" * 32),
    records.Asked(4, ((0, b"q" * 32),)),
    records.Evaluation(4, b"8 bytes.", METRICS, b"s" * 32),
    records.Evaluation(4, b"8 bytes.", Metrics(1.5)),
    records.Shown(12, Pictures("title", ("row",), ("a", "b"), 1, 2, 3, bytes(range(12)))),
    records.Said(12, (Sample("prompt", "said", "right"),)),
    records.End(12, b"8 bytes.", "stopped", b"s" * 32),
    records.End(12, b"8 bytes."),
    records.Round(7, (1, 4), updates.encode_update(STEPPED_UPDATE), False, 99, 7, 6, 0.125, asked=(2, 4)),
    records.Extended(12, 20, 5, b'{"above":null,"patience":null}'),
    records.Round(7, (1, 4), None, False, 99, 7, 6, 0.125, stopped="enough"),
    records.TimedRound(7, (1, 4), None, False, 99, 7, 6, 0.125, asked=(2, 4), time=1.5, asked_at=(0.25, 1.0)),
    records.PrivateRound(7, (), updates.encode_update(SEEDED_UPDATE), False, 99, 7, 6, None, spent=(1.25, None)),
)  # fmt: skip
INSTRUCTIONS: tuple[messages.Instruction, ...] = (
    messages.Work(8, 1, (SEEDED_UPDATE, DENSE_UPDATE), 6),
    messages.Work(8, 0, ()),
    messages.Snapshot(8, 0, 3, b"state", 6),
    messages.Snapshot(8, 0, b"\x91\x01", b"state"),
    messages.Close(8, SEEDED_UPDATE),
    messages.Continue(8, 1, b"1234", (1, 4)),
)
REPLIES = (
    messages.Reply(8, 0, b"8 bytes.", b"1234", b"loss", 6),
    messages.Reply(8, 1, b"8 bytes.", b"1234", b"loss", 6, b"m" * 16),
)
ORDERS: tuple[remote.Order, ...] = (
    remote.Prepare("run", b"{}", (0, 3), {"theirs": "1.0"}, "fingerprint"),
    remote.Recover(True, (b"one", b"two")),
    remote.Exchange(8, 1, {0: b"zero", 3: b"three"}),
    remote.Deliver({3: b"three"}),
    remote.Measure((b"one",), 8),
    remote.Finish(12),
    remote.Phase(8, 1, 2, b"body"),
    remote.PrepareExtended("run", b"{}", (0, 3), {"theirs": "1.0"}, "fingerprint", 100, 5, b"{}"),
)
ANSWERS: tuple[remote.Answer, ...] = (
    remote.Prepared(b"8 bytes.", 12, {"data": "digits"}, None, 4, b"s" * 32),
    remote.Done(),
    remote.Replies({0: b"zero"}, {3: "late"}),
    remote.Measured(b"8 bytes.", METRICS, True, b"s" * 32),
    remote.Measured(b"8 bytes.", None),
    remote.Failed("no memory"),
    remote.Phased(b"body"),
)


def written() -> dict[str, list[str]]:
    """Encoded values by group and tag, in hexadecimal; several of a type in the order above."""
    found: dict[str, list[str]] = {}
    for group, encode, values in (
        ("update", updates.encode_update, UPDATES),
        ("record", records.encode_record, RECORDS),
        ("instruction", messages.encode, INSTRUCTIONS),
        ("reply", messages.encode_reply, REPLIES),
        ("order", remote.encode, ORDERS),
        ("answer", remote.encode, ANSWERS),
    ):
        for value in values:
            found.setdefault(f"{group} {value.__struct_config__.tag}", []).append(encode(value).hex())
    return found


def digests() -> dict[str, str]:
    """Of what is hashed: a chain's links and a client's memory; numbers drawn for purposes that are in recipes."""
    first, keys = link(GENESIS, 0, b"start"), Keys.of_seed(7)
    purposes = ("batch", "cohort", "filter", "pool", "vote")
    drawn = {purpose: keys.generator(purpose, 2, 5).integers(1 << 62) for purpose in purposes}
    return {
        "genesis": GENESIS.hex(),
        "link": link(first, 1, b"round").hex(),
        "chunk": messages.chunk_digest(b"piece").hex(),
        "memory": messages.memory_digest([messages.chunk_digest(b"piece"), messages.chunk_digest(b"other")]).hex(),
        **{f"generator {purpose} 2 5": f"{value:#018x}" for purpose, value in drawn.items()},
    }


# -- the table -----------------------------------------------------------------------------------------------------


def kept() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(FILE.read_text())
    return table


def settled(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """What `told` says of a run, without the bits that this machine need not share with the one that wrote the file."""
    if name in LINEAR_ALGEBRA and kept()["arithmetic"] != arithmetic():
        return {key: value for key, value in told.items() if key not in ("head", "model")}
    return told


def table() -> dict[str, Any]:
    fedzero.register(Exact)
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: made(name, Path(folder) / name) for name in RUNS}
    return {"arithmetic": arithmetic(), "runs": runs, "written": written(), "digests": digests()}


def main(check: bool) -> int:
    found = table()
    if not check:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
        print(f"wrote {FILE}")
        return 0
    before, differ = kept(), False
    if before["arithmetic"] != found["arithmetic"]:
        print(f"linear algebra differs from that of the file: no heads are compared of {', '.join(LINEAR_ALGEBRA)}")
    for part in ("runs", "written", "digests"):
        for name in sorted({*before[part], *found[part]}):
            pair = [each[part].get(name) for each in (before, found)]
            then, now = [settled(name, each) if part == "runs" and each else each for each in pair]
            if then != now:
                differ = True
                print(f"{part} {name}:\n  kept    {then}\n  derived {now}")
    print("heads.json differs" if differ else "heads.json holds")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
