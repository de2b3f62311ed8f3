"""FZooS: gradient surrogates instead of finite differences (Shu et al., "Heterogeneous federated zeroth-order
optimization using gradient surrogates").

    client i: T steps   ĝ = ∇μ_i(x) + γ_t (∇μ̂(x) − ∇μ̂_i(x)),   x ← x − Adam(ĝ), clipped to the box           eq. (5)
              after each: of some candidates around x, the most uncertain are queried and observed
    exchange 1:  x_i − x_r up; the mean down, x_{r+1} = x_r + mean
              queries around x_{r+1};  w_i = Φ_i (Φ_iᵀΦ_i + σ²I)⁻¹ y_i
    exchange 2:  w_i up, M numbers; the mean is w of the next round:  ∇μ̂(x) = ∇φ(x)ᵀ w,  ∇μ̂_i(x) = ∇φ(x)ᵀ w_i

∇μ_i is the posterior gradient of a Gaussian process over the client's own queries, φ are random Fourier features that
all share (`fedzero.estimators.surrogate`). Unlike SCAFFOLD's, this correction can be had wherever the client is;
`correction_at = "start"` takes it where the round began all the same, which is the paper's ablation.

What the paper says and what its authors ran differ, so there are presets: "text" (RBF with ℓ = 1, the whole history,
γ_t = 1/t) and "authors" (the 150 nearest queries, Matérn-5/2 with a fitted length scale, 50 queries around x_r).
"shared" is our own: all clients draw the *same* candidates. A surrogate is linear in the values it was given, so what
clients differ in cancels in the mean of surrogates over the same points, as it does along DeComFL's shared directions.
With γ = 1 it converges where clients differ so much (C = 50 in the paper's quadratics) that the others do not.

A client remembers its queries. Its surrogate grows by rows and is kept between turns; it is made again, by the same
steps and so to the same bits, where the memory came from elsewhere: a resumed run, a turn that did not count.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray
from torch import Tensor

from fedzero.estimators.surrogate import (
    Active,
    Features,
    History,
    Matern,
    Nearest,
    Surrogate,
    SurrogateCache,
    Transfer,
    features_of,
)
from fedzero.methods import (
    ALL_DATA,
    F32,
    SHARED,
    Adam,
    Answer,
    Ask,
    Basis,
    Box,
    Constant,
    Contribution,
    Cost,
    Dense,
    Domain,
    Federation,
    FedzeroError,
    Gamma,
    Intermediate,
    IntermediateResult,
    Inverse,
    Keys,
    Losses,
    Memory,
    Method,
    Moments,
    Optimizer,
    Params,
    RuleState,
    Samples,
    Scale,
    Schedule,
    State,
    StepInputs,
    Terms,
    Traits,
    Turn,
    Update,
    Work,
    add_within,
    advance_round,
    dense_step,
    pack,
    rate_at,
    refuse_empty,
    transferred,
    vector_of,
)

Values = NDArray[np.float64]


class Preset(Struct, frozen=True):
    """What the paper and its authors' code differ in."""

    gamma: Gamma
    surrogate: Surrogate
    transfer: Transfer
    active: Active


NEAREST = Nearest(150)
PRESETS = {
    "text": Preset(Inverse(), Surrogate(), Transfer(), Active()),
    "authors": Preset(
        Inverse(),
        Surrogate(kernel=Matern(), fit_scale=True, window=NEAREST),
        Transfer(window=NEAREST),
        Active(initial=50, around=50),
    ),
    "shared": Preset(
        Constant(), Surrogate(window=NEAREST), Transfer(window=NEAREST), Active(initial=50, around=50, shared=True)
    ),
}


@dataclass(frozen=True)
class Weights(RuleState):
    """w of the last round, M numbers."""

    w: Tensor


