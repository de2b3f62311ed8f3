"""A site's own tasks: objects of its packages, named in its settings. No message names them.

    fedzero join north --task hospital.radiology:task            known by its `name`; without one, by any name
    fedzero join north --task radiology=hospital.radiology:task

A task of a recipe finds the object by name in `BuildContext.functions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedzero.errors import FedzeroError
from fedzero.model.imports import imported
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe

ANY = "*"
"""Stands for any name that a recipe gives its task."""


def places_of(options: Sequence[str]) -> dict[str, str]:
    """Places (module:attribute) by name, from options `--task`; all are imported, so that errors show at once."""
    places = {}
    for option in options:
        name, equals, place = option.rpartition("=")
        found = _loaded(place)
        given = name if equals else getattr(found, "name", None)
        places[given if isinstance(given, str) and given else ANY] = place
    return places


def loaded(places: Mapping[str, str]) -> dict[str, Any]:
    return {name: _loaded(place) for name, place in places.items()}


def named_for(recipe: Recipe, environment: Environment) -> Environment:
    """The environment with the object for any name under the name of the recipe's task."""
    name, functions = getattr(recipe.task, "name", None), environment.functions
    if ANY not in functions or not isinstance(name, str):
        return environment
    return replace(environment, functions={name: functions[ANY], **functions})


def _loaded(place: str) -> Any:
    try:
        found = imported(place)
    except FedzeroError as error:
        raise FedzeroError(f"--task names {error}") from error
    if found is None:
        raise FedzeroError(f"--task names {place!r}, but there is no such object in that module")
    return found
