"""The journal of runs of this process: every round with [privacy] is reserved before its answers are used.

    FOLDER/budget.db, budget.head    the journal; FOLDER is chosen by --journal, `journal=` or FEDZERO_JOURNAL
    FOLDER/budget.toml               what may be spent on each data set; without it rounds are counted, not limited
    RUN/journal.json                 where the run is counted, so that a resume goes on there

A round of a run has a random number of its own, on the disk of the run before it is reserved. So a round is paid once,
whatever is killed, and two runs of one recipe pay twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from fedzero.callbacks import ignore
from fedzero.errors import FedzeroError, Sendable
from fedzero.ledger.answers import Answers, Place
from fedzero.links.contract import Entropy
from fedzero.model import files, toml
from fedzero.model.value import checked
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.sampling import COHORT
from fedzero.recipe.setup import Setup
from fedzero.runs.spending.budget import FILE, Budget, Tampered
from fedzero.runs.spending.charges import Charge, Policy, Said, charge_of
from fedzero.runs.spending.data_sets import content_of

NOTE, POLICY, VARIABLE = "journal.json", "budget.toml", "FEDZERO_JOURNAL"
ATTEMPT = COHORT - 1
"""The client number under which the random number of a round is kept among the answers."""
NUMBER = 16
"""Bytes of the number of a run, and of a round."""
BEFORE = b"made before the run was counted"
"""The question of rounds that a run had when it was counted for the first time."""


class Note(Struct, frozen=True, forbid_unknown_fields=True):
    """folder: of the journal; run: the number of the run in it; joined: rounds that the run had before."""

    folder: str
    run: str
    joined: int = 0


def policy_in(folder: Path) -> Policy:
    """What may be spent on each data set."""
    path = folder / POLICY
    if not path.exists():
        return Policy()
    found: Policy = checked(toml.parsed(files.read(path, files.SMALL), str(path)), Policy, str(path))
    found.check()
    return found


def said_in(folder: Path) -> Said:
    return Said(f"{folder / POLICY} has ", "or allow more there")


def chosen(environment: Environment) -> Path | None:
    """The folder of the journal that the caller, or the environment variable, names."""
    named = environment.journal or os.environ.get(VARIABLE) or None
    return None if named is None else Path(named).expanduser().resolve()


def note_for(environment: Environment, folder: Path | None = None, done: int = 0) -> Note | None:
    """Where a run is counted: where it was before, else in the journal that the caller names; None: nowhere. folder:
    of a run with `done` rounds; None: it is new."""
    path, named = (folder or Path()) / NOTE, chosen(environment)
    if folder is None or not path.exists():
        return None if named is None else Note(str(named), os.urandom(NUMBER).hex(), done)
    note = files.decoded(path, Note)
    if named is not None and named != Path(note.folder):
        raise FedzeroError(f"the run is counted in the journal {note.folder}, not in {named}: leave out `journal`")
    if not (Path(note.folder) / FILE).exists():
        raise FedzeroError(
            f"the run is counted in {Path(note.folder) / FILE}, which is not there: bring it back (or delete {path}, "
            "and nothing counts the rounds to come)"
        )
    return note


@dataclass
class Rounds:
    """Of one run. reserve: makes a round spent; the budget knows of all rounds before it."""

    budget: Budget
    charge: Charge
    folder: Path
    entropy: Entropy = os.urandom

    def reserve(self, round: int) -> None:
        self.budget.reserve(self.charge, round, self._number(round))

    def _number(self, round: int) -> bytes:
        with closing(Answers(self.folder)) as answers:
            if (found := answers.find(Place(round, ATTEMPT))) is not None:
                return found.answer
            number = self.entropy(NUMBER)
            answers.keep(round, 0, {ATTEMPT: b""}, {ATTEMPT: number})
            return number

    def begin(self, rounds: int) -> None:
        """Refuse a run whose rounds do not fit, or not all that are left of it."""
        self.budget.expect_room(self.charge, rounds, ())

    def go_on(self, joined: int, done: int, rounds: int) -> None:
        """Reserve the rounds that the run had before it was counted; refuse a journal that does not know of all that
        are on the ledger."""
        for round in range(joined):
            self.budget.reserve(self.charge, round, BEFORE)
        try:
            self.budget.expect_room(self.charge, rounds, range(done))
        except Sendable as error:
            if isinstance(error.__cause__, Tampered):
                raise error.__cause__ from None
            raise


@contextmanager
def counted(setup: Setup, folder: Path, note: Note | None, done: int | None = None) -> Iterator[Callable[[int], None]]:
    """What reserves a round of a run. Refused, before anything is written, if the rounds of the run do not fit. done:
    rounds on the ledger; None: it is not made yet, and who makes it writes the note."""
    if note is None:
        yield ignore
        return
    recipe, where = setup.recipe, Path(note.folder)
    if recipe.privacy and recipe.privacy.present:
        raise FedzeroError(
            "a journal counts what data of this process have spent, and the data are on devices, which count for "
            "themselves: leave out `journal`"
        )
    policy, said = policy_in(where), said_in(where)
    policy.check_recipe(recipe, said)
    if not recipe.privacy:
        yield ignore
        return
    mechanism = recipe.privacy.mechanism(recipe.federation, setup.plan.numbers)
    charge = charge_of(recipe, recipes.hash_of(recipe), mechanism)
    with ExitStack() as stack:
        data = content_of(setup.problem.shards)
        budget = stack.enter_context(closing(Budget(where, policy, data, note.run, said)))
        rounds = Rounds(budget, charge, folder)
        rounds.begin(recipe.rounds)
        if done is not None:
            write(note, folder)
            rounds.go_on(note.joined, done, recipe.rounds)
        yield rounds.reserve


def write(note: Note | None, folder: Path) -> None:
    """Note where the run is counted, before its first round."""
    if note is not None:
        files.write(folder / NOTE, msgspec.json.encode(note), durable=True, private=True)
