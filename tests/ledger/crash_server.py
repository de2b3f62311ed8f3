"""Preloaded by the fork server of test_crash.py: fedzero imported and its kernels loaded, so a child starts quickly.

One thread only and no parallel work, so nothing is lost in a fork.
"""

from __future__ import annotations

import numpy as np
import torch

from fedzero.directions import Domain, Program, Rule, Terms
from fedzero.model.params import Params
from fedzero.runs import session  # noqa: F401  (what the children import)

torch.set_num_threads(1)
params = Params.of_vector(torch.zeros(8))
params.fold(Terms.of([1], np.ones(1), Domain.GAUSSIAN))
params.advance(
    Program.of([Terms.of([1], np.ones(1), Domain.GAUSSIAN)], [0], Rule.MOMENTUM, [(0.1, 0.9, 0.1)]), params.slots(1)
)
params.view(Terms.of([1], np.ones(1), Domain.GAUSSIAN)).vector()
params.digest()
