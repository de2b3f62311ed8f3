"""Benches of language models look at all weights, or at those of some layers: `--layers FIRST LAST`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_layers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, nargs=2, metavar=("FIRST", "LAST"), help="default: all weights")


def trained(layers: Sequence[int] | None) -> str:
    """`task.train` of a recipe."""
    return '{kind="full"}' if layers is None else '{{kind="layers", first={}, last={}}}'.format(*layers)
