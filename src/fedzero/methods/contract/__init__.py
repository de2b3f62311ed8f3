"""The contract of methods. A method is a frozen value with pure functions: both halves of its paper in one file.

    traits(scale) → Traits                                properties of the method
    cost(round, scale) → Cost                             numbers up and queries of a round
    client(state, turn) → yields asks, returns Contribution   one client's part of a round
    aggregate(gathered) → Update                          the update that the ledger stores
    apply(state, updates, keys) → State                   server, replay and returning clients run the same line

    replay = apply(init(params, clients), ledger)

These five make a method; `init`, `share` and `check` have defaults. If the update is a sum of directions that all
clients share, `SeededMethod` (`methods/shared/seeded.py`) defines all five, and a method overrides only the members in
which its paper differs.

A round has one or more exchanges. In the middle of its part a client may yield `Intermediate(values)`: the values go
up, the server combines the values of all clients into one answer (`share`), and the client receives it as
`IntermediateResult`. A client's memory until its next turn is made by its contribution, and comes back in
`turn.memory`.

`apply` consumes the given state: tensors are updated in place, and only the returned value may be used afterwards.
Methods never know the engine, the task or who asked.
"""

from fedzero.links.contract import Contribution
from fedzero.methods.contract.federation import MOST_CLIENTS, Federation, Scale
from fedzero.methods.contract.method import MAX_ABS_COORDINATE, Method, advance_round
from fedzero.methods.contract.state import EVERYTHING, NOTHING, Numbers, Part, RuleState, State, Vectors
from fedzero.methods.contract.traits import NO_ROWS, PLAIN, READS_STATE, Cost, Delivery, Form, Traits
from fedzero.methods.contract.turn import Intermediate, IntermediateResult, Memory, Observer, StepInputs, Turn, Work

__all__ = [
    "EVERYTHING",
    "MAX_ABS_COORDINATE",
    "MOST_CLIENTS",
    "NOTHING",
    "NO_ROWS",
    "PLAIN",
    "READS_STATE",
    "Contribution",
    "Cost",
    "Delivery",
    "Federation",
    "Form",
    "Intermediate",
    "IntermediateResult",
    "Memory",
    "Method",
    "Numbers",
    "Observer",
    "Part",
    "RuleState",
    "Scale",
    "State",
    "StepInputs",
    "Traits",
    "Turn",
    "Vectors",
    "Work",
    "advance_round",
]
