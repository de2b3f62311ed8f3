"""Training the upper layers alone, on a CPU: `python bench/upper_layers.py --data DIR [LAYERS…]`.

SmolLM2-135M on SST-2, two clients with 32 prompts each, the base model and ten points around it. Layers below the first
trained one run once for all points; the baseline runs them at every point, as without that. Slopes must be the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from e3_round import DIRECTIONS, RADIUS, played
from table import show

from fedzero import recipe as recipes
from fedzero import session
from fedzero.oracles.language import LanguageObjective
from fedzero.session import Setup, Surroundings


def prepared(layers: int | None, data: Path) -> Setup:
    sets = ['device="cpu"', 'task.dtype="float32"', "task.batch=32", "task.testing=1", "task.training=2000"]
    sets += [] if layers is None else [f'task.train={{kind="layers", first={-layers}}}']
    return session.prepare(recipes.load("e3-sst2", sets), Surroundings(data))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("layers", nargs="*", type=int, default=[2, 4, 8])
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    whole = played(prepared(None, given.data))
    rows = [("all parameters", f"{whole.ms / 1e3:.2f} s", "", "1×", "")]
    for layers in given.layers:
        setup = prepared(layers, given.data)
        objective, params = setup.problem.objective, setup.problem.params
        assert isinstance(objective, LanguageObjective)
        assert objective.stem is not None
        once = played(setup)
        objective.stem.let_go()
        objective.stem = None
        always = played(setup)
        assert np.array_equal(once.slopes, always.slopes)
        name = f"the last {layers} layers, {params.size:,} parameters"
        times = f"{once.ms / 1e3:.2f} s", f"{always.ms / once.ms:.1f}×", f"{whole.ms / once.ms:.1f}×"
        rows.append((name, *times, "yes"))
    header = ("", "a round", "faster than layers run at every point", "than all parameters", "same slopes")
    show(f"Losses of a round of E3, P = {DIRECTIONS}, radius {RADIUS:g}", rows, header)


if __name__ == "__main__":
    main()
