"""The ledger: a run as one replayable, tamper-evident file."""

from fedzero.ledger.records import End, Evaluation, Record, Round, Start
from fedzero.ledger.store import Checkpoint, Entry, Ledger, Tampered

__all__ = ["Checkpoint", "End", "Entry", "Evaluation", "Ledger", "Record", "Round", "Start", "Tampered"]
