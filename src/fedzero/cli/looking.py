"""Commands that show what is there."""

from __future__ import annotations

import hashlib
from typing import Annotated

import typer
from rich.table import Table

from fedzero import __version__
from fedzero.cli.common import app, out
from fedzero.errors import FedzeroError

PANEL = "What there is"


@app.command("list", rich_help_panel=PANEL)
def list_() -> None:
    """Algorithms, filters, tasks and recipes, one line each."""
    from typing import get_args

    from fedzero import recipe as recipes
    from fedzero.algorithms import AnyAlgorithm
    from fedzero.filters import AnyFilter
    from fedzero.tasks import AnyTask

    for title, union in (("Algorithms", AnyAlgorithm), ("Filters", AnyFilter), ("Tasks", AnyTask)):
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for kind in get_args(union):
            table.add_row(f"[bold]{kind.__struct_config__.tag}", (kind.__doc__ or "").split("\n")[0])
        out.print(table)
    table = Table(title="Recipes", title_justify="left", show_header=False, box=None)
    for name, path in recipes.recipes().items():
        table.add_row(f"[bold]{name}", recipes.load(path).about)
    out.print(table)


@app.command(rich_help_panel=PANEL)
def directions(
    key: Annotated[str, typer.Option(help="64-bit key, decimal or 0x….")],
    tensor: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Ordinal of the tensor.")] = 0,
    kind: Annotated[str, typer.Option(help="gaussian or rademacher.")] = "gaussian",
    n: Annotated[int, typer.Option("--n", min=1, help="How many numbers.")] = 1 << 20,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """SHA-256 of a direction's float32 bytes: run it on two machines and compare by eye."""
    import torch

    from fedzero.devices import device_of
    from fedzero.directions import Domain, kernels

    try:
        number = int(key, 0)
    except ValueError:
        raise FedzeroError(f"--key {key}: not a number; write it in decimal or as 0x…") from None
    if not 0 <= number < 1 << 64:
        raise FedzeroError(f"--key {key}: a key has 64 bits")
    if kind not in ("gaussian", "rademacher"):
        raise FedzeroError(f"--kind {kind}: use gaussian or rademacher (the sphere is a scaled gaussian)")
    if device not in ("cpu", "cuda"):
        raise FedzeroError(f"--device {device}: use cpu or cuda")
    z = torch.empty(n, dtype=torch.float32, device=device_of(device))
    kernels(z.device).generate(z, Domain[kind.upper()], number, tensor)
    print(hashlib.sha256(z.cpu().numpy().astype("<f4").tobytes()).hexdigest())


@app.command(rich_help_panel=PANEL)
def version() -> None:
    """The version of fedzero."""
    print(__version__)
