"""The ledger: a run as one replayable, tamper-evident file."""

from fedzero.ledger.records import Asked, End, Evaluation, Record, Round, Saved, Start
from fedzero.ledger.store import Claim, Entry, Ledger, Tampered

__all__ = ["Asked", "Claim", "End", "Entry", "Evaluation", "Ledger", "Record", "Round", "Saved", "Start", "Tampered"]
