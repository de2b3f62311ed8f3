"""Where the clients of a simulation are evaluated: `[engine]` of a recipe.

A ledger does not say which engine made it: `recorded` is what of it decides about bits. So a run can be resumed in one
process, or by another number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedzero.errors import Invalid
from fedzero.model.numbers import PositiveInt
from fedzero.model.value import Checked, plain, quoted
from fedzero.protocol.attacks import Attack


class _Simulation(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all engines of a simulation have in common."""

    merge: bool = True
    """Evaluate a cohort's batches together: faster, but the last bits of a loss may differ. `false` also uses a single
    thread, so that all engines give the same results."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    attack: Attack | None = None
    """What some of the clients do instead of their part, to see what a rule withstands; only in a simulation."""


class Local(_Simulation, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="local"):
    """All clients in this process."""

    replicas: bool = False
    """Give every client its own copy of the model (slow; to check that the copies agree)."""


class Ray(_Simulation, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ray"):
    """Clients on workers of a Ray cluster: the one at RAY_ADDRESS, or one of this machine's own that ends with the run.
    Each worker has a copy of the model, which it updates itself."""

    workers: PositiveInt | None = None
    """How many; default: as many as the cluster has cores (or GPUs) for."""
    cpus: Annotated[float, Meta(gt=0)] = 1.0
    """Cores of a worker, and with `merge` its threads."""
    gpus: Annotated[float, Meta(ge=0)] | None = None
    """GPUs of a worker; 0.25: four workers share one. Default: 1 where `device` allows it and the cluster has any."""
    slices: PositiveInt = 1
    """Parts of a cohort, for each worker. With more than one, a worker that is done takes what others have not begun:
    for cores of uneven speed, and models whose directions cost little, since each part makes them again."""


Engine = Local | Ray
Wanted = str | Mapping[str, Any] | Engine | None
"""How a caller names an engine; None: the one that is there."""
_SHARED = _Simulation.__struct_fields__


def recorded(engine: Engine) -> Local:
    """What of an engine a ledger keeps: how the cohort is evaluated, not by whom."""
    if isinstance(engine, Local):
        return engine
    return Local(**{name: getattr(engine, name) for name in _SHARED})


def chosen(present: Engine, wanted: Wanted) -> Engine:
    """An engine, with the present one's `merge`, `device` and `attack` unless a table says otherwise. wanted: "local",
    "ray", "ray:16" (so many workers), a table as in a recipe, a value, or None: the present one."""
    if wanted is None or isinstance(wanted, Local | Ray):
        return present if wanted is None else wanted
    if isinstance(wanted, str):
        kind, colon, workers = wanted.partition(":")
        if kind not in ("local", "ray") or (colon and not (kind == "ray" and workers.isdigit() and int(workers) > 0)):
            raise Invalid(f"engine = {quoted(wanted)} is not valid: use local, ray, or ray:N with N workers")
        wanted = {"kind": kind, "workers": int(workers)} if colon else {"kind": kind}
    if not isinstance(wanted, Mapping):
        raise Invalid(f"engine = {quoted(wanted)} is not valid: give 'local', 'ray', 'ray:16' or a table")
    kept = {name: value for name, value in msgspec.to_builtins(present).items() if name in _SHARED}
    try:
        found: Engine = msgspec.convert(kept | {"kind": "local"} | plain(wanted), Engine)
        return found
    except msgspec.ValidationError as error:
        raise Invalid(f"engine = {quoted(dict(wanted))} is not valid: {str(error).replace('`', '')}") from None
