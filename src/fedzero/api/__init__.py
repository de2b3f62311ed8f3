"""What users call from Python: minimise; ask and tell."""

from fedzero.api.ask_tell import Optimiser, Point
from fedzero.api.minimise import (
    Batched,
    Choice,
    Function,
    Integer,
    command,
    default_algorithm,
    http,
    minimise,
    shared_fzoos,
)
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
