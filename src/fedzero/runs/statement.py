"""The privacy statement of a run, from its ledger: written when the run ends, made again to check it, and signed.

`privacy.json` in the folder of a run with [privacy] has the canonical bytes of a `Statement`. Everything in it follows
from the ledger, but for the version of the accountant, which is that of the process that made the statement.
"""

from __future__ import annotations

import math
import secrets
from pathlib import Path

import msgspec

from fedzero import __version__
from fedzero.engines.remote.assignment import SITES
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger import replay
from fedzero.ledger.folder import DEVICES, PRIVACY, folder_of
from fedzero.ledger.outline import ACCOUNTANTS
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Ledger, ledger_in
from fedzero.lines import LONGEST_SAID, printable
from fedzero.model import files
from fedzero.model.decoding import MALFORMED
from fedzero.privacy.accounting import accountant
from fedzero.privacy.statement import Figure, Signed, Statement, decode, signed
from fedzero.recipe.in_force import in_force
from fedzero.recipe.privacy import Privacy
from fedzero.recipe.recipe import Recipe, most_numbers

READERS, SERVER = "readers of the model, the ledger, the page and the logs", "the server"
CLOSED = "closed form of the Gaussian mechanism, arXiv 1805.06530"
SIGNED = "privacy-signed.json"
TUNING = "not accounted: other runs on the same data, and settings that were chosen on them, are not in the figures"
JOURNALS = "each site counts, in a journal of its own, all runs on its data"
KEY = 32
"""Bytes of a private key."""


def statement_in(folder: Path) -> Statement:
    """The statement of the run in a folder, finished or not; `FedzeroError` if the run has no [privacy]."""
    with ledger_in(folder) as ledger:
        found = statement_of(ledger, folder_of(folder))
    if found is None:
        raise FedzeroError(f"{folder} holds a run without [privacy]: it promises nothing")
    return found


def statement_of(ledger: Ledger, folder: Path, before: LedgerView | None = None) -> Statement | None:
    """The statement of a ledger; None: its recipe has no [privacy]. before: what was read of the ledger already."""
    outline, start = replay.read(ledger, before).outline, ledger.start()
    recipe = in_force(start, outline.extended)
    privacy, federation = recipe.privacy, recipe.federation
    if not privacy or not privacy.sigma:
        return None
    if outline.done and outline.spent is None:
        raise FedzeroError("the rounds of this ledger do not say how much of the privacy budget is spent")
    readers, server = outline.spent or (0.0, None)
    q, secret = privacy.q(federation), privacy.secret
    return Statement(
        run=outline.chain.hex(),
        unit=privacy.unit,
        adjacency="one contributes nothing" if privacy.present else "add or remove one",
        units=privacy.n(federation),
        delta=privacy.delta_of(federation),
        q=q,
        steps=outline.done,
        sigma=privacy.sigma,
        clip=privacy.length,
        noise=privacy.noise,
        figures=(
            Figure(adversary=READERS, epsilon=readers, amplified=q < 1, why=_why_readers(privacy, q)),
            Figure(adversary=SERVER, epsilon=server, amplified=secret and q < 1, why=_why_server(privacy, server)),
        ),
        trust=_trust(privacy, q),
        simulated=not any((folder / name).exists() for name in (SITES, DEVICES)),
        sampler=f"units: {_sampler(privacy)}; noise: {_noise(privacy)}, from the operating system",
        accountant=_accountant(privacy, q),
        public=_public(recipe),
        tuning=f"{TUNING}; {JOURNALS}" if privacy.hosts else TUNING,
    )


def _sampler(privacy: Privacy) -> str:
    if privacy.present:
        return "a cohort of those that are present, from the keys of the run, which hides nobody"
    drawn = "thrown at its host and told to nobody, " if privacy.hosts else ""
    return f"Poisson, a coin of each unit in each step, {drawn}from the operating system"


def _why_readers(privacy: Privacy, q: float) -> str:
    if privacy.present:
        return "the noise of every step; every unit counts as one that takes part in every step, without amplification"
    if q == 1:
        return "the noise of every step; every unit takes part in every step"
    return "the noise of every step, and that nobody knows in which steps a unit took part"


def _why_server(privacy: Privacy, epsilon: float | None) -> str:
    if privacy.noise == "central":
        seen = "the total" if privacy.sum == "secure" else "the sums of hosts"
        return f"the server sees {seen} before the noise is added"
    if epsilon is None:
        return "nothing was published"
    if privacy.present:
        return "the noise of every device that takes part; every unit counts as one that does in every step"
    known = "hosts draw their units" if privacy.secret else "the server knows which clients took part"
    if privacy.hosts:
        known = (
            "that it does not know in which steps a unit took part: each host draws its own, and answers in every step"
        )
    return f"the noise of hosts, and {known}"


def _noise(privacy: Privacy) -> str:
    return "Gaussians rounded to integers" if privacy.noise == "central" else "discrete Gaussians of hosts"


