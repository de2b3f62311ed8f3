"""Preloaded by the fork server of test_blackbox_kill.py: fedzero imported and its kernels loaded, in one thread."""

from __future__ import annotations

import numpy as np
import torch

from fedzero import api as blackbox  # noqa: F401  (what the children import)
from fedzero.directions import Domain, Terms
from fedzero.model.params import Params

torch.set_num_threads(1)
params = Params.of_vector(torch.zeros(8))
params.fold(Terms.of([1], np.ones(1), Domain.GAUSSIAN))
params.view(Terms.of([1], np.ones(1), Domain.GAUSSIAN)).vector()
params.digest()
