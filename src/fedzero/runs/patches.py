"""Patches: export a fine-tune as a small file, and apply it to the base from which it started.

The base is a safetensors file; or, for a language model, any place from which the model can be loaded, and then the
result is a folder for plain `transformers`.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec

from fedzero.callbacks import ignore
from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.ledger import patch, replay
from fedzero.ledger.patch import Patch
from fedzero.ledger.replay import Progress
from fedzero.model.checkpoint import load_model, save_tensors
from fedzero.model.device import device_of
from fedzero.model.params import Params
from fedzero.protocol.replica import Replica
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs.recorded import reopen
from fedzero.tasks.contract import BuildContext


def export_patch(
    folder: Path, environment: Environment, which: int | Literal["best", "last"] = "last", open_: bool = False
) -> bytes:
    """The fine-tune of a run as a small file: at its end, after so many rounds, or at its best round. The patch of a
    private run needs the clients' secret to be applied, unless it is `open_`: then everybody with the patch knows the
    run's directions."""
    ledger, setup = reopen(folder, environment)
    with closing(ledger):
        view = replay.read(ledger)
        upto = None if which == "last" else patch.best_round(view) if which == "best" else which
        recipe, names = setup.recipe, setup.problem.params.names
        algorithm = msgspec.json.encode(recipe.algorithm, order="sorted")
        task = msgspec.json.encode(recipe.task.portable(), order="sorted")
        return patch.export(
            ledger, view, algorithm, recipe.federation.clients, names, setup.keys, task, upto, recipe.needs, open_
        )


def apply_patch(
    path: Path,
    base: str,
    out: Path,
    tokenizer: str | None = None,
    merge: bool = False,
    progress: Progress = ignore,
    secret: bytes | None = None,
) -> Params:
    """Base + patch → fine-tune, checked against the digest in the patch; nothing is written if the check fails.

    A safetensors file gives a safetensors file; tensors that the patch does not name are passed through. A language
    model gives a folder for `transformers`; adapters stay adapters unless `merge` is set.
    """
    found = patch.load(path)
    keys = found.keys(secret)
    opened = None
    if found.task and not base.endswith(".safetensors"):
        context = BuildContext(keys, device_of("auto"), None)
        with recipes.written_elsewhere(str(path)):
            task = recipes.task(recipes.table_in(found.task), found.needs)
        opened = task.open_base(base, context, out, tokenizer)
    if opened is not None:
        if opened.params.names != found.tensors:
            raise FedzeroError(
                f"{base} does not have the parameters that {path} changes: the patch is for another base model"
            )
        params = _followed(found, keys, path, base, opened.params, progress)
        opened.save(merge)
        return params
    tensors = load_model(Path(base))
    missing = [name for name in found.tensors if name not in tensors]
    if missing:
        raise FedzeroError(f"{base} has no tensor {missing[0]!r}: the patch is for another base model")
    params = _followed(found, keys, path, base, Params({name: tensors[name] for name in found.tensors}), progress)
    save_tensors({**tensors, **params.tensors}, out)
    return params


def _followed(found: Patch, keys: Keys, path: Path, base: str, params: Params, progress: Progress) -> Params:
    """Fold all updates of the patch into its base, in place."""
    if not params.matches(found.base_identity):
        raise FedzeroError(
            f"{base} is model {params.identity}, but {path} is a patch for {found.base_identity}: "
            "give the base checkpoint the run started from"
        )
    with recipes.written_elsewhere(str(path)):
        table, _ = recipes.upgraded(recipes.table_in(found.algorithm))  # sealed by the patch
        algorithm = recipes.method(table, found.needs)
    replica = Replica(algorithm, params, keys, found.clients)
    replay.fold(replica, found.updates, max((u.round + 1 for u in found.updates), default=0), progress)
    if not replica.matches(found.result_identity):
        raise FedzeroError(f"{path} leads to model {replica.identity}, not {found.result_identity}: it is damaged")
    return replica.state.params
