"""How much noise a run of scalars has gathered, from its ledger alone: `python -m bench.methods.noise RUN…`.

For DeComFL and MeZO with plain steps. A step along P directions with slopes s adds about ½ η² s² tr H / P to the loss,
whatever it learns, and a later, smaller rate does not take that back. The curvature tr H is the model's and the task's;
the sum of η² s² is the run's, and comparable between runs of one model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from bench.table import show

from fedzero.ledger.replay import read, updates_of
from fedzero.ledger.store import Ledger
from fedzero.model.schedules import rate_at
from fedzero.model.updates import Seeded
from fedzero.recipe import recipe as recipes

PARTS = {"first tenth": (0.0, 0.1), "to the half": (0.1, 0.5), "second half": (0.5, 1.0)}


def row_of(folder: Path) -> tuple[str, ...]:
    ledger = Ledger.open(folder / "ledger.db")
    view, recipe = read(ledger), recipes.from_canonical(ledger.start().recipe)
    found = [(u.round, np.frombuffer(u.scalars, "<f4")) for u in updates_of(ledger, view) if isinstance(u, Seeded)]
    ledger.close()
    squares = np.array([np.mean(scalars.astype(float) ** 2) for _, scalars in found])
    rates = np.array([rate_at(recipe.algorithm.rate, round) for round, _ in found])
    cuts = [squares[int(a * len(squares)) : int(b * len(squares))] for a, b in PARTS.values()]
    last = view.evaluations[-1].metrics
    reached = f"{last.loss:.3f}" if last.accuracy is None else f"{last.loss:.3f}, {100 * last.accuracy:.1f} %"
    means = [f"{cut.mean():.1f}" if len(cut) else "" for cut in cuts]
    return str(folder), *means, f"{np.sum(rates**2 * squares):.1e}", f"{len(found)}: {reached}"


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    header = ("mean square of slopes", *PARTS, "Σ η² s²", "rounds: loss and accuracy")
    show("Noise in runs of scalars", [row_of(Path(folder)) for folder in sys.argv[1:]], header)


if __name__ == "__main__":
    main()
