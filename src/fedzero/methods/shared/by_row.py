"""Turns whose contribution is one vector for each row (or person), which a link bounds before they are added up.

    v[i, p] = (ℓ_i(x + μ z_p) − ℓ_i(x − μ z_p)) / 2μ        i in a Poisson batch, p = 1 … P        (or forward)

Privacy at the level of rows (Abadi et al., "Deep learning with differential privacy", with slopes in the place of
gradients) needs that each row enters what a client sends, and nothing it keeps, once: through v[i].
"""

from __future__ import annotations

from fedzero.links import Chain
from fedzero.methods.contract import Method, Scale


def why_not_by_row(method: Method, scale: Scale, chain: Chain) -> str:
    """Why a method's turns cannot be taken apart by rows on this chain; empty: they can. Of the data and the objective
    see `oracles.rows.why_no_rows`."""
    traits, exchanges = method.traits(scale), len(method.cost(0, scale).replies)
    refusals = (
        (traits.first_order, f"clients of {method.name} get gradients, and slopes of single rows are of values"),
        (exchanges > 1, f"rounds of {method.name} have several exchanges, and each would be a release of every row"),
        (
            traits.remembers or traits.self_correcting,
            f"clients of {method.name} keep a memory, through which a row enters later turns as well",
        ),
        (bool(traits.no_rows), f"{method.name}: {traits.no_rows}"),
        (
            chain.feedback,
            "feedback = true keeps what was left out for the next contribution, in which rows would enter again: set "
            "feedback = false",
        ),
    )
    return next((why for holds, why in refusals if holds), "")
