"""Derives golden.json: digests that pin version 1 of the direction stream.

    PYTHONPATH=src python tests/directions/golden.py            writes golden.json
    PYTHONPATH=src python tests/directions/golden.py --check    compares, and fails on any difference

The figures come from the plain NumPy reference. The compiled kernels derive the same table here, and the script stops
if the two disagree, so no digest is ever written that only one of them gives. Digests are SHA-256 over little-endian
bytes. docs/directions.md quotes some of them: if this file changes, that page and the version number change too.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from fedzero.directions import cpu, reference
from fedzero.directions.keys import SHARED, Keys, derive, fingerprint, root_of, shift
from fedzero.directions.spec import VERSION, Domain
from fedzero.directions.terms import Program, Rule, Terms

FILE = Path(__file__).with_name("golden.json")
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STREAMS = {"gaussian": Domain.GAUSSIAN, "rademacher": Domain.RADEMACHER}
RANK1 = {"rank1": Domain.RANK1}

LAST = 2**64 - 1
PLACES = (  # (key, tensor, n): both ends of the key space, odd sizes, tails of every kind of block
    *product((0, 1, 0x0123456789ABCDEF, LAST), (0,), (1, 33, 4097)),
    *product((0xDEADBEEF,), (0, 1, 7, 1000, 2**32 - 1), (127, 4095, 12345)),
    *product((0, 0xFEDCBA9876543210, LAST), (0, 5), (2**20,)),
)
LARGE = tuple(product((0, 0x0123456789ABCDEF, LAST), (0,), (2**24,)))
SOME = ((0, 0, 1), (1, 2, 255), (0x0123456789ABCDEF, 3, 4097), (LAST, 2**32 - 1, 100_001))
HYPERS = {
    Rule.SGD: (),
    Rule.MOMENTUM: (0.05, 0.9, 0.1),
    Rule.ADAM: (0.05, 0.9, 0.1, 0.99, 0.01, 0.001),
    Rule.SIGN: (0.01,),
}


def label(key: int, tensor: int, n: int) -> str:
    return f"key {key:#018x} tensor {tensor} n {n}"


def sha256(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(a.astype(a.dtype.newbyteorder("<")).tobytes() for a in arrays)).hexdigest()


# -- the same operations from the two implementations ------------------------------------------------------------


def widen(bits: np.ndarray, dtype: str) -> np.ndarray:
    """16-bit numbers, given as bits, in float32."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def rounded(y: np.ndarray, dtype: str, key: int, tensor: int) -> np.ndarray:
    """Stochastic rounding to 16 bits by the reference."""
    to16 = reference.round_bfloat16 if dtype == "bfloat16" else reference.round_float16
    return to16(y, reference.rounding_bits(key, tensor, y.size))


def rule_step(rule: Rule, x: np.ndarray, slots: list[np.ndarray], g: np.ndarray, h: Sequence[np.float32]) -> np.ndarray:
    """One step with G = g: NumPy rounds each float32 operation by itself. Changes `slots`, returns the new x."""
    if rule is Rule.MOMENTUM:
        slots[0] = h[1] * slots[0] + h[2] * g
        return x - h[0] * slots[0]
    if rule is Rule.ADAM:
        slots[0] = h[1] * slots[0] + h[2] * g
        slots[1] = h[3] * slots[1] + h[4] * (g * g)
        return x - (h[0] * slots[0]) / (np.sqrt(slots[1]) + h[5])
    return x - h[0] * np.sign(g)


def run_steps(
    x: np.ndarray, dtype: str, slots: Iterable[np.ndarray], program: Program, tensor: int, columns: int = 0
) -> list[np.ndarray]:
    """All steps of a program, one coordinate array at a time: [x, *slots] afterwards; 16-bit x as bits."""
    slots, first = list(slots), 0
    for s, last in enumerate(program.ends):
        y = x if dtype == "float32" else widen(x, dtype)
        g = y if program.rule is Rule.SGD else np.zeros(x.size, np.float32)
        for key, c in zip(program.keys[first:last], program.coefficients[first:last], strict=True):
            g = g + c * reference.direction(program.stream, int(key), tensor, x.size, columns)
        y = g if program.rule is Rule.SGD else rule_step(program.rule, y, slots, g, program.hypers[s])
        x = y if dtype == "float32" else rounded(y, dtype, int(program.rounding[s]), tensor)
        first = last
    return [x, *slots]


def _generate(stream: Domain, key: int, tensor: int, n: int, columns: int = 0) -> np.ndarray:
    out = torch.empty(n)
    cpu.generate(out, stream, key, tensor, columns=columns)
    return out.numpy()


def _round_into(y: np.ndarray, dtype: str, key: int, tensor: int) -> np.ndarray:
    out = torch.empty(y.size, dtype=TYPES[dtype])
    cpu.round_into(out, torch.from_numpy(y), key, tensor)
    return as_bits(out)


