"""A package of one's own: `fedzero new method|task|link|rule|engine|transport NAME`; a link was a filter in 0.2."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from fedzero import __version__
from fedzero.cli import options
from fedzero.cli.common import app, out
from fedzero.errors import FedzeroError

ABOUT = {
    "method": "Shared directions of which only the steepest count.",
    "task": "The Rosenbrock function, shifted for every client.",
    "link": "Outliers of a contribution are pulled in.",
    "rule": "Unusually large scalars make a step of the usual length.",
    "engine": "All clients in this process, behind a network that takes its time.",
    "transport": "Hosts on threads of this process, behind a line that takes its time.",
}

Kind = Literal["method", "task", "filter", "rule", "engine", "transport"]


@app.command(rich_help_panel="Your own")
def new(
    kind: Annotated[
        Literal["method", "task", "link", "filter", "rule", "engine", "transport"],
        options.argument(help="What to write."),
    ],
    name: Annotated[str, options.argument(help="Its name in recipes, such as my-method.")],
    folder: Annotated[Path | None, options.optional("--out", help="Folder of the package; default NAME.")] = None,
) -> None:
    """Write an installable package with a method, task, link, rule, engine or transport that works, its test and an
    example.

    Install it (pip install -e NAME), and recipes, `fedzero list`, ledgers and sites know it like any of ours.

    Example: fedzero new method my-method
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from fedzero import plugins

    kind, group = ("link", "filters") if kind in ("link", "filter") else (kind, f"{kind}s")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise FedzeroError(f"{name!r} is no name for a {kind}: use small letters, digits and hyphens")
    if any(name == known for known in plugins.kinds(group)):  # type: ignore[arg-type]
        raise FedzeroError(f"the {kind} {name!r} exists already: choose another name")
    target = folder or Path(name)
    if target.exists():
        raise FedzeroError(f"{target} exists: choose another folder with --out")
    module = name.replace("-", "_")
    values = {"kind": kind, "name": name, "module": module, "about": ABOUT[kind], "version": __version__}
    values["cls"] = "".join(word.capitalize() for word in name.split("-"))
    loader = PackageLoader("fedzero.cli", "templates")
    templates = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    written = {
        "pyproject.toml": "pyproject.toml.j2",
        "README.md": "README.md.j2",
        "example.toml": "example.toml.j2",
        f"src/{module}/__init__.py": f"{kind}.py.j2",
        f"tests/test_{module}.py": "test.py.j2",
    }
    for path, template in written.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(templates.get_template(template).render(values), encoding="utf-8")
    article = "an" if kind == "engine" else "a"
    out.print(f"{target}/src/{module}/__init__.py is {article} {kind} that works. Next:", highlight=False, markup=False)
    out.print(
        f"  pip install -e {target} && pytest {target} && fedzero run {target}/example.toml",
        highlight=False,
        markup=False,
    )
