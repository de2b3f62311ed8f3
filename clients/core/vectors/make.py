"""Derives vectors.json and vectors.h: what every implementation of a thin client has to compute, from fedzero itself.

    PYTHONPATH=src python clients/core/vectors/make.py            writes both files and golden.txt
    PYTHONPATH=src python clients/core/vectors/make.py --check    compares, and fails on any difference

vectors.json is for everybody, vectors.h is the same as C for check.c. Keys and words are in hexadecimal, float32 and
float64 numbers are given as their bits in hexadecimal. golden.txt has the SHA-256 of both files.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from as_c import as_c
from draws import poisson, sample

from fedzero.directions import Domain, Keys, Program, Rule, Terms, reference
from fedzero.directions.keys import derive, shift
from fedzero.estimators.spsa import slopes
from fedzero.links.clip import Clip
from fedzero.methods.rules.contract import average
from fedzero.model.params import Params

HERE = Path(__file__).parent
SECRET = b"only the clients know"
LAST = 2**64 - 1
TOLERANCE = 2e-6
"""Absolute, of a loss: sums in float32 have another order on another machine."""
STREAMS = {"rademacher": Domain.RADEMACHER, "rank1": Domain.RANK1}
Vectors = dict[str, Any]


def hex32(values: Any) -> list[str]:
    return [f"{int(bits):08x}" for bits in np.asarray(values, np.float32).reshape(-1).view(np.uint32)]


def hex64(*values: float) -> list[str]:
    return [f"{int(bits):016x}" for bits in np.array(values, np.float64).view(np.uint64)]


def key(value: int) -> str:
    return f"{value:016x}"


def checksum(values: Any) -> str:
    return key(reference.checksum(np.asarray(values, np.float32).reshape(-1).view(np.uint32)))


def keys() -> list[Vectors]:
    found = []
    for seed in (0, 7, -1, 2**63 - 1):
        for secret in (b"", SECRET):
            root = Keys.of_seed(seed).root
            root = shift(root, secret) if secret else root
            for purpose, numbers in (("direction", (0, 0, 0, -1)), ("direction", (12, 3, 4, 5)), ("batch", (1, 0, 9))):
                place = {"seed": str(seed), "secret": secret.hex(), "root": root.hex(), "purpose": purpose}
                found.append({**place, "numbers": list(numbers), "key": key(derive(root, purpose, *numbers))})
    return found


def words() -> list[Vectors]:
    found = []
    for own, block, tensor, domain in (
        (0, 0, 0, 2), (LAST, LAST, 2**32 - 1, 2), (0x0123456789ABCDEF, 31, 7, 4), (0xDEADBEEF, 2**32, 1, 5),
        (42, 0, 0, 6), (42, 1, 0, 7),
    ):  # fmt: skip
        made = reference.philox(np.array([block], np.uint64), tensor, domain, own)
        place = {"key": key(own), "block": key(block), "ordinal": tensor, "domain": domain}
        found.append({**place, "words": [f"{int(word[0]):08x}" for word in made]})
    return found


def directions() -> list[Vectors]:
    """Signs as a direction of float32 numbers, by checksum, and the first 16 of them as bits (1: −1)."""
    found = []
    for own, tensor in ((0, 0), (0x0123456789ABCDEF, 7), (LAST, 2**32 - 1)):
        for stream, shape in (
            ("rademacher", (1,)), ("rademacher", (5001,)), ("rank1", (1, 1)), ("rank1", (129, 1)), ("rank1", (1, 257)),
            ("rank1", (33, 100)), ("rank1", (130, 30)), ("rank1", (4, 3, 5, 5)), ("rank1", (300,)),
        ):  # fmt: skip
            n = int(np.prod(shape))
            z = reference.direction(STREAMS[stream], own, tensor, n, n // shape[0] if len(shape) > 1 else 0)
            place = {"stream": stream, "key": key(own), "ordinal": tensor, "shape": list(shape)}
            bits = "".join("1" if value < 0 else "0" for value in z[:16])
            found.append({**place, "checksum": checksum(z), "first": bits})
    return found


def start(n: int, unit: float) -> np.ndarray:
    """x_i = ((37·i) mod 251 − 125) · unit"""
    return (((37 * np.arange(n)) % 251 - 125) * unit).astype(np.float32)


def programs() -> list[Vectors]:
    """Three steps of 3, 1 and 10 terms on several tensors; one start is subnormal, and so are its coefficients."""
    found = []
    for stream in STREAMS:
        for rule in (Rule.SGD, Rule.MOMENTUM):
            for shapes, unit, size in (
                (((30, 40), (30,), (5, 30), (5,)), 2.0**-10, 1.0),
                (((7, 3), (9,)), 2.0**-149, 2.0**-140),
                (((1300,), (3, 2, 5, 5), (130, 5), (0, 4), ()), 2.0**-10, 1.0),
                (((5001,),), 2.0**-10, 1.0),
            ):
                found.append(program(stream, rule, shapes, unit, size))
    return found


def program(stream: str, rule: Rule, shapes: Any, unit: float, size: float) -> Vectors:
    tensors = {f"t{i}.weight": torch.from_numpy(start(int(np.prod(s)), unit)).reshape(s) for i, s in enumerate(shapes)}
    params, own = Params(tensors), iter(range(1, 15))
    numbers = iter(np.float32((0.003, -0.001, 0.007, 0.011, *np.linspace(-0.4, 0.37, 10))) * np.float32(size))
    steps = [[(next(own), float(next(numbers))) for _ in range(count)] for count in (3, 1, 10)]
    hypers = np.array([(0.05, 0.9, 1 - 0.9), (0.05, 0.9, 1 - 0.9), (0.025, 0.9, 1 - 0.9)], np.float32)
    lines = [Terms.of([k for k, _ in s], [c for _, c in s], STREAMS[stream]) for s in steps]
    slots = params.slots(1) if rule is Rule.MOMENTUM else None
    params.advance(Program.of(lines, [0] * 3, rule, hypers.tolist() if slots else None), slots)
    return {
        "stream": stream,
        "rule": rule.name.lower(),
        "shapes": [list(s) for s in shapes],
        "names": list(tensors),
        "unit": hex32([unit])[0],
        "steps": [
            {"terms": [[key(k), hex32([c])[0]] for k, c in s], "hypers": hex32(h)}
            for s, h in zip(steps, hypers, strict=True)
        ],
        "checksums": [checksum(t.numpy()) for t in tensors.values()],
        "momentum": [checksum(m[0].numpy()) for m in slots] if slots else [],
        "first": hex32(tensors["t0.weight"].reshape(-1)[:4].numpy()),
        "digest": params.digest().hex(),
    }


def estimates() -> list[Vectors]:
    generator, found = np.random.default_rng(5), []
    for difference, P, radius in (
        ("forward", 1, 1e-3),
        ("central", 10, 1e-3),
        ("forward", 200, 0.25),
        ("central", 90, 3e-5),
    ):
        count = P + 1 if difference == "forward" else 2 * P
        values = 2.3 + 1e-2 * generator.standard_normal(count)
        g, loss = slopes(values, (1.0,) * P, radius, difference)  # type: ignore[arg-type]
        made = average(range(P), g, -0.037, Domain.RADEMACHER).coefficients
        norm = float(np.linalg.norm(g.astype(np.float64))) / 3
        found.append(
            {
                "difference": difference,
                "radius": hex64(radius)[0],
                "values": hex64(*values),
                "slopes": hex32(g),
                "loss": hex64(loss)[0],
                "factor": hex64(-0.037)[0],
                "coefficients": hex32(made),
                "norm": hex64(norm)[0],
                "clipped": hex32(Clip(norm=norm).shape(g)),
            }
        )
    return found


NETWORKS = (
    # name, input, layers (kind, outputs, kernel, padding), shapes
    ("linear", (1, 1, 12), ((0, 4, 0, 0),), ((4, 12), (4,))),
    ("perceptron", (1, 1, 20), ((0, 13, 0, 0), (2, 0, 0, 0), (0, 5, 0, 0)), ((13, 20), (13,), (5, 13), (5,))),
    ("cnn", (2, 7, 6), ((1, 5, 3, 1), (3, 0, 0, 0), (2, 0, 0, 0), (1, 4, 2, 0), (2, 0, 0, 0), (0, 3, 0, 0)),
     ((5, 2, 3, 3), (5,), (4, 5, 2, 2), (4,), (3, 16), (3,))),
)  # fmt: skip


def forward(layers: Any, tensors: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    left = iter(tensors)
    for kind, _, _, padding in layers:
        if kind == 0:
            x = F.linear(x.flatten(1), next(left), next(left))
        elif kind == 1:
            x = F.conv2d(x, next(left), next(left), padding=padding)
        else:
            x = F.relu(x) if kind == 2 else F.max_pool2d(x, 2)
    return x


def losses() -> list[Vectors]:
    """Weights are ((37·i) mod 251 − 125)/512, inputs ((29·i) mod 127 − 63)/64; label r is r mod classes."""
    found = []
    for name, shape, layers, shapes in NETWORKS:
        rows, classes = 9, shapes[-1][0]
        tensors = {f"t{i}": torch.from_numpy(start(int(np.prod(s)), 1 / 512)).reshape(s) for i, s in enumerate(shapes)}
        count = rows * int(np.prod(shape))
        x = torch.from_numpy((((29 * np.arange(count)) % 127 - 63) / 64).astype(np.float32)).reshape(rows, *shape)
        y, params = torch.arange(rows) % classes, Params(tensors)
        for stream, domain in STREAMS.items():
            points = [(0, 0.0), (5, 0.03125), (5, -0.03125), (LAST, 0.0625)]
            values = []
            for own, c in points:
                at = params.view(Terms.of([own][: c != 0], [c][: c != 0], domain)).tensors()
                out = forward(layers, list(at.values()), x)
                values.append(float(F.cross_entropy(out, y, reduction="none").double().mean()))
            found.append(
                {
                    "network": name,
                    "stream": stream,
                    "input": list(shape),
                    "layers": [list(layer) for layer in layers],
                    "shapes": [list(s) for s in shapes],
                    "rows": rows,
                    "points": [[key(own), hex32([c])[0]] for own, c in points],
                    "losses": hex64(*values),
                    "about": [round(value, 6) for value in values],
                }
            )
    return found


def batches() -> list[Vectors]:
    found: list[Vectors] = []
    for own, count, size in (
        (1, 10, 3),
        (LAST, 100, 99),
        (0x0123456789ABCDEF, 4000, 32),
        (7, 5, 5),
        (7, 3_000_000_000, 4),
    ):
        found.append(
            {"kind": "sample", "key": key(own), "count": count, "size": size, "places": sample(own, count, size)}
        )
    for own, count, rate in ((1, 40, 0.25), (LAST, 9, 1.0), (0xDEADBEEF, 3000, 0.01), (7, 2000, 2.0**-70)):
        place = {"kind": "poisson", "key": key(own), "count": count, "rate": hex64(rate)[0]}
        found.append({**place, "places": poisson(own, count, rate)})
    return found


def derived() -> Vectors:
    return {
        "version": 1,
        "tolerance": TOLERANCE,
        "keys": keys(),
        "words": words(),
        "directions": directions(),
        "programs": programs(),
        "estimates": estimates(),
        "losses": losses(),
        "batches": batches(),
    }


def main(check: bool) -> int:
    vectors = derived()
    made = {"vectors.json": json.dumps(vectors, indent=1) + "\n", "vectors.h": as_c(vectors)}
    made["golden.txt"] = "".join(
        f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in made.items()
    )
    apart = [name for name, text in made.items() if not (HERE / name).exists() or (HERE / name).read_text() != text]
    if check:
        print(f"not as derived: {', '.join(apart)}" if apart else "the vectors hold")
        return int(bool(apart))
    for name, text in made.items():
        (HERE / name).write_text(text)
    print(f"wrote {', '.join(made)}")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