def _advance(
    x: np.ndarray, dtype: str, slots: Iterable[np.ndarray], program: Program, tensor: int, columns: int = 0
) -> list[np.ndarray]:
    y, memory = as_tensor(x, dtype), tuple(torch.from_numpy(s.copy()) for s in slots)
    cpu.advance(y, memory, program, tensor, columns)
    return [y.numpy() if dtype == "float32" else as_bits(y), *(s.numpy() for s in memory)]


def as_tensor(x: np.ndarray, dtype: str) -> torch.Tensor:
    """A copy of float32 numbers, or of 16-bit ones given as bits."""
    return (
        torch.from_numpy(x.copy())
        if dtype == "float32"
        else torch.from_numpy(x.view(np.int16).copy()).view(TYPES[dtype])
    )


def as_bits(x: torch.Tensor) -> np.ndarray:
    return (
        x.view(torch.int32).numpy().view(np.uint32)
        if x.dtype == torch.float32
        else x.view(torch.int16).numpy().view(np.uint16)
    )


REFERENCE = SimpleNamespace(
    direction=reference.direction,
    rounded=rounded,
    advance=run_steps,
    checksum=reference.checksum,
    squares=reference.squares,
)
NUMBA = SimpleNamespace(
    direction=_generate,
    rounded=_round_into,
    advance=_advance,
    checksum=lambda bits: cpu.checksum(torch.from_numpy(bits.view(np.int32 if bits.itemsize == 4 else np.int16))),
    squares=lambda key, tensor, n: cpu.squares(key, tensor, n, torch.device("cpu")),
)


# -- the table ---------------------------------------------------------------------------------------------------


def directions(side: SimpleNamespace, places: Iterable[tuple[int, int, int]]) -> dict[str, str]:
    return {
        f"{name} {label(*place)}": sha256(side.direction(stream, *place))
        for (name, stream), place in product(STREAMS.items(), places)
    }


def small(side: SimpleNamespace) -> dict[str, str]:
    """A gaussian direction times 2^scale in float32, so from 10 down to float16's deepest subnormals, rounded
    stochastically with its own key and tensor."""
    table = {}
    for dtype, (key, tensor, n), octave in product(("bfloat16", "float16"), SOME, (0, -14, -22)):
        y = reference.gaussian(key, tensor, n) * np.float32(2.0**octave)
        table[f"{dtype} scale 2^{octave} {label(key, tensor, n)}"] = sha256(side.rounded(y, dtype, key, tensor))
    return table


def matrices(side: SimpleNamespace) -> dict[str, str]:
    """Directions of rank one of matrices, row by row; of a vector (no columns) they are signs."""
    return {
        f"rank1 {label(key, tensor, rows * max(columns, 1))} columns {columns}": sha256(
            side.direction(Domain.RANK1, key, tensor, rows * max(columns, 1), columns)
        )
        for (key, tensor), (rows, columns) in product(
            ((0, 0), (0x0123456789ABCDEF, 7), (LAST, 2**32 - 1)),
            ((1, 1), (129, 1), (1, 257), (33, 100), (130, 576), (20, 4096), (4097, 0)),
        )
    }


def programs(side: SimpleNamespace, streams: dict[str, Domain], n: int = 5001, columns: int = 0) -> dict[str, str]:
    """Three steps of 3, 1 and 2 terms from x_i = ((37 i) mod 251 − 125)/1024, tensor 3: x, then the slots."""
    start = (((37 * np.arange(n)) % 251 - 125) / 1024).astype(np.float32)
    table = {}
    for rule, (name, stream), dtype in product(Rule, streams.items(), TYPES):
        keys, coefficients = iter(range(1, 7)), iter((0.003, -0.001, 0.007, 0.011, -0.002, 0.005))
        steps = [
            Terms.of([next(keys) for _ in range(j)], [next(coefficients) for _ in range(j)], stream) for j in (3, 1, 2)
        ]
        program = Program.of(steps, [101, 102, 103], rule, [HYPERS[rule]] * 3)
        x = start if dtype == "float32" else as_bits(torch.from_numpy(start).to(TYPES[dtype]))
        slots = [np.zeros(start.size, np.float32) for _ in range(rule.slots)]
        shape = f" columns {columns}" if columns else ""
        table[f"{rule.name} {name} {dtype}{shape}"] = sha256(*side.advance(x, dtype, slots, program, 3, columns))
    return table


def sums(side: SimpleNamespace) -> dict[str, str]:
    """Checksums of a gaussian direction (its float32 bits) and of the rounding bits (16 bits each); ‖z‖² in 2⁻²⁴."""
    table = {}
    for place in SOME:
        table[f"checksum gaussian {label(*place)}"] = (
            f"{side.checksum(reference.gaussian(*place).view(np.uint32)):#018x}"
        )
        halves = reference.rounding_bits(*place).astype(np.uint16)
        table[f"checksum rounding {label(*place)}"] = f"{side.checksum(halves):#018x}"
        table[f"squares {label(*place)}"] = str(side.squares(*place))
    return table


