"""A command about models that devices evaluate without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedzero.cli import options
from fedzero.cli.common import FEDERATIONS, app, environment_of, expect_file, tell
from fedzero.errors import FedzeroError


@app.command("export-oracle", rich_help_panel=FEDERATIONS)
def export_oracle(
    recipe: options.RecipeName,
    out_: Annotated[Path, typer.Option("--out", help="The graph to write, such as cnn.onnx.")],
    set_: options.Overrides = None,
    rows: Annotated[
        int | None, options.optional("--rows", help="Rows of one call; default: the batch of the recipe.")
    ] = None,
    points: Annotated[
        int | None,
        options.optional(
            "--points", help="Points of one call; default: one, or up to eight where rank-one factors pay."
        ),
    ] = None,
    data: options.Data = None,
) -> None:
    """Write the model of a recipe's task as an ONNX graph, for devices that have onnxruntime and no PyTorch.

    The trained tensors become inputs of the graph, so a device evaluates it at any point; frozen ones are constants in
    the file. A call takes so many rows and so many points, and gives logits. Devices make as many calls as a step
    needs, so a graph serves any batch and any number of directions. With directions of rank one, and more than one
    point, large matrices are given as two factors: the product with the matrix is shared by all points.

    The graph is run beside PyTorch before it is kept, and the largest difference of a logit is said. It needs
    pip install 'fedzero[onnx]'.

    Tasks: mnist, fashion, devices, and language with answers of one token (task.train = { kind = "lora" }, float32).
    First values that do not follow from the recipe, such as those of adapters, are written beside the graph: OUT with
    the ending .safetensors, for the key `base` of a recipe.

    The lines that are printed belong into the recipe of a run of devices (docs/devices.md).

    Example: fedzero export-oracle demo-cnn --out cnn.onnx
    """
    from fedzero.recipe import recipe as recipes
    from fedzero.runs.oracles import export_recipe

    if out_.suffix != ".onnx":
        raise FedzeroError(f"--out {out_}: the name of a graph ends with .onnx")
    expect_file(out_)
    for name, value in (("--rows", rows), ("--points", points)):
        if value is not None and not 1 <= value <= 4096:
            raise FedzeroError(f"{name} {value}: give a number from 1 to 4,096")
    written, lines = export_recipe(recipes.load(recipe, set_), environment_of(data, None), out_, rows, points)
    form = written.form
    factored = sum(slot.factored for slot in form.slots)
    tell(f"{out_}: {written.size:,} bytes; {form.points} points and {form.rows} rows in one call")
    tell(f"{len(form.slots)} trained tensors, {factored} of them as rank-one factors")
    tell(f"largest difference from PyTorch: {written.difference:.1e} of the largest logit")
    print("\n".join(lines))
