"""What users call from Python: minimise; ask and tell."""

from fedzero.api.ask_tell import Optimiser, Point
from fedzero.api.boxes import Batched, Function, command, http
from fedzero.api.coordinates import Choice, Integer
from fedzero.api.default_method import default_algorithm, shared_fzoos
from fedzero.api.minimise import minimise
from fedzero.results.outcome import Result, Step

__all__ = [
    "Batched",
    "Choice",
    "Function",
    "Integer",
    "Optimiser",
    "Point",
    "Result",
    "Step",
    "command",
    "default_algorithm",
    "http",
    "minimise",
    "shared_fzoos",
]
