"""Draws that are NumPy's own are what docs/ledger.md says, with NumPy's tables: the streams are ours to keep readable.

The tables are read out of NumPy's compiled module, where nothing else names them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.random import _generator
from recompute import stream
from recompute.digits import parts
from recompute.fractions import Fractions, Tables, Ziggurat

from fedzero.directions import Keys
from fedzero.tasks import partition

DOCS = Path(__file__).parents[2] / "docs" / "ledger.md"
COUNT = 30_000


def places(library: bytes, pattern: bytes) -> Iterator[int]:
    at = library.find(pattern)
    while at >= 0:
        yield at
        at = library.find(pattern, at + 1)


def table(kind: str, first: float, second: float, third: float) -> tuple[float, ...]:
    """256 numbers that begin so (to 7 digits, but for the first)."""
    library = Path(_generator.__file__).read_bytes()
    found = set()
    for at in places(library, struct.pack(f"<{kind}", first)):
        numbers = struct.unpack_from(f"<256{kind}", library[at : at + 2048].ljust(2048, b"\0"))
        if np.allclose(numbers[1:3], (second, third), rtol=1e-6, atol=0):
            found.add(numbers)
    assert len(found) == 1, (kind, first)
    return found.pop()


@cache
def tables() -> Tables:
    w = table("d", 8.683627060801306e-16, 4.779330175727737e-17, 6.354352417405262e-17)
    k = table("Q", 0x000EF33D8025EF6A, 0, 0x000C08BE98FBC6A8)
    f = table("d", 1.0, 0.9771017012676716, 0.9598790918001067)
    we = table("d", 9.655740063209183e-16, 7.089014243955414e-18, 1.163941249669122e-17)
    ke = table("Q", 0x001C5214272497C6, 0, 0x00137D5BD79C317E)
    fe = table("d", 1.0, 0.9381436808621747, 0.9004699299257465)
    more = 2.0**29
    short = (
        np.array(table("f", np.float32(w[0] * more), w[1] * more, w[2] * more), np.float32),
        table("I", k[0] >> 29, 0, k[2] >> 29),
        np.array(table("f", 1.0, f[1], f[2]), np.float32),
    )
    return Tables(Ziggurat(w, k, f), Ziggurat(we, ke, fe), Ziggurat(*short))


def both(number: int) -> tuple[Fractions, np.random.Generator]:
    keys = Keys.of_seed(9)
    return Fractions(tables(), keys.root, "batch", number), keys.generator("batch", number)


def test_normal_and_exponential_draws():
    ours, numpys = both(0)
    assert [ours.normal() for _ in range(COUNT)] == numpys.standard_normal(COUNT).tolist()
    ours, numpys = both(1)
    assert [ours.exponential() for _ in range(COUNT)] == numpys.standard_exponential(COUNT).tolist()
    ours, numpys = both(2)
    assert [ours.normal32() for _ in range(COUNT)] == numpys.standard_normal(COUNT, np.float32).tolist()


@pytest.mark.parametrize("alpha", [0.01, 0.0999, 0.1, 0.5, 1.0, 2.5, 40.0])
def test_dirichlet_draws(alpha: float):
    """Logarithms and powers are those of the C library: the last bits may be others on another machine."""
    ours, numpys = both(3)
    found = np.array([ours.dirichlet(alpha, 20) for _ in range(300)])
    np.testing.assert_allclose(found, numpys.dirichlet(np.full(20, alpha), 300), rtol=1e-14, atol=1e-300)


def test_halves_wait_while_words_are_taken():
    ours, numpys = both(4)
    found = [ours.permuted(3), ours.normal(), ours.permuted(8), ours.dirichlet(0.5, 3), ours.permuted(2)]
    right = [
        numpys.permutation(3).tolist(),
        numpys.standard_normal(),
        numpys.permutation(8).tolist(),
        numpys.dirichlet(np.full(3, 0.5)).tolist(),
        numpys.permutation(2).tolist(),
    ]
    assert found == right


@pytest.mark.parametrize("alpha", [0.05, 0.5, 3.0])
def test_a_partition_without_numpys_generator(alpha: float):
    how, y = partition.Dirichlet(alpha), np.arange(4000) * 7 % 10
    right = partition.split(how, y, 20, Keys.of_seed(4))
    found = parts(msgspec.to_builtins(how), y, 20, stream.root_of(4), tables())
    assert [part.tolist() for part in found] == [part.tolist() for part in right]


def test_the_page_names_every_use_of_such_a_draw():
    """A new one in the source has to be named on the page, with the task or method that makes it."""
    source = Path(__file__).parents[2] / "src" / "fedzero"
    uses = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if path.parts[len(source.parts)] != "testing"
        and any(
            f".{draw}(" in path.read_text() for draw in ("standard_normal", "dirichlet", "standard_gamma", "normal")
        )
    }
    assert uses == {
        "engines/simulated_time.py",
        "tasks/quadratic.py",
        "tasks/partition.py",
        "oracles/blackbox/objective.py",
        "estimators/surface/search.py",
        "estimators/surrogate/features.py",
    }
    section = DOCS.read_text().split("### Draws that are NumPy's own")[1].split("\n## ")[0]
    for name in ("quadratic", "partition", "black box", "response surface", "fzoos"):
        assert name in section
