"""DeComFL (Li et al., "Achieving dimension-free communication in federated learning via zeroth-order optimization")
and its first version FedDisco: seeds and scalars replace models on the wire.

    client i, step k:  g_i[k,p] = (f_i(x + μ z[k,p]; ξ) − f_i(x; ξ)) / μ          p = 1 … P, directions shared by all
                       x ← x − η (1/P) Σ_p g_i[k,p] z[k,p]                        local, forgotten at the end
    server:            g[k,p] = mean over the cohort of g_i[k,p]
    everybody:         x_{r+1} = x_r − (η/P) Σ_k Σ_p g[k,p] z[k,p]                when it next needs the model

The paper's eq. (7) prints a sum over p; its proof and its experiments average, and so do we. Both ways of getting back
to the server's model are here. *Revert* forgets the local steps; the client learns the outcome at its next turn.
*Sync* (eq. 10, `federation.sync`) adds −η Σ (g − g_i) z to the local model: on expressions that is replacing the
coefficients g_i by g, so it is done there, exactly, and the client stands at round r+1 at once.
"""

from __future__ import annotations

from dataclasses import replace

from fedzero.methods import ChainState, KernelRule, KernelState, Optimizer, Params, SeededMethod, Sgd, State


class DeComFL(SeededMethod, tag="decomfl"):
    """Shared directions, scalars up, scalars down; cost independent of the model's size."""

    optimizer: Optimizer = Sgd()
    """Of the server's step; everybody repeats it, so its state never travels."""

    def kernel_rule(self) -> KernelRule:
        return self.optimizer

    def init(self, params: Params, clients: int) -> State:
        begun = SeededMethod.init(self, params, clients)
        states = begun.carry.states
        if not all(state.empty for state in states):
            return begun
        counted = KernelState.of(self.chain.kernel, params)  # plain steps alone are counted: so ledgers have it
        return replace(begun, carry=ChainState((*states[:-1], counted)))
