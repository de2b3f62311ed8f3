"""Preloaded by the fork server of all tests that kill processes: fedzero imported and its kernels loaded, so a child
starts in milliseconds. One thread only and no parallel work, so nothing is lost in a fork.
"""

from __future__ import annotations

import numpy as np
import torch

import fedzero.api
import fedzero.cli  # noqa: F401  (what the children import)
from fedzero.directions import Domain, Program, Rule, Terms
from fedzero.model.params import Params

torch.set_num_threads(1)
params = Params.of_vector(torch.zeros(8))
terms = Terms.of([1], np.ones(1), Domain.GAUSSIAN)
params.fold(terms)
params.advance(Program.of([terms], [0], Rule.MOMENTUM, [(0.1, 0.9, 0.1)]), params.slots(1))
params.view(terms).vector()
params.digest()
