"""What clients say is text, never markup of the terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from fedzero.ledger.records import Round
from fedzero.run import recipe as recipes
from fedzero.run.progress import LiveWatch, PlainWatch

REASON = "failed: [bold]it gave '[/x]' instead of a number"


@pytest.mark.parametrize("kind", [LiveWatch, PlainWatch])
def test_reasons_are_shown_as_they_are(kind: type) -> None:
    shown = StringIO()
    watch = kind(Console(file=shown, force_terminal=kind is LiveWatch, color_system=None, width=200))
    recipe = recipes.load("demo")
    watch.begin(recipe, 10, [])
    refused = ((3, REASON),)
    watch.round(
        Round(
            round=0,
            cohort=(3,),
            update=None,
            dense=False,
            bytes_up=0,
            bytes_down=0,
            queries=0,
            loss=None,
            refused=refused,
            remembered=(),
            queried=(),
        )
    )
    watch.end()
    assert f"round 0: client 3 {REASON}" in shown.getvalue()