class FZooS(Method, tag="fzoos"):
    """Gradients from a Gaussian process over past queries, corrected by the mean of all clients' processes."""

    preset: Literal["text", "authors", "shared"] = "text"
    """Defaults of the next four: those of the paper, or of its authors' code."""
    gamma: Gamma | None = None
    """γ, weight of the correction"""
    surrogate: Surrogate | None = None
    """the process over a client's own queries"""
    transfer: Transfer | None = None
    """the random features that represent it on the wire"""
    active: Active | None = None
    """where a client queries its function"""
    rate: Schedule = 0.01
    """η"""
    optimizer: Optimizer = Adam()
    """Reset at the start of every turn."""
    local_steps: Annotated[int, Meta(ge=1)] = 10
    """T, local steps of a client in one round"""
    correction_at: Literal["iterate", "start"] = "iterate"
    """where the correction is taken: at every step, or where the round began (the paper's ablation)"""
    box: Box | None = (0.0, 1.0)
    samples: Samples = "batch"

    @property
    def settled(self) -> Preset:
        """The four, those not given from the preset."""
        default = PRESETS[self.preset]
        return Preset(
            self.gamma or default.gamma,
            self.surrogate or default.surrogate,
            self.transfer or default.transfer,
            self.active or default.active,
        )

    def check(self, federation: Federation) -> None:
        Method.check(self, federation)
        refuse_empty(self.box)
        surrogate, active = self.settled.surrogate, self.settled.active
        if surrogate.fit_scale and not isinstance(surrogate.window, Nearest):
            raise FedzeroError(
                "algorithm.surrogate.fit_scale = true factorises anew for every length scale, which is affordable only "
                "with a small window: set algorithm.surrogate.window = {kind = 'nearest', count = 150}"
            )
        for chosen, of in (("a_step", "candidates"), ("around", "around_candidates")):
            if getattr(active, chosen) > getattr(active, of):
                raise FedzeroError(
                    f"algorithm.active.{chosen} = {getattr(active, chosen)} exceeds active.{of} = {getattr(active, of)}"
                )

    def traits(self, scale: Scale) -> Traits:
        return Traits(seeded=False, remembers=True, delivery="snapshot")

    def cost(self, round: int, scale: Scale) -> Cost:
        active = self.settled.active
        return Cost(
            replies=(scale.size, self.settled.transfer.count),
            queries=self.local_steps * active.a_step + active.around,
            first_queries=active.initial,
        )

    def init(self, params: Params, clients: int) -> State:
        w = torch.zeros(self.settled.transfer.count, dtype=torch.float32, device=params.device)
        return State(params, Weights(w), clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        settled, features = self.settled, self._features(state, turn.keys)
        history = self._history(state, turn, features)
        asking = Asking(self, settled.active, state.params, turn, history)
        start = state.params.vector().cpu()
        x, first = start.double(), None
        moments: Moments = ()
        if turn.memory is None:
            first = yield from asking.around(x, 0, settled.active.initial, settled.active.initial)
        correct = None
        if turn.memory is not None:
            w = state.carry.w.cpu().double()
            correct = transferred(features, w, torch.from_numpy(turn.memory[0]).double())
        rate, before = rate_at(self.rate, turn.round), x
        for t in range(1, self.local_steps + 1):
            gradient = own = history.surrogate.gradient(x)
            if correct is not None:
                gamma = settled.gamma.at(t, turn.round + 1, self.local_steps)
                gradient = own + gamma * correct(x if self.correction_at == "iterate" else before)
            if not bool(gradient.isfinite().all()):  # what came from the others is of no use
                gradient = own
            change, moments = dense_step(self.optimizer, moments, gradient, rate, t - 1)
            turn.observe(t - 1, gradient, change)
            x = self._within(x + change)
            values = yield from asking.around(x, t, settled.active.a_step, settled.active.candidates)
            first = values if first is None else first
        assert first is not None
        loss = float(first.mean())  # around x_r, or one step from it: nothing is asked for the sake of a report
        shared: IntermediateResult = yield Intermediate((x - start.double()).float().numpy(), loss)
        x = self._within(start + torch.from_numpy(shared.values.copy())).double()
        last, active = self.local_steps + 1, settled.active
        yield from asking.around(x, last, active.around, active.around_candidates)
        w_own: F32 = history.weights(x).float().numpy()

        def remember(sent: F32) -> Memory:
            arrays = history.to_arrays()
            _cache(turn).put(turn.client, history)
            return sent, *arrays

        return Contribution(w_own, loss, remember)

    def _within(self, x: Tensor) -> Tensor:
        return x if self.box is None else x.clamp(*self.box)

    def _features(self, state: State, keys: Keys) -> Features:
        transfer = self.settled.transfer
        return features_of(keys, transfer.count, state.params.size, transfer.scale)

    def _history(self, state: State, turn: Turn, features: Features) -> History:
        arrays = () if turn.memory is None else turn.memory[1:]
        history = _cache(turn).take(turn.client, arrays)
        if history is None:
            history = History(self.settled.surrogate, self.settled.transfer, features, state.params.size)
            history.from_arrays(arrays)
        return history

    def share(self, gathered: StepInputs) -> IntermediateResult:
        return IntermediateResult(gathered.mean())

    def aggregate(self, gathered: StepInputs) -> Update:
        """Where those went who shared, who may be more than those who finished; and the mean of w_i."""
        moved = gathered.mean(0)
        return Dense(gathered.round, pack(np.concatenate([moved, gathered.mean()])))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in updates:
            assert isinstance(update, Dense)
            values, d = vector_of(update, state.params), state.params.size
            add_within(state.params, values[:d], keys.rounding(update.round), self.box)
            state.carry.w.copy_(values[d:])
        return advance_round(state, updates)


def _cache(turn: Turn) -> SurrogateCache:
    """Of the process: a surrogate that is not there is made again from the client's memory."""
    found: SurrogateCache = turn.cache.setdefault("fzoos", SurrogateCache())
    return found


class Asking:
    """A client's active queries in one turn."""

    def __init__(self, method: FZooS, active: Active, params: Params, turn: Turn, history: History):
        self.method, self.active, self.turn, self.history = method, active, turn, history
        self.origin = params.clone()
        for _, flat in self.origin.flat():
            flat.zero_()  # points are given by their coordinates

    def around(
        self, centre: Tensor, step: int, count: int, candidates: int
    ) -> Generator[Ask, Answer, NDArray[np.float64]]:
        """Ask `count` of `candidates` points around a centre (d,), and observe what comes."""
        turn, reach = self.turn, self.active.reach
        drawn_by = SHARED if self.active.shared else turn.client
        generator = turn.keys.generator("candidates", turn.round, step, drawn_by)
        offsets = torch.from_numpy(generator.uniform(-reach, reach, (candidates, len(centre))))
        points = self.method._within((centre + offsets).float())
        if candidates > count and self.active.by == "uncertainty" and len(self.history.surrogate):
            unsure = self.history.surrogate.uncertainty(points.double())
            points = points[torch.topk(unsure, count).indices.sort().values]
        points = points[:count]
        nowhere = Terms.of([], [], Domain.GAUSSIAN)
        sample = ALL_DATA if self.method.samples == "all" else step
        columns = points.to(self.origin.device)
        values: Values = yield Losses(self.origin, (nowhere,) * count, sample, Basis(columns))
        usable = np.isfinite(values)  # the surrogate has no place for what is not a number
        if usable.any():
            self.history.observe(points.numpy()[usable], np.asarray(values, np.float64)[usable])
        return values
