"""`[privacy]` of a recipe: differential privacy for the units of a run.

In every step each unit takes part by its own private coin of probability q. Its numbers are bounded to a norm of C and
rounded to integers; the integers are summed, and noise of deviation σC is added to the sum:

    g = (Σ bounded(v_i) + noise) / (q n)

Neighbours are two data sets of which one has a unit more. Sampling, bounds and sums:
`gatherings/private`; accounting: `privacy/accounting.py`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from fedzero.errors import FedzeroError, Invalid
from fedzero.gatherings import shamir
from fedzero.gatherings.private.central import PlainSum
from fedzero.gatherings.private.secure import PrivateSecureSum
from fedzero.gatherings.private.units import Integers, PrivateUnits
from fedzero.links import Chain, Gathering
from fedzero.methods.contract import Federation
from fedzero.model.value import Checked
from fedzero.oracles.poisson import Poisson
from fedzero.privacy.accounting import COARSE, INTERVAL
from fedzero.privacy.integers import Grid, choose_grid
from fedzero.privacy.mechanism import Figures, Mechanism

Unit = Literal["client", "example", "person"]
TOLERANCE = 1e-3
"""Relative, of ε: what an accountant of another release may find differently."""
FIGURES = 64
"""Of a run, about so many are computed."""
LEAST_SIGMA, LARGEST_SIGMA = 0.2, 10_000.0
LARGEST_DELTA = 0.1
"""The largest δ n: more would allow a mechanism that publishes some units whole."""


class Privacy(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Differential privacy of a run. Give `epsilon`, a budget for all rounds, or `sigma`."""

    epsilon: Annotated[float, Meta(ge=0.01, le=32)] | UnsetType = UNSET
    """ε after the last round, the budget: against readers of the model and the ledger; with noise of hosts, against the
    server"""
    delta: Annotated[float, Meta(ge=1e-12, lt=1)] | UnsetType = UNSET
    """δ; default: 0.1 / n, the largest that is allowed"""
    unit: Unit = "client"
    """what is protected: all that a client has, one example, or all examples of a person"""
    clip: Annotated[float, Meta(gt=0)] | Literal["normalise"] = "normalise"
    """C: longer vectors of a unit are shortened to it; normalise: every vector gets the norm 1"""
    noise: Literal["central", "distributed", "local"] = "central"
    """who adds it: the server to the sum, every host a part, or every host all of it"""
    sum: Literal["plain", "secure"] = "plain"
    """how hosts hand their sums over: to the server, or to a committee that shows the server the total alone"""
    honest: Annotated[int, Meta(ge=1, le=10**6)] | UnsetType = UNSET
    """h, hosts whose noise is counted on with noise = "distributed", besides those that may collude; a round with fewer
    is lost"""
    population: Annotated[int, Meta(ge=1, le=10**11)] | UnsetType = UNSET
    """n, units in all (persons, if they are the units); default: the clients of the federation"""
    probability: Annotated[float, Meta(ge=1e-9, le=1)] | UnsetType = UNSET
    """q, of a unit in a step; default: federation.cohort / federation.clients"""
    hosts: Annotated[int, Meta(ge=1, le=10**6)] | UnsetType = UNSET
    """hosts that draw their own units in secret and answer in every round; a federation sets it to the number of its
    sites. Without it the server draws the clients that are units"""
    present: Literal[True] | UnsetType = UNSET
    """who is asked depends on who is present, as with devices: ε counts every client as one that takes part in every
    round, and the sum is divided by federation.cohort"""
    person: str | UnsetType = UNSET
    """the column that names the person, if unit = "person"; it is no feature, and no value of it is kept"""
    sigma: Annotated[float, Meta(ge=LEAST_SIGMA, le=LARGEST_SIGMA)] | UnsetType = UNSET
    """σ, the deviation of the noise as a multiple of C; found from epsilon before the start"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon and not self.sigma:
            raise Invalid("Privacy: give epsilon, the budget of the run (2.0), or sigma, the noise as a multiple of C")
        if self.unit != "client" and self.clip == "normalise":
            raise Invalid(
                f"Privacy: unit = {self.unit!r} needs a clip that is a number: normalised examples weigh alike, "
                "however well the model knows them"
            )
        if (self.unit == "person") == isinstance(self.person, UnsetType):
            raise Invalid("Privacy: unit = 'person' and person = 'COLUMN' go together")
        if self.present:
            self._expect_no_chance()

    def _expect_no_chance(self) -> None:
        """Refuse what claims amplification, or needs hosts that answer in every round, where clients come and go."""
        asked = "with present = true who is asked depends on who is present"
        refusals = (
            (self.unit != "client", f"unit = {self.unit!r}", "units are whole clients"),
            (not isinstance(self.probability, UnsetType), "probability", f"{asked}, and no chance protects anybody"),
            (not isinstance(self.hosts, UnsetType), "hosts", "hosts that draw in secret answer in every round"),
            (self.sum == "secure", "sum = 'secure'", "its committee has to be there in every round"),
            (self.noise == "distributed", "noise = 'distributed'", "it needs a secure sum: use central or local"),
        )
        for holds, what, why in refusals:
            if holds:
                raise Invalid(f"Privacy: present = true and {what} do not go together: {why}")

    def check(self, federation: Federation) -> None:
        """Refuse a federation that the accounting does not hold for."""
        why = "privacy: "
        federation.expect(why + "every unit has its own coin", replacement=False)
        federation.expect(why + "the server adds noise and folds the sum", server_model=True, private=False)
        federation.expect(why + "nobody knows who took part", sync=False, pull_after=None)
        federation.expect(why + "the bound of a unit is privacy.clip", bound=0.0)
        if self.noise == "distributed" and self.sum == "plain":
            raise FedzeroError(
                "privacy.noise = 'distributed' hides nothing from a server that sees each host's part: set "
                "privacy.sum = 'secure', or noise = 'local'"
            )
        if self.noise == "local" and self.sum == "secure":
            raise FedzeroError(
                "privacy.noise = 'local' protects by itself: leave out privacy.sum, or set noise = 'distributed'"
            )
        if self.of(federation) > federation.clients:
            raise FedzeroError(f"privacy.hosts = {self.hosts}, and there are {federation.clients} clients: use fewer")
        if self.sum == "secure" and self.of(federation) < shamir.LEAST:
            raise FedzeroError(f"privacy.sum = 'secure' needs at least {shamir.LEAST} hosts")
        if self.unit == "client" and self.n(federation) < federation.clients:
            raise FedzeroError(
                f"privacy.population = {self.population}, and there are {federation.clients} clients: leave it out"
            )
        given = [] if self.unit == "client" else ["population", "probability"]
        if missing := [name for name in given if isinstance(getattr(self, name), UnsetType)]:
            raise FedzeroError(f"privacy: unit = {self.unit!r} needs privacy.{missing[0]}, a constant that is public")
        n, delta = self.n(federation), self.delta_of(federation)
        if delta * n > LARGEST_DELTA * (1 + 1e-9):
            raise FedzeroError(
                f"privacy.delta = {delta:g} is too large for {n:,} units: at most {LARGEST_DELTA / n:g} (0.1 / n)"
            )

    def n(self, federation: Federation) -> int:
        """Units in all."""
        return federation.clients if isinstance(self.population, UnsetType) else self.population

    def of(self, federation: Federation) -> int:
        """How many hosts there are; without `hosts` each client is one."""
        return federation.clients if isinstance(self.hosts, UnsetType) else self.hosts

    @property
    def secret(self) -> bool:
        """Whether the server does not know which units take part."""
        return self.unit != "client" or not isinstance(self.hosts, UnsetType)

    def at_hosts(self, count: int) -> Privacy:
        """For a federation of so many hosts."""
        if not isinstance(self.hosts, UnsetType) and self.hosts != count:
            raise FedzeroError(f"privacy.hosts = {self.hosts}, and there are {count} sites with clients: leave it out")
        return replace(self, hosts=count)

    def q(self, federation: Federation) -> float:
        """The probability of a unit in a step; 1 where no chance is claimed."""
        if self.present:
            return 1.0
        if isinstance(self.probability, UnsetType):
            return federation.cohort / federation.clients
        return self.probability

    def delta_of(self, federation: Federation) -> float:
        return LARGEST_DELTA / self.n(federation) if isinstance(self.delta, UnsetType) else self.delta

    @property
    def length(self) -> float:
        """C"""
        return 1.0 if self.clip == "normalise" else self.clip

    def asked(self, federation: Federation) -> float:
        """The expected number of clients that take part in a round."""
        if self.present:
            return federation.cohort
        return self.q(federation) * federation.clients if self.unit == "client" else federation.clients

    def answering(self, federation: Federation) -> float:
        """The expected number of clients that send a reply in a round: all, if the server does not draw them."""
        return federation.clients if self.secret else self.asked(federation)

    def following(self, federation: Federation) -> int:
        """How many clients are sent the update of a round."""
        return federation.cohort if self.present else federation.clients

    def drawn(self, generator: np.random.Generator, federation: Federation) -> tuple[int, ...]:
        """The clients that the server asks in a step: each by its own coin, or all if it does not draw units."""
        if self.secret:
            return tuple(range(federation.clients))
        return tuple(np.flatnonzero(generator.random(federation.clients) < self.q(federation)).tolist())

    def chain(self, federation: Federation, count: int) -> Chain:
        """Bounds, integers and the noisy sum. count: P, the most numbers of a turn."""
        if isinstance(self.sigma, UnsetType):
            raise FedzeroError("privacy.sigma follows from privacy.epsilon, and nobody has solved it yet")
        most, C, q = self._most(federation), self.length, self.q(federation)
        exponent = self._grid(federation, count).exponent
        rows = None if self.unit == "client" else Poisson(q, persons=self.unit == "person")
        bounds = PrivateUnits(clip=C, normalise=self.clip == "normalise", exponent=exponent, most=most, rows=rows)
        by: Literal["server", "hosts"] = "server" if self.noise == "central" else "hosts"
        shared: dict[str, Any] = {
            "clip": C,
            "exponent": exponent,
            "sigma": self.sigma,
            "expected": float(federation.cohort) if self.present else q * self.n(federation),
        }
        gathering: Gathering = PlainSum(**shared, by=by, most=most)
        if self.sum == "secure":
            noisy = self._honest(federation) or 1
            gathering = PrivateSecureSum(**shared, by=by, scale=2.0**exponent, rounding="refuse", noisy=noisy)
        return Chain((bounds, Integers(exponent=exponent)), gathering=gathering)

    def _most(self, federation: Federation) -> int:
        """The most units of a client in a turn."""
        return 1 if self.unit == "client" else most_drawn(self.n(federation), self.q(federation))

    def _grid(self, federation: Federation, count: int) -> Grid:
        return choose_grid(self.length, count, units=self.n(federation), message=self._most(federation))

    def _honest(self, federation: Federation) -> int:
        """h, hosts whose noise is counted on; 0: the server adds it."""
        if self.noise != "distributed":
            return int(self.noise == "local")
        if not isinstance(self.honest, UnsetType):
            return self.honest
        hosts = self.of(federation)
        members = min(hosts, shamir.MOST)
        if members < shamir.LEAST:
            return 1
        away = members - shamir.threshold(members) if hosts == members else hosts // 2
        return max(1, hosts - shamir.most_colluding(members) - away)

    def mechanism(self, federation: Federation, count: int) -> Mechanism:
        """What the accountant has to know. Rows are drawn by the clients themselves; clients by the server, or by their
        hosts."""
        grid, honest = self._grid(federation, count), self._honest(federation)
        return Mechanism(grid, self.q(federation), self.delta_of(federation), honest, secret=self.secret)

    def spent(self, federation: Federation, count: int, steps: int, total: int) -> Figures:
        """ε after so many steps of `total`, against readers of model and ledger, and against the server (None: no
        bound). Most steps have the figure of a step soon after them, which is not smaller: an exact one takes time.
        None is above that of the last step, which is computed on a finer grid."""
        assert not isinstance(self.sigma, UnsetType)
        mechanism, end = self.mechanism(federation, count), max(total, steps)
        last = mechanism.figures(self.sigma, end, INTERVAL)
        each = max(1, total // FIGURES)
        soon = min(-(-steps // each) * each, end)
        readers, server = last if soon == end else mechanism.figures(self.sigma, soon, COARSE)
        return min(readers, last[0]), None if server is None or last[1] is None else min(server, last[1])

    def solved(self, federation: Federation, count: int, steps: int) -> Privacy:
        """With σ, so that epsilon is spent after so many steps."""
        if isinstance(self.epsilon, UnsetType):
            return self
        mechanism = self.mechanism(federation, count)
        if isinstance(self.sigma, UnsetType):
            return replace(self, sigma=self._within_limits(mechanism, steps))
        if (found := mechanism.budgeted(self.sigma, steps)) > self.epsilon * (1 + TOLERANCE):
            raise FedzeroError(
                f"privacy.epsilon = {self.epsilon:g} is less than the {found:.4g} that {steps} rounds with "
                f"privacy.sigma = {self.sigma:g} spend: leave out privacy.sigma, or make fewer rounds"
            )
        return self

    def _within_limits(self, mechanism: Mechanism, steps: int) -> float:
        """The smallest σ that a recipe may have with which epsilon is enough."""
        assert isinstance(self.epsilon, float)
        sigma = max(mechanism.sigma(self.epsilon, steps, LEAST_SIGMA), LEAST_SIGMA)
        if sigma > LARGEST_SIGMA:
            raise FedzeroError(
                f"privacy.epsilon = {self.epsilon:g} over {steps:,} rounds needs privacy.sigma = {sigma:,.0f}, "
                f"more than {LARGEST_SIGMA:,.0f}: make fewer rounds, or give a larger epsilon"
            )
        return sigma


def most_drawn(n: int, q: float) -> int:
    """More units than this are drawn with probability below 1e-20 (Bernstein); the others would not count."""
    third, variance = 46.1 / 3, n * q * (1 - q)  # ln 1e20 = 46.05
    return min(n, math.ceil(n * q + third + math.sqrt(third * third + 92.2 * variance)))
