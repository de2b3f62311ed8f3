"""Commands that show what is installed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedzero import __version__
from fedzero.cli.common import app, out, tell
from fedzero.errors import FedzeroError, did_you_mean

PANEL = "What is installed"
FEW = 10
"""Recipes of another distribution that are listed with everything else; of experiments there are many."""


@app.command("list", rich_help_panel=PANEL)
def list_(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method, filter, rule or task: all of its options. A recipe: its text. `recipe`: all other "
            "keys. `recipes`: all recipes. `site`: what a site decides for itself, in the file that `fedzero join` "
            "keeps."
        ),
    ] = None,
) -> None:
    """Methods, filters, rules, tasks and recipes, one line each; or one of them in full."""
    from fedzero import plugins
    from fedzero.recipe import schema

    packaged = plugins.recipes()
    if name in packaged:
        print(packaged[name].read_text(encoding="utf-8"), end="")
    elif name == "recipes":
        _recipes(plugins.recipes_by_origin())
    elif name is not None:
        _in_full(name, [*(tag for _, group in schema.TABLES.values() for tag in plugins.kinds(group)), *packaged])
    else:
        for title, (_, group) in schema.TABLES.items():
            found: dict[str, dict[str, str]] = {}
            for tag, kind in plugins.kinds(group).items():
                origin = plugins.OURS if kind.distribution == plugins.OURS else kind.origin
                found.setdefault(origin, {})[tag] = schema.first_line(kind.type)
            if found or plugins.broken(group):
                _tables(title, found, plugins.broken(group))
        origins = plugins.recipes_by_origin()
        many = {origin: paths for origin, paths in origins.items() if origin != plugins.OURS and len(paths) > FEW}
        _recipes({origin: paths for origin, paths in origins.items() if origin not in many})
        for origin, paths in many.items():
            tell(
                f"\n{len(paths)} recipes of {origin}, from {paths[0].stem} to {paths[-1].stem}: `fedzero list recipes`"
            )
        tell("\n`fedzero list NAME` shows all options of one, or a recipe's text.")


def _recipes(origins: dict[str, list[Path]]) -> None:
    from fedzero import plugins

    found = {origin: {path.stem: _about(path) for path in paths} for origin, paths in origins.items()}
    _tables("Recipes", found, plugins.broken("recipes"))


def _about(path: Path) -> str:
    from fedzero.recipe import recipe as recipes

    try:
        return recipes.load(path).about
    except FedzeroError as error:
        return f"cannot be used: {error}"


def _tables(title: str, found: dict[str, dict[str, str]], broken: dict[str, str]) -> None:
    """One table for each distribution that something comes from, and one for what cannot be used."""
    from fedzero import plugins

    tables = {title if origin == plugins.OURS else f"{title}: {origin}": lines for origin, lines in found.items()}
    for heading, lines in (tables | ({f"{title}: cannot be used": broken} if broken else {})).items():
        table = Table(title=escape(heading), title_justify="left", show_header=False, box=None)
        for name, line in lines.items():
            table.add_row(f"[bold]{escape(name)}", escape(line))
        out.print(table)


def _settings() -> Any:
    from fedzero.deploy.site.settings import Settings

    return Settings


def _in_full(name: str, known: list[str]) -> None:
    from fedzero import plugins
    from fedzero.recipe import schema

    sections = schema.named(name) if name != "site" else schema.of_struct(_settings())
    if sections is None:
        for _, group in schema.TABLES.values():
            if name in plugins.broken(group):
                raise FedzeroError(plugins.broken(group)[name])
        advice = did_you_mean(name, known) or "`fedzero list` shows all"
        kinds = "method, filter, rule, gathering, task, engine or recipe"
        raise FedzeroError(f"{name}: there is no {kinds} of that name; {advice}")
    for section in sections:
        several = section.place in ("filters", "algorithm.rules")
        place = f"[[{section.place}]]" if several else f"[{section.place}]" if section.place else ""
        chosen = f' kind = "{section.kind}"' if section.kind else ""
        out.print(f"[bold cyan]{escape((place + chosen).strip() or f'A {name}')}", highlight=False)
        out.print(escape(section.about), highlight=False)
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
        for option in section.options:
            default = {None: "required", "": "optional"}.get(option.default, f"default {option.default}")
            table.add_row(f"[bold]{option.name}", escape(option.meaning))
            table.add_row("", f"[dim]{escape(option.takes)} · {escape(default)}")
        out.print(table)
        out.print()


@app.command(rich_help_panel=PANEL)
def directions(
    key: Annotated[str, typer.Option(help="64-bit key, decimal or 0x….")],
    tensor: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Ordinal of the tensor.")] = 0,
    kind: Annotated[str, typer.Option(help="gaussian, rademacher or rank1.")] = "gaussian",
    n: Annotated[int, typer.Option("--n", min=1, help="How many numbers.")] = 1 << 20,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    columns: Annotated[int, typer.Option(min=0, help="Of the matrix, for rank1; 0: a vector.")] = 0,
) -> None:
    """SHA-256 of a direction's float32 bytes, to compare the generators of two machines."""
    import torch

    from fedzero.directions import Domain, kernels
    from fedzero.model.device import device_of

    try:
        number = int(key, 0)
    except ValueError:
        raise FedzeroError(f"--key {key}: not a number; write it in decimal or as 0x…") from None
    if not 0 <= number < 1 << 64:
        raise FedzeroError(f"--key {key}: a key is a number from 0 to 2^64 - 1")
    if kind not in ("gaussian", "rademacher", "rank1"):
        raise FedzeroError(f"--kind {kind}: use gaussian, rademacher or rank1 (the sphere is a scaled gaussian)")
    if columns and n % columns:
        raise FedzeroError(f"--columns {columns}: {n} numbers are no whole number of rows")
    if device not in ("cpu", "cuda"):
        raise FedzeroError(f"--device {device}: use cpu or cuda")
    z = torch.empty(n, dtype=torch.float32, device=device_of(device))
    kernels(z.device).generate(z, Domain[kind.upper()], number, tensor, columns=columns)
    print(hashlib.sha256(z.cpu().numpy().astype("<f4").tobytes()).hexdigest())


@app.command(rich_help_panel=PANEL)
def version() -> None:
    """Print the version of fedzero."""
    print(__version__)
