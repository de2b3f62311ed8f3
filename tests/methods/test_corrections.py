"""The two corrections of the general form, as functions of the point."""

from __future__ import annotations

import numpy as np
import torch
from byhand import D, params, start

from fedzero.methods.shared.corrections import control_variate, proximal


def test_control_variate_is_gamma_times_the_difference_wherever_it_is_asked() -> None:
    rng = np.random.default_rng(1)
    c, own = rng.normal(size=(2, D)).astype(np.float32)
    correction = control_variate(torch.from_numpy(c), torch.from_numpy(own), 0.7)
    x = params()
    expected = 0.7 * (c.astype(float) - own.astype(float))
    for _ in range(2):
        assert np.allclose(correction(x).numpy(), expected, rtol=0, atol=1e-6)
        x.add(torch.ones(D))


def test_proximal_is_gamma_times_the_way_from_the_start() -> None:
    x = params()
    pull = proximal(x.vector(), 0.3)
    assert np.array_equal(pull(x).numpy(), np.zeros(D, np.float32)), "nothing at the start"
    step = np.random.default_rng(2).normal(size=D)
    x.add(torch.from_numpy(step).float())
    assert np.allclose(pull(x).numpy(), 0.3 * step, rtol=0, atol=1e-6)
    assert np.array_equal(params().vector().double().numpy(), start()), "and the start stays where it was"
