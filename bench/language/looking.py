"""What benches of language models look at: all weights or those of some layers, at the base or at a model in a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file

from fedzero.model.params import Params


def add_layers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, nargs=2, metavar=("FIRST", "LAST"), help="default: all weights")


def trained(layers: Sequence[int] | None) -> str:
    """`task.train` of a recipe."""
    return '{kind="full"}' if layers is None else '{{kind="layers", first={}, last={}}}'.format(*layers)


def take(params: Params, file: Path | None) -> None:
    """The weights of a file, where there is one; those it has not stay as they are."""
    if file is None:
        return
    own, found = params.tensors, load_file(file)
    if strange := sorted(found.keys() - own.keys()):
        raise SystemExit(f"{file} has {strange[0]}, which is not looked at: leave --layers out, or name more of them")
    params.load({**own, **{name: x.to(own[name].dtype) for name, x in found.items()}})