def _accountant(privacy: Privacy, q: float) -> str:
    if privacy.noise != "central":
        return f"fedzero {__version__}, Rényi bounds, arXiv 2102.06387, 1908.10530 and 2004.00010"
    return CLOSED if q == 1 else accountant()


def _trust(privacy: Privacy, q: float) -> tuple[str, ...]:
    """What the figures assume of people and machines."""
    found = ["the operating system's random numbers are secret and independent"]
    if privacy.noise == "central":
        found.append("the server adds the noise, and shows sums without it to nobody")
    else:
        found.append("hosts add their noise as the recipe says")
    if privacy.sum == "secure":
        found.append("no more hosts collude with the server than the secure sum withstands; its page says how many")
    if q < 1 and privacy.hosts:
        found.append("hosts tell nobody which units they drew; how long a host computes is hidden only where it waits")
    elif q < 1:
        found.append("whoever draws the units tells nobody which ones were drawn; times of arrival are not hidden")
    if privacy.unit != "client":
        found.append("no unit lies with two clients, and clients bound the numbers of each unit as the recipe says")
    if privacy.present:
        found.append("neither who is present nor how long a device computes is protected, or depends on the data")
    found.append("the number of units is a constant of the recipe, which nobody has counted")
    return tuple(found)


def _public(recipe: Recipe) -> tuple[str, ...]:
    task = printable(recipe.task.label, LONGEST_SAID)
    return f"the evaluation data of the task: {task}", "the model that the run begins with"


def write(ledger: Ledger, folder: Path, before: LedgerView | None = None) -> None:
    """Write `privacy.json` of a run that has ended."""
    if (found := statement_of(ledger, folder, before)) is not None:
        files.write(folder / PRIVACY, found.encode() + b"\n")


def read(path: Path, key: str | None = None) -> tuple[Statement, str | None]:
    """A statement of a file, and the public key that signed it (None: unsigned). key: refuse any other."""
    data = files.read(path, files.SMALL).strip()
    try:
        letter = msgspec.json.decode(data, type=Signed)
    except MALFORMED:
        if key is not None:
            raise Refused(f"{path} is not signed") from None
        return decode(data), None
    return letter.checked(key or letter.key), letter.key


def checked(folder: Path, found: Statement) -> Statement:
    """Make a statement again from the ledger, and its ε from σ, q, steps and δ; `Refused`, naming the field, where
    `found` says something else."""
    ours = statement_in(folder)
    for name in Statement.__struct_fields__:
        if name != "accountant" and getattr(found, name) != getattr(ours, name):
            raise Refused(f"the statement and the ledger differ in {name}")
    with ledger_in(folder) as ledger:
        outline = replay.read(ledger).outline
        recipe = in_force(ledger.start(), outline.extended)
    if recipe.privacy and outline.done:
        spent = recipe.privacy.spent(recipe.federation, most_numbers(recipe, 1), outline.done, recipe.rounds)
        for figure, again in zip(ours.figures, spent, strict=True):
            least = math.inf if again is None else again
            if figure.epsilon is not None and not figure.epsilon >= least * (1 - ACCOUNTANTS):
                raise Refused(f"the ledger has ε = {figure.epsilon:.6g}, and the accountant finds {least:.6g}")
    return ours


def new_key(path: Path) -> bytes:
    """A new private key in a file that only its user can read."""
    if path.exists():
        raise FedzeroError(f"{path} exists: statements may have been signed with it; choose another name")
    key = secrets.token_bytes(KEY)
    files.write(path, key.hex() + "\n", private=True)
    return key


def key_in(path: Path) -> bytes:
    """The private key of a file: 64 hexadecimal digits."""
    try:
        key = bytes.fromhex(files.read(path, files.SMALL).decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY:
        raise FedzeroError(f"{path} is no key: --new-key FILE makes one")
    return key


def sign(statement: Statement, key: bytes, path: Path) -> Signed:
    """Sign a statement and write it."""
    letter = signed(statement, key)
    files.write(path, msgspec.json.encode(letter) + b"\n")
    return letter


def words(statement: Statement) -> str:
    """The statement for people."""
    s = statement
    lines = [f"unit: one {s.unit} of {s.units:,}, {s.adjacency}; δ = {s.delta:g}"]
    for figure in s.figures:
        value = "none" if figure.epsilon is None else f"ε = {figure.epsilon:.4g}"
        lines.append(f"against {figure.adversary}: {value} ({figure.why})")
    lines += [
        f"steps: {s.steps}, each with a unit with probability q = {s.q:g}; σ = {s.sigma:g}, clip {s.clip:g}, "
        f"{s.noise} noise",
        f"sampler: {s.sampler}",
        f"accountant: {s.accountant}",
        *(f"assumed: {each}" for each in s.trust),
        *(f"public: {each}" for each in s.public),
        f"tuning: {s.tuning}",
        *(["simulated: all clients were in one process, which has the data of all"] if s.simulated else []),
        f"run: {s.run}",
    ]
    return "\n".join(lines)
