"""Black boxes: functions without derivatives, one for each client; no value is paid for twice."""

from fedzero.oracles.blackbox.bounds import Bounds
from fedzero.oracles.blackbox.boxes import AnyBox, BatchedBox, CommandBox, HttpBox, PythonBox, ToldBox
from fedzero.oracles.blackbox.constraints import Limits
from fedzero.oracles.blackbox.contract import (
    EVALUATION,
    MemoryLog,
    Metered,
    Query,
    QueryFailed,
    Unmeasured,
    Waiting,
    digest_of,
    point_digest,
)
from fedzero.oracles.blackbox.objective import ESTIMATED, BlackBoxes, BlackBoxShards, Evaluate, mean
from fedzero.oracles.blackbox.queries import Conditions

__all__ = [
    "ESTIMATED",
    "EVALUATION",
    "AnyBox",
    "BatchedBox",
    "BlackBoxShards",
    "BlackBoxes",
    "Bounds",
    "CommandBox",
    "Conditions",
    "Evaluate",
    "HttpBox",
    "Limits",
    "MemoryLog",
    "Metered",
    "PythonBox",
    "Query",
    "QueryFailed",
    "ToldBox",
    "Unmeasured",
    "Waiting",
    "digest_of",
    "mean",
    "point_digest",
]
