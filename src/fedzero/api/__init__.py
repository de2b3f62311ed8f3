"""What users call from Python, a verb a module: minimise."""

from fedzero.api.minimise import Batched, Function, command, default_algorithm, http, minimise
from fedzero.run.outcome import Result, Step

__all__ = ["Batched", "Function", "Result", "Step", "command", "default_algorithm", "http", "minimise"]
