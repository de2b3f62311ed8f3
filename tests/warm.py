"""Preloaded by the fork server of all tests that kill processes: fedzero imported and its kernels loaded, so a child
starts in milliseconds. One thread only and no parallel work, so nothing is lost in a fork.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch

import fedzero.api
import fedzero.cli  # noqa: F401  (what the children import)
from fedzero.directions import Domain, Program, Rule, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.privacy.accounting import COARSE, INTERVAL, epsilon_of

torch.set_num_threads(1)
params = Params.of_vector(torch.zeros(8))
terms = Terms.of([1], np.ones(1), Domain.GAUSSIAN)
params.fold(terms)
params.advance(Program.of([terms], [0], Rule.MOMENTUM, [(0.1, 0.9, 0.1)]), params.slots(1))
params.view(terms).vector()
params.digest()

with suppress(FedzeroError):  # without dp-accounting
    for delta in (0.02, 1 / 150):  # of the recipes of test_private_non_interference: seconds for each child otherwise
        for steps, interval in ((1, COARSE), (2, COARSE), (3, COARSE), (4, INTERVAL)):
            epsilon_of(1.0, 0.4, steps, delta, interval)
