"""The vectors as tables in C, for check.c."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

STREAMS = {"rademacher": 2, "rank1": 4}
HEAD = """/* Made of vectors.json by make.py. */
#include <stdint.h>
"""


def words(values: Iterable[Any]) -> str:
    return "{" + ", ".join(str(value) for value in values) + "}"


def hexed(texts: Iterable[str]) -> list[str]:
    return [f"0x{text}u" for text in texts]


class Pool:
    """Numbers of all rows of a table in one array; a row says where its own begin."""

    def __init__(self, name: str, kind: str):
        self.name, self.kind, self.values = name, kind, list[str]()

    def add(self, values: Iterable[Any]) -> int:
        begin = len(self.values)
        self.values.extend(str(value) for value in values)
        return begin

    def text(self) -> str:
        values = self.values or ["0"]
        lines = [f"    {', '.join(values[first : first + 8])}," for first in range(0, len(values), 8)]
        return f"static const {self.kind} {self.name}[] = {{\n" + "\n".join(lines) + "\n};\n"


def table(name: str, fields: str, rows: list[str]) -> str:
    return f"static const struct {{ {fields} }} {name}[] = {{\n" + "".join(f"    {row},\n" for row in rows) + "};\n"


def c_bytes(text: str) -> str:
    return words(f"0x{text[i : i + 2]}" for i in range(0, len(text), 2)) if text else "{0}"


def as_c(vectors: dict[str, Any]) -> str:
    u32, u64 = Pool("NUMBERS", "uint32_t"), Pool("WIDE", "uint64_t")
    parts = [
        keys(vectors["keys"]), philox(vectors["words"]), directions(vectors["directions"]),
        programs(vectors["programs"], u32, u64), estimates(vectors["estimates"], u32, u64),
        losses(vectors["losses"], u32, u64), batches(vectors["batches"], u32),
    ]  # fmt: skip
    return "\n".join([HEAD, f"#define TOLERANCE {vectors['tolerance']}\n", u32.text(), u64.text(), *parts])


def keys(rows: list[Any]) -> str:
    made = [
        f"{{{row['seed'] if row['seed'] != '9223372036854775807' else 'INT64_MAX'}, {len(row['secret']) // 2}, "
        f'{c_bytes(row["secret"])}, {c_bytes(row["root"])}, "{row["purpose"]}", {len(row["numbers"])}, '
        f"{words(row['numbers'])}, 0x{row['key']}u}}"
        for row in rows
    ]
    secret = "uint32_t secret_length; uint8_t secret[21]"
    fields = f"int64_t seed; {secret}, root[32]; const char *purpose; uint32_t count; int64_t numbers[4]; uint64_t key;"
    return table("KEYS", fields, made)


def philox(rows: list[Any]) -> str:
    made = [
        f"{{0x{row['key']}u, 0x{row['block']}u, {row['ordinal']}u, {row['domain']}u, {words(hexed(row['words']))}}}"
        for row in rows
    ]
    return table("WORDS", "uint64_t key, block; uint32_t ordinal, domain, words[4];", made)


def directions(rows: list[Any]) -> str:
    made = [
        f"{{{STREAMS[row['stream']]}, 0x{row['key']}u, {row['ordinal']}u, {len(row['shape'])}, {words(row['shape'])}, "
        f"0x{row['checksum']}u}}"
        for row in rows
    ]
    return table(
        "DIRECTIONS", "uint32_t stream; uint64_t key; uint32_t ordinal, axes, shape[4]; uint64_t checksum;", made
    )


def shapes_of(row: Any, u32: Pool) -> str:
    """Number of tensors, and where (axes, sizes …) of each begin."""
    return f"{len(row['shapes'])}, {u32.add(chain.from_iterable([len(s), *s] for s in row['shapes']))}"


def programs(rows: list[Any], u32: Pool, u64: Pool) -> str:
    made = []
    for row in rows:
        begin, numbers = len(u64.values), len(u32.values)
        for step in row["steps"]:
            u64.add(hexed(k for k, _ in step["terms"]))
            u32.add([len(step["terms"]), *hexed(step["hypers"]), *hexed(c for _, c in step["terms"])])
        sums = u64.add(hexed([*row["checksums"], *row["momentum"]]))
        made.append(
            f"{{{STREAMS[row['stream']]}, {int(row['rule'] == 'momentum')}, 0x{row['unit']}u, {shapes_of(row, u32)}, "
            f"{len(row['steps'])}, {begin}, {numbers}, {sums}, {c_bytes(row['digest'])}}}"
        )
    fields = "uint32_t stream, rule, unit, tensors, shapes, steps, keys, numbers, sums; uint8_t digest[8];"
    return table("PROGRAMS", fields, made)


def estimates(rows: list[Any], u32: Pool, u64: Pool) -> str:
    made = []
    for row in rows:
        wide = u64.add(hexed([row["radius"], row["loss"], row["factor"], row["norm"], *row["values"]]))
        numbers = u32.add(hexed([*row["slopes"], *row["coefficients"], *row["clipped"]]))
        made.append(f"{{{int(row['difference'] == 'central')}, {len(row['slopes'])}, {wide}, {numbers}}}")
    return table("ESTIMATES", "uint32_t difference, directions, wide, numbers;", made)


def losses(rows: list[Any], u32: Pool, u64: Pool) -> str:
    made = []
    for row in rows:
        layers, points = u32.add(chain.from_iterable(row["layers"])), u64.add(hexed(k for k, _ in row["points"]))
        u64.add(hexed(row["losses"]))
        numbers = u32.add(hexed(c for _, c in row["points"]))
        made.append(
            f"{{{STREAMS[row['stream']]}, {words(row['input'])}, {len(row['layers'])}, {layers}, "
            f"{shapes_of(row, u32)}, {row['rows']}, {len(row['points'])}, {points}, {numbers}}}"
        )
    fields = "uint32_t stream, input[3], layer_count, layers, tensors, shapes, rows, points, wide, numbers;"
    return table("LOSSES", fields, made)


def batches(rows: list[Any], u32: Pool) -> str:
    made = [
        f"{{{int(row['kind'] == 'poisson')}, 0x{row['key']}u, {row['count']}u, {row.get('size', 0)}, "
        f"0x{row.get('rate', '0')}u, {len(row['places'])}, {u32.add(f'{place}u' for place in row['places'])}}}"
        for row in rows
    ]
    fields = "uint32_t poisson; uint64_t key; uint32_t count, size; uint64_t rate; uint32_t drawn, places;"
    return table("BATCHES", fields, made)
