"""Black boxes: functions nobody can differentiate, one a client, asked sparingly and never twice for the same value."""

from fedzero.oracles.blackbox.asking import Conditions
from fedzero.oracles.blackbox.bounds import Bounds
from fedzero.oracles.blackbox.boxes import AnyBox, BatchedBox, CommandBox, Functions, HttpBox, PythonBox
from fedzero.oracles.blackbox.contract import (
    EVALUATION,
    Metered,
    Query,
    QueryFailed,
    QueryLog,
    Unmeasured,
    point_digest,
)
from fedzero.oracles.blackbox.log import MemoryLog
from fedzero.oracles.blackbox.objective import BlackBoxes, BlackBoxShards, Evaluate

__all__ = [
    "EVALUATION",
    "AnyBox",
    "BatchedBox",
    "BlackBoxShards",
    "BlackBoxes",
    "Bounds",
    "CommandBox",
    "Conditions",
    "Evaluate",
    "Functions",
    "HttpBox",
    "MemoryLog",
    "Metered",
    "PythonBox",
    "Query",
    "QueryFailed",
    "QueryLog",
    "Unmeasured",
    "point_digest",
]
