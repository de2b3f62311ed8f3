"""What a call takes before anybody makes it: two of its rounds, and nothing left of them.

print(fedzero.estimate(fedzero.train, model, clients, loss=loss, rounds=2000))
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from fedzero.errors import FedzeroError, Invalid
from fedzero.runs.estimate import Estimate, estimated
from fedzero.runs.progress import Silent

VERBS = ("train", "finetune", "run")


def estimate(verb: Callable[..., Any], *arguments: Any, **options: Any) -> Estimate:
    """Seconds, bytes, queries and memory of `verb(*arguments, **options)`: of `fedzero.train`, `finetune` or `run`.

    Two rounds and an evaluation are made in a temporary folder, by a copy of the model; `out`, `exist`,
    `progress`, `web`, `callbacks` and `report_to` count for nothing. `print` it for a sentence.
    """
    if getattr(verb, "__name__", "") not in VERBS or not getattr(verb, "__module__", "").startswith("fedzero.api."):
        raise Invalid("estimate: give fedzero.train, fedzero.finetune or fedzero.run, and then its arguments")
    left = {name: value for name, value in options.items() if name not in ("out", "progress", "web", "resume", "exist")}
    size = 0

    def own(value: Any) -> Any:
        nonlocal size
        if not isinstance(value, nn.Module):
            return value
        size += sum(p.numel() * p.element_size() for p in value.parameters())
        try:
            return copy.deepcopy(value)
        except Exception as error:  # whatever the module of somebody else holds
            raise FedzeroError(
                f"{type(value).__name__} cannot be copied, and a dry run trains a copy: {error}"
            ) from error

    given, named = [own(value) for value in arguments], {name: own(value) for name, value in left.items()}

    def play(folder: Path, watch: Silent) -> object:
        return verb(*given, **named, out=folder, progress=watch)

    return estimated(play, size)
