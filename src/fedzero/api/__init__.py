"""What users call from Python: minimise; ask and tell."""

from fedzero.api.ask_tell import Optimiser, Point
from fedzero.api.minimise import Batched, Function, command, default_algorithm, http, minimise
from fedzero.runs.outcome import Result, Step

__all__ = [
    "Batched",
    "Function",
    "Optimiser",
    "Point",
    "Result",
    "Step",
    "command",
    "default_algorithm",
    "http",
    "minimise",
]
