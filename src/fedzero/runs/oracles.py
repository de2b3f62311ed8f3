"""The model of a recipe as a graph for devices."""

from __future__ import annotations

from pathlib import Path

from fedzero.methods.shared.seeded import SeededMethod
from fedzero.model.checkpoint import save_model
from fedzero.model.device import device_of
from fedzero.model.params import Params
from fedzero.oracles.portable import Oracle
from fedzero.oracles.portable.format import pays
from fedzero.oracles.portable.writing import Written, export
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.secret import keys_of
from fedzero.tasks.contract import BuildContext

BATCH = 32
GROUP = 8
"""Points of a call with factors at most, by default."""


def export_recipe(
    recipe: Recipe, environment: Environment, path: Path, rows: int | None = None, points: int | None = None
) -> tuple[Written, list[str]]:
    """What was written, and the lines of a recipe that names it. rows, points: of one call."""
    keys, own = keys_of(recipe, environment.secret), environment
    place = BuildContext(keys, device_of("cpu"), own.data, own.functions, own.folder, files=own.files, model=own.model)
    oracle, method = recipe.task.oracle(place), recipe.algorithm
    ranked = method if isinstance(method, SeededMethod) and method.distribution == "rank1" else None
    at_once = points or (1 if ranked is None else _points(ranked, oracle))
    in_call: int = getattr(recipe.task, "batch", BATCH) if rows is None else rows
    written = export(oracle, path, in_call, at_once, ranked is not None)
    lines = ["[task]", 'kind = "devices"', f'graph = "{path}"', f"widths = [{oracle.inputs}, {oracle.classes}]"]
    if (oracle.mean, oracle.deviation) != (0.0, 1.0):
        lines += [f"mean = {oracle.mean:.10g}", f"deviation = {oracle.deviation:.10g}"]
    if not oracle.follows_signs:
        base = path.with_suffix(".safetensors")
        save_model(Params.of_module(oracle.module), base)
        lines.insert(0, f'base = "{base}"\n')
    return written, lines


def _points(method: SeededMethod, oracle: Oracle) -> int:
    """Where a tensor is worth factors, the points of a step in as few equal calls as stay in a cache; else 1."""
    worth = any(pays(p.shape) for p in oracle.module.parameters() if p.requires_grad)
    if not worth or not isinstance(method.directions, int):
        return 1
    points = method.directions + 1 if method.difference == "forward" else 2 * method.directions
    return -(-points // -(-points // GROUP))
