"""What users call from Python, a verb a module: minimise."""

from fedzero.api.minimise import Batched, Function, Result, command, default_algorithm, http, minimise

__all__ = ["Batched", "Function", "Result", "command", "default_algorithm", "http", "minimise"]
