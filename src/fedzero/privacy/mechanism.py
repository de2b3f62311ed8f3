"""The mechanism of a step, and what T steps of it spend: one figure against readers, one against the server.

readers   see the model and the ledger: T steps with Poisson sampling of probability q
server    central noise: no bound, it sees sums without noise. Noise of hosts: the same as readers if the server does
          not know which units took part, and T steps without sampling if it does
"""

from __future__ import annotations

from dataclasses import dataclass

from fedzero.privacy.accounting import INTERVAL, distributed_epsilon, distributed_sigma, epsilon_of, sigma_of
from fedzero.privacy.integers import Grid

Figures = tuple[float, float | None]


@dataclass(frozen=True)
class Mechanism:
    """grid: of the integers; q: probability of a unit in a step; honest: h, hosts whose noise is counted on, 0 if the
    server adds it; secret: the server does not know which units take part."""

    grid: Grid
    q: float
    delta: float
    honest: int = 0
    secret: bool = False

    @property
    def _known(self) -> float:
        """The probability of a unit in a step as the server sees it."""
        return self.q if self.secret else 1.0

    def figures(self, sigma: float, steps: int, interval: float = INTERVAL) -> Figures:
        """ε of both after so many steps with noise multiplier σ."""
        if not self.honest:
            return epsilon_of(sigma, self.q, steps, self.delta, interval), None
        variance = float(self.grid.noise(sigma, self.honest)) ** 2
        place = self.grid, variance, self.honest
        readers = distributed_epsilon(*place, self.q, steps, self.delta)
        return readers, readers if self.secret else distributed_epsilon(*place, 1.0, steps, self.delta)

    def budgeted(self, sigma: float, steps: int) -> float:
        """The figure that a budget is about: against the server where the noise is there for it, else against
        readers."""
        readers, server = self.figures(sigma, steps)
        return readers if server is None else server

    def sigma(self, epsilon: float, steps: int, least: float = 0.0) -> float:
        """The σ with which so many steps spend ε; smaller ones than `least` are not looked for."""
        if not self.honest:
            return sigma_of(epsilon, self.q, steps, self.delta, least)
        return distributed_sigma(self.grid, epsilon, self.honest, self._known, steps, self.delta)
