"""Commands that show what is there."""

from __future__ import annotations

import hashlib
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedzero import __version__
from fedzero.cli.common import app, out
from fedzero.errors import FedzeroError

PANEL = "What there is"


@app.command("list", rich_help_panel=PANEL)
def list_(
    name: Annotated[
        str | None,
        typer.Argument(help="One of them: all of its options, or a recipe's text. `recipe`: what surrounds them."),
    ] = None,
) -> None:
    """Algorithms, filters, tasks and recipes, one line each; or one of them in full."""
    from fedzero import plugins
    from fedzero.run import recipe as recipes
    from fedzero.run import schema as options

    packaged = plugins.recipes()
    if name in packaged:
        print(packaged[name].read_text(encoding="utf-8"), end="")
    elif name is not None:
        _in_full(name, [*(tag for _, group in options.TABLES.values() for tag in plugins.kinds(group)), *packaged])
    else:
        for title, (_, group) in options.TABLES.items():
            _lines(title, {tag: _line(kind) for tag, kind in plugins.kinds(group).items()})
        _lines("Recipes", {name: recipes.load(path).about for name, path in packaged.items()})
        out.print("\n`fedzero list NAME` shows all options of one, or a recipe's text.", highlight=False)


def _line(kind: Any) -> str:
    """What it is, and where it comes from unless it is ours."""
    from fedzero import plugins
    from fedzero.run.schema import first_line

    origin = "" if kind.distribution == plugins.OURS else f" ({kind.origin})"
    return first_line(kind.type) + origin


def _lines(title: str, lines: dict[str, str]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    for name, line in lines.items():
        table.add_row(f"[bold]{escape(name)}", escape(line))
    out.print(table)


def _in_full(name: str, known: list[str]) -> None:
    from fedzero.run import schema as options

    sections = options.named(name)
    if sections is None:
        near = get_close_matches(name, known, 1)
        advice = f"did you mean {near[0]}?" if near else "`fedzero list` shows what there is"
        raise FedzeroError(f"{name}: no algorithm, filter, task or recipe is called that; {advice}")
    for section in sections:
        place = f"[[{section.place}]]" if section.place == "filters" else f"[{section.place}]" if section.place else ""
        chosen = f' kind = "{section.kind}"' if section.kind else ""
        out.print(f"[bold cyan]{escape((place + chosen).strip() or 'A recipe')}", highlight=False)
        out.print(escape(section.about), highlight=False)
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
        for option in section.options:
            default = {None: "must be given", "": "may be left out"}.get(option.default, f"default {option.default}")
            table.add_row(f"[bold]{option.name}", escape(option.meaning))
            table.add_row("", f"[dim]{escape(option.takes)} · {escape(default)}")
        out.print(table)
        out.print()


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

    from fedzero.directions import Domain, kernels
    from fedzero.model.device import device_of

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