def rounding() -> dict[str, str]:
    return {label(*place): sha256(reference.rounding_bits(*place).astype(np.uint16)) for place in SOME}


COUNTERS = (  # (c0, c1, c2, c3), (k0, k1): Random123's own known answers, then blocks of every domain
    ((0, 0, 0, 0), (0, 0)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)),
    *(
        ((block & 0xFFFFFFFF, block >> 32, tensor, int(domain)), (key & 0xFFFFFFFF, key >> 32))
        for domain, (block, tensor, key) in product(
            Domain, ((0, 0, 0), (2**32, 0, 0), (31, 7, 0x0123456789ABCDEF), (2**64 - 1, 2**32 - 1, LAST))
        )
    ),
)
CORNERS = (  # radius word, angle word: both signed zeros, the largest radius, each swap and mirror
    (0x00000000, 0x00400000),
    (0x00000000, 0xFFC00000),
    (0xFFFFFFFF, 0x00000000),
    (0x80000000, 0x00000000),
    (0x12345678, 0x9ABCDEF0),
    (0xB504F333, 0x7FFFFFFF),
)


def _hex(*words: int) -> str:
    return " ".join(f"{word:08x}" for word in words)


def _block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    block = np.array([counter[0] | counter[1] << 32], np.uint64)
    words = reference.philox(block, counter[2], counter[3], key[0] | key[1] << 32)
    return [int(word[0]) for word in words]


def blocks() -> dict[str, str]:
    """Words of Philox4x32-10, by counter c0 c1 c2 c3 and key k0 k1."""
    return {f"counter {_hex(*counter)} key {_hex(*key)}": _hex(*_block(counter, key)) for counter, key in COUNTERS}


def pairs() -> dict[str, str]:
    """Bits of pair(a, b): at the corners, and of the words of the blocks above, each followed by the next."""
    words = [word for counter, key in COUNTERS for word in _block(counter, key)]
    table = {}
    for a, b in (*CORNERS, *pairwise(words)):
        pair = reference.box_muller(np.array([a], np.uint32), np.array([b], np.uint32))
        table[_hex(a, b)] = _hex(*(int(number.view(np.uint32)[0]) for number in pair))
    return table


def keys() -> dict[str, str]:
    secret = b"only the clients know"
    open_, private = Keys.of_seed(7), Keys.of_seed(7, secret)
    table = {f"root of seed {seed}": root_of(seed).hex() for seed in (0, 7, -1, 2**63 - 1)}
    table |= {
        "secret": secret.hex(),
        "fingerprint of the secret": fingerprint(secret),
        "shift of root 7 by the secret": shift(root_of(7), secret).hex(),
    }
    values = {"derive root 7 purpose 'batch' no numbers": derive(root_of(7), "batch")}
    for place in ((0, 0, 0, SHARED), (1, 0, 0, SHARED), (0, 1, 0, SHARED), (0, 0, 1, SHARED), (12, 3, 4, 5)):
        values[f"seed 7 direction {place}"] = open_.direction(*place)
        values[f"seed 7 with secret direction {place}"] = private.direction(*place)
    for place in ((0, 0), (1, 0), (12, 3)):
        values[f"seed 7 rounding {place}"] = open_.rounding(*place)
    return table | {name: f"{value:#018x}" for name, value in values.items()}


def derive_table(side: SimpleNamespace, large: bool = True) -> dict[str, dict[str, str]]:
    """Everything both implementations give."""
    table = {
        "directions": directions(side, PLACES),
        "rounded": small(side),
        "matrices": matrices(side),
        "programs": programs(side, STREAMS)
        | programs(side, RANK1, 75 * 67, 67)
        | programs(side, RANK1, 10 * 512, 512)
        | programs(side, RANK1, 3 * 1500, 1500),
        "sums": sums(side),
    }
    return table | ({"large": directions(side, LARGE)} if large else {})


def main(check: bool) -> int:
    table, compiled = derive_table(REFERENCE), derive_table(NUMBA)
    apart = [f"{part}: {name}" for part in table for name in table[part] if table[part][name] != compiled[part][name]]
    if apart:
        print("the reference and the compiled kernels disagree:", *apart, sep="\n  ")
        return 1
    table = {"version": VERSION, **table, "rounding": rounding(), "keys": keys(), "blocks": blocks(), "pairs": pairs()}
    if not check:
        FILE.write_text(json.dumps(table, indent=1) + "\n")
        print(f"wrote {FILE}")
        return 0
    kept = json.loads(FILE.read_text())
    if kept != table:
        print("golden.json differs:")
        for part in sorted({*kept, *table}):
            if kept.get(part) != table.get(part):
                print(f"  {part}:\n    kept    {kept.get(part)}\n    derived {table.get(part)}")
        return 1
    print("golden.json holds")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
