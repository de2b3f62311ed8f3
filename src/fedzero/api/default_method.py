"""The method that `minimise` uses unless another one is named."""

from __future__ import annotations

from msgspec.structs import replace

from fedzero.estimators.surrogate import Active, Nearest, Surrogate, Transfer
from fedzero.methods import FedZO, FZooS, ResponseSurface
from fedzero.methods.rules.kernels import Adam
from fedzero.methods.shared.corrections import Constant
from fedzero.model.schedules import Count, Counts, InverseSqrt

MODERATE, LARGE = 200, 5000


def default_algorithm(
    dimension: int,
    clients: int,
    rounds: int | None = None,
    budget: int | None = None,
    steps: tuple[int, ...] = (),
    choices: tuple[int, ...] = (),
) -> ResponseSurface | FZooS | FedZO:
    """The method that is used unless another one is named; the size of the functions' values does not matter to it.

    Up to 200 dimensions the response surface: all parties are asked at the same points, d + 1 a round, or as many as
    spread a budget over the rounds. Above, where that is too many for a round, `fzoos`; in more than 5,000 dimensions,
    where a history of queries would be gigabytes, FedZO.
    """
    if dimension > LARGE:
        return FedZO(
            rate=InverseSqrt(0.05), directions=20, local_steps=5, local_optimizer=Adam(0.9, 0.9), box=(0.0, 1.0)
        )
    if dimension > MODERATE and not steps:
        return shared_fzoos(dimension)
    method = ResponseSurface(steps=steps, choices=choices)
    return method if budget is None else replace(method, points=_spread(method.batch(dimension, 0), rounds, budget))


def _spread(usual: int, rounds: int | None, budget: int) -> Counts:
    """Points a round: the usual number, more where the budget would last longer than the rounds, and fewer where it
    would not last for four; what remains of the budget is for the last round."""
    count = max(min(usual, max(1, budget // 4)), budget // (rounds or budget))
    whole, rest = divmod(budget, count)
    return Count(start=count, then=((whole, rest),)) if rest else count


def shared_fzoos(dimension: int) -> FZooS:
    """FZooS with candidates that all clients share: every query is used again and again, and what parties differ in
    cancels."""
    window = Nearest(150)
    return FZooS(
        gamma=Constant(1.0),
        surrogate=Surrogate(window=window),
        transfer=Transfer(count=2000, window=window),
        active=Active(
            initial=min(2 * dimension + 2, 50),
            a_step=min(dimension, 5),
            around=min(dimension + 1, 20),
            reach=0.02,
            shared=True,
        ),
        rate=InverseSqrt(0.03),
        local_steps=5,
    )
