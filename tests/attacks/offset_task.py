"""A task whose losses can be shifted without a change of any slope, and the program that knows it."""

from __future__ import annotations

import os

import numpy as np

from fedzero import plugins
from fedzero.tasks.quadratic import Quadratic, QuadraticObjective

GRID = 2.0**20


class Shifted(QuadraticObjective):
    """Values are multiples of 2⁻²⁰, so that a shift by an integer is exact and cancels in every difference."""

    def losses(self, base, points, batches, basis=None):
        return np.round(super().losses(base, points, batches, basis) * GRID) / GRID + float(os.environ["SHIFT"])


class Offset(Quadratic, tag="offset-quadratic"):
    """A quadratic; its data are a number in the environment."""

    def build(self, clients, context):
        from dataclasses import replace

        problem = super().build(clients, context)
        old = problem.objective
        new = Shifted.__new__(Shifted)
        new.curvature, new.optimum = old.curvature, old.optimum
        return replace(problem, objective=new)


if __name__ == "__main__":
    from fedzero.testing.overheard import main

    plugins.register(Offset)
    main()
