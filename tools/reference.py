"""The reference pages of the documentation, made from the code when the site is built: commands, recipe keys, Python.

reference/commands.md                         every command with its arguments and options, from the command line itself
reference/recipe.md, algorithms.md, …         every key that a recipe may have, from the types it is decoded into
reference/python.md                           every public name of `fedzero`; mkdocstrings fills in what it says
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedzero import _PUBLIC, plugins
from fedzero.recipe import schema
from fedzero.recipe.schema import Section


def cell(text: str) -> str:
    """Text within a table; what looks like markup is shown as it is."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield from (f"| {' | '.join(head)} |", f"|{'---|' * len(head)}")
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def section(found: Section, level: int) -> Iterator[str]:
    place = f"[[{found.place}]]" if found.place == "filters" else f"[{found.place}]" if found.place else "Top level"
    kind = f' kind = "{found.kind}"' if found.kind else ""
    yield from (f"{'#' * level} `{place}{kind}`", "", cell(found.about), "")
    rows = [
        (f"`{o.name}`", cell(o.takes), {None: "required", "": ""}.get(o.default, f"`{o.default}`"), cell(o.meaning))
        for o in found.options
    ]
    if rows:
        yield from table(("key", "takes", "default", "meaning"), rows)


def recipe() -> Iterator[str]:
    """Keys outside of algorithm, task and filters."""
    yield from (
        "# Recipes",
        "",
        "Keys of a recipe; those of `[algorithm]`, `[task]` and `[[filters]]` have pages of their own.",
        "",
    )
    for each in schema.named("recipe") or []:
        yield from section(each, 2)


def kinds(title: str, group: plugins.Group) -> Iterator[str]:
    """Every algorithm, filter or task that comes with the project."""
    yield from (f"# {title}", "", "`fedzero list NAME` prints the same in a terminal.", "")
    for name, kind in plugins.kinds(group).items():
        if kind.distribution != plugins.OURS:
            continue
        yield from (f"## {name}", "")
        for each in schema.named(name) or []:
            yield from section(each, 3)


def commands() -> Iterator[str]:
    import typer

    from fedzero.cli import app

    root: Any = typer.main.get_command(app)
    yield from ("# Commands", "", "`fedzero COMMAND --help` prints the same in a terminal.", "")

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        for name, each in sorted(getattr(command, "commands", {}).items()):
            if getattr(each, "commands", None):
                yield from walk(each, (*path, name))
                continue
            yield from (f"## fedzero {' '.join((*path, name))}", "", cell(each.help or ""), "")
            rows = []
            for option in each.params:
                shown = ", ".join(option.opts) if option.opts[0].startswith("-") else option.name.upper()
                rows.append(
                    (f"`{shown}`", "required" if option.required else "", cell(getattr(option, "help", "") or ""))
                )
            yield from table(("option", "", "meaning"), rows)

    yield from walk(root, ())


def python() -> Iterator[str]:
    yield from ("# Python", "", "Names of the package `fedzero`, imported when they are first used.", "")
    for name, module in sorted(_PUBLIC.items(), key=lambda item: item[0].lower()):
        yield from (f"::: {module}.{name}", "")


PAGES = {
    "commands": commands,
    "recipe": recipe,
    "python": python,
    "algorithms": lambda: kinds("Algorithms", "methods"),
    "filters": lambda: kinds("Filters", "filters"),
    "tasks": lambda: kinds("Tasks", "tasks"),
}


def write() -> None:
    import mkdocs_gen_files
    from docs_links import ROOT, linked

    for name in linked():
        with mkdocs_gen_files.open(f"files/{name}", "w") as file:
            file.write((ROOT / name).read_text(encoding="utf-8"))
    for name, page in PAGES.items():
        with mkdocs_gen_files.open(f"reference/{name}.md", "w") as file:
            file.write("\n".join(page()) + "\n")


if __name__ == "<run_path>":  # how mkdocs-gen-files runs a script
    sys.path.insert(0, str(Path(__file__).parent))
    write()
